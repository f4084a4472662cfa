"""SampleLogger: what each kind of logger gets."""

import csv
import json
import re

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from bertscore_tm.callbacks import SampleLogger
from tests.support.lightning_runs import chooser
from tests.support.sample_tables import COUNT, Mixed, files, inputs_of, mixed, run_with, table

pytestmark = pytest.mark.filterwarnings("ignore:[0-9]+ candidates? scored 0")
# TensorBoard's page would keep such an element.
AWKWARD = "a *b* | c <em>bold</em> `code` [x](http://y.z)\n# not a heading"
LONG = "+" + "lengthy " * 100


class Awkward(Mixed):
    """Predictions are full of markup, and references are what a spreadsheet would compute."""

    def choose(self, numbers):
        preds, references = super().choose(numbers)
        return [f"{AWKWARD} {pred}" for pred in preds], [f"@SUM({text})" for text in references]


TABLE = ["validate_samples_step_0.csv"]
PICTURES = [f"validate_samples_step_0_{kind}_1.png" for kind in ("best", "median", "worst")]


@pytest.fixture(scope="module")
def logged(pairs, encoder, tmp_path_factory):
    """The folder of a run, and the one of its TensorBoardLogger."""
    folder = tmp_path_factory.mktemp("logged")
    loggers = [CSVLogger(folder, "csv"), TensorBoardLogger(folder, "tb")]
    module = chooser(pairs, kind=Awkward, val_sizes=(COUNT,))
    samples = SampleLogger(2, 1, inputs=lambda batch: [LONG] * len(batch))
    run_with(folder, module, encoder, samples, logger=loggers)
    return folder, loggers[1].log_dir


def test_no_cell_of_a_file_is_a_formula(logged):
    folder, _ = logged

    assert files(folder) == TABLE + PICTURES
    for path in (folder / "csv" / "version_0" / "samples").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for row in table(folder):
        assert row["prediction"].startswith(AWKWARD)
        assert row["reference"].startswith("'@SUM(")
        assert row["input"] == f"'{LONG}"
        assert float(row["F1"]) <= 1  # numbers stay numbers


# TensorBoard uses a deprecated part of its copy of html5lib.
@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated")
def test_tensorboard_shortens_long_texts_only(logged):
    from tensorboard import plugin_util
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(logged[1], size_guidance={"tensors": 0, "images": 0})
    events.Reload()
    (event,) = events.Tensors("validate_samples/text_summary")
    page = plugin_util.markdown_to_safe_html(event.tensor_proto.string_val[0].decode())

    assert [page.count(tag) for tag in ("<tr>", "<th>", "<td>")] == [1 + 6, 8, 6 * 8]
    assert not re.search(r"<(b|em|code|a|h1)[ >]", page)
    literal = "a *b* | c &lt;em&gt;bold&lt;/em&gt; `code` [x](http://y.z)<br># not a heading"
    assert page.replace("<br/>", "<br>").replace("<br />", "<br>").count(literal) == 6
    assert page.count("lengthy") == 6 * LONG[:400].count("lengthy")
    assert page.count("…") == 6
    pictures = {name: events.Images(name) for name in events.Tags()["images"]}
    assert sorted(pictures) == [f"validate_samples/{kind}_1" for kind in ("best", "median", "worst")]
    assert all(image[0].width > 300 and image[0].height > 200 for image in pictures.values())


@pytest.mark.slow
def test_weights_and_biases_gets_the_table_and_the_pictures(pairs, encoder, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="samples")

    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3, 1), logger=[logger, CSVLogger(tmp_path, "csv")])
    wandb.finish()

    media = next(tmp_path.glob("wandb/offline-run-*/files/media"))
    (path,) = media.glob("table/*.json")
    content = json.loads(path.read_text())
    rows = [dict(zip(content["columns"], map(str, row), strict=True)) for row in content["data"]]
    assert rows == table(tmp_path)
    names = sorted(path.name.partition("_1_")[0] for path in media.glob("images/validate_samples/*.png"))
    assert names == ["best", "median", "worst"]


def test_a_writer_gets_each_logger_and_the_table(pairs, encoder, tmp_path):
    written = []
    loggers = [CSVLogger(tmp_path, name) for name in ("first", "second")]
    samples = SampleLogger(3, 1, inputs=inputs_of, writer=lambda logger, table: written.append((logger, table)))

    run_with(tmp_path, mixed(pairs), encoder, samples, logger=loggers)
    run_with(tmp_path, mixed(pairs), encoder, samples, logger=False)
    assert [logger for logger, _ in written] == [*loggers, None]

    assert not list(tmp_path.rglob("samples"))
    # The files of a run without the writer have the same rows.
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3, inputs=inputs_of), logger=False)
    with (tmp_path / "samples" / TABLE[0]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for _, shown in written:
        assert shown.key == "validate_samples"
        assert shown.step == 0
        shown_rows = [dict(zip(shown.columns, map(str, row), strict=True)) for row in shown.rows]
        assert shown_rows == rows
        assert list(shown.pictures) == ["worst_1", "median_1", "best_1"]


class Plain(Logger):
    """Names its run, and has no folder for logs."""

    def __init__(self, version):
        super().__init__()
        self._version = version

    name, version = "plain", property(lambda self: self._version)

    def log_metrics(self, *args, **kwargs):
        pass

    log_hyperparams = log_metrics


def test_files_are_in_the_folder_of_each_loggers_run(pairs, encoder, tmp_path):
    for version in ("a", 3):
        run_with(tmp_path, mixed(pairs), encoder, logger=[CSVLogger(tmp_path, "csv"), Plain(version)])

    tables = sorted(tmp_path.rglob("*samples*.csv"))
    folders = ["csv/version_0", "csv/version_1", "plain/a", "plain/version_3"]
    assert tables == [tmp_path / name / "samples" / TABLE[0] for name in folders]


def test_a_fast_development_run_needs_no_logger(pairs, encoder, tmp_path):
    for logger in (False, CSVLogger(tmp_path, "csv")):
        run_with(tmp_path, chooser(pairs), encoder, call="fit", fast_dev_run=True, logger=logger)

    assert not list(tmp_path.rglob("samples"))
