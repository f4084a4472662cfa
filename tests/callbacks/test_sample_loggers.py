"""SampleLogger: what each kind of logger gets."""

import csv
import json
import re
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from bertscore_tm.callbacks import SampleLogger
from tests.support.lightning_modules import chooser
from tests.support.sample_tables import COUNT, Mixed, files, inputs_of, mixed, run_with, table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pairs(pairs):
    """Real pairs, cut short: alignments of long texts take long to draw."""
    return tuple([" ".join(text.split()[:8]) for text in side] for side in pairs)


AWKWARD = "a *b* | c <b>bold</b> `code` [x](http://y.z)\n# not a heading"


class Awkward(Mixed):
    """Texts that are full of markup."""

    def choose(self, numbers):
        preds, references = super().choose(numbers)
        return [f"{AWKWARD} {pred}" for pred in preds], references


def tensorboard_tables(folder):
    from tensorboard import plugin_util
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0})
    events.Reload()
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("val_samples/text_summary")]
    pictures = {name: events.Images(name) for name in events.Tags()["images"]}
    return [plugin_util.markdown_to_safe_html(text) for text in texts], pictures


def test_tensorboard_shows_texts_as_they_are(pairs, encoder, tmp_path):
    logger = TensorBoardLogger(tmp_path, "tb")
    module = chooser(pairs, count=COUNT, kind=Awkward, val_sizes=(COUNT,))
    run_with(tmp_path, module, encoder, logger=logger)
    (page,), pictures = tensorboard_tables(logger.log_dir)
    assert page.count("<tr>") == 1 + 6
    assert page.count("<th>") == 10
    assert page.count("<td>") == 6 * 10
    assert not re.search(r"<(b|em|code|a|h1)[ >]", page)
    literal = "a *b* | c &lt;b&gt;bold&lt;/b&gt; `code` [x](http://y.z)<br># not a heading"
    assert page.replace("<br/>", "<br>").replace("<br />", "<br>").count(literal) == 6
    assert sorted(pictures) == [f"val_samples/{kind}_1" for kind in ("best", "median", "worst")]
    assert all(image[0].width > 300 and image[0].height > 200 for image in pictures.values())


def test_long_texts_are_shortened_in_tensorboard_alone(pairs, encoder, tmp_path):
    loggers = [TensorBoardLogger(tmp_path, "tb"), CSVLogger(tmp_path, "csv")]
    samples = SampleLogger(1, 0, inputs=lambda batch: ["word " * 200] * len(batch))
    run_with(tmp_path, mixed(pairs), encoder, samples, logger=loggers)
    (page,), _ = tensorboard_tables(loggers[0].log_dir)
    assert page.count("word") == 3 * 80
    assert page.count("…") == 3
    assert table(tmp_path)[0]["input"] == "word " * 200


@pytest.mark.slow
def test_weights_and_biases_gets_the_table_and_the_pictures(pairs, encoder, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="samples")
    module = mixed(pairs)
    run_with(tmp_path, module, encoder, SampleLogger(3), logger=[logger, CSVLogger(tmp_path, "csv")])
    wandb.finish()
    media = next(tmp_path.glob("wandb/offline-run-*/files/media"))
    (path,) = media.glob("table/*.json")
    content = json.loads(path.read_text())
    rows = [dict(zip(content["columns"], map(str, row), strict=True)) for row in content["data"]]
    assert rows == table(tmp_path)
    assert sorted(path.name.partition("_1_")[0] for path in media.glob("images/val_samples/*.png")) == [
        "best",
        "median",
        "worst",
    ]


def test_csv_files_are_next_to_the_metrics(pairs, encoder, tmp_path):
    run = run_with(tmp_path, chooser(pairs, val_sizes=(COUNT,)), encoder, call="fit", max_epochs=2)
    names = files(tmp_path)
    assert names == [
        f"val_samples_step_{step}{rest}"
        for step in (2, 5)
        for rest in (".csv", "_best_1.png", "_median_1.png", "_worst_1.png")
    ]
    pictures = [path.read_bytes() for path in Path(run.logger.log_dir).glob("samples/*.png")]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    with (Path(run.logger.log_dir) / "metrics.csv").open() as file:
        steps = [row["step"] for row in csv.DictReader(file) if row["val_bertscore_f1"]]
    assert steps == ["2", "5"]  # the steps of the files' names


class Other(Logger):
    name, version = "other", 0

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params):
        pass


class ShowsTables(Other):
    """Has a method for tables, and one for pictures that takes other arguments."""

    def __init__(self):
        super().__init__()
        self.tables = []

    def log_table(self, key, columns=None, data=None, dataframe=None, step=None):
        self.tables.append((key, step, [dict(zip(columns, map(str, row), strict=True)) for row in data]))

    def log_image(self, path):
        raise NotImplementedError


class ShowsPictures(Other):
    def __init__(self):
        super().__init__()
        self.pictures = []

    def log_image(self, key, images, step=None, **kwargs):
        self.pictures.append((key, step, [hasattr(one, "savefig") for one in images]))


TABLE = ["val_samples_step_0.csv"]
PICTURES = [f"val_samples_step_0_{kind}_1.png" for kind in ("best", "median", "worst")]


@pytest.mark.parametrize("kind", [None, Other, ShowsTables, ShowsPictures])
def test_what_a_logger_cannot_show_is_written_to_files(pairs, encoder, tmp_path, kind):
    logger = False if kind is None else kind()
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3), logger=logger)
    wanted = (TABLE if kind is not ShowsTables else []) + (PICTURES if kind is not ShowsPictures else [])
    found = {path.name: path for path in (tmp_path / "samples").iterdir()}
    assert sorted(found) == wanted
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3))
    rows = table(tmp_path)
    if kind is ShowsTables:
        assert logger.tables == [("val_samples", 0, rows)]
    else:
        with found[TABLE[0]].open(encoding="utf-8", newline="") as file:
            assert list(csv.DictReader(file)) == rows
    if kind is ShowsPictures:
        names = [f"val_samples/{one}_1" for one in ("worst", "median", "best")]
        assert logger.pictures == [(name, 0, [True]) for name in names]


class Formulas(Mixed):
    """Texts that a spreadsheet would compute."""

    def choose(self, numbers):
        preds, references = super().choose(numbers)
        return [f'=HYPERLINK("http://x.y","{pred}")' for pred in preds], [f"@SUM({one})" for one in references]


def test_no_cell_of_a_file_is_a_formula(pairs, encoder, tmp_path):
    module = chooser(pairs, count=COUNT, kind=Formulas, val_sizes=(COUNT,))
    inputs = ["+1", "-2", "\t=3"] * 3
    samples = SampleLogger(3, 0, inputs=lambda batch: [inputs[i] for i in batch.tolist()])
    run_with(tmp_path, module, encoder, samples)
    rows = table(tmp_path)
    for row in rows:
        assert row["prediction"].startswith("'=HYPERLINK(")
        assert row["reference"].startswith("'@SUM(")
        assert row["input"] == f"'{inputs[int(row['example'])]}"
        assert float(row["F1"]) <= 1  # numbers stay numbers


def test_a_writer_gets_each_logger_and_the_table(pairs, encoder, tmp_path):
    written, loggers = [], [Other(), CSVLogger(tmp_path, "own")]
    samples = SampleLogger(3, inputs=inputs_of, writer=lambda *given: written.append(given))
    run_with(tmp_path, mixed(pairs), encoder, samples, logger=loggers)
    run_with(tmp_path, mixed(pairs), encoder, samples, logger=False)
    assert [logger for logger, _ in written] == [*loggers, None]
    assert not list(tmp_path.rglob("samples"))
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3, inputs=inputs_of))
    for _, shown in written:
        assert (shown.key, shown.step) == ("val_samples", 0)
        assert [dict(zip(shown.columns, map(str, row), strict=True)) for row in shown.rows] == table(tmp_path)
        assert list(shown.pictures) == ["worst_1", "median_1", "best_1"]
        assert all(hasattr(picture, "savefig") for picture in shown.pictures.values())


def test_a_fast_development_run_needs_no_logger(pairs, encoder, tmp_path):
    for logger in (False, CSVLogger(tmp_path, "csv")):
        run_with(tmp_path, chooser(pairs), encoder, call="fit", fast_dev_run=True, logger=logger)
    assert not list(tmp_path.rglob("samples"))
