"""SampleLogger: the selected examples and the contents of the loggers."""

import csv
import io
import json
import pickle
import re
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, Seq2SeqGenerate
from bertscore_tm.callbacks.samples import logger as sample_logger
from bertscore_tm.callbacks.samples.selection import choose_samples, describe_sample, find_unmatched_words
from bertscore_tm.callbacks.samples.writers import SampleTable, find_writer
from bertscore_tm.functional import bert_score
from tests.support.lightning_modules import (
    Chooser,
    Silent,
    SpawnedDDP,
    chooser,
    generate,
    generate_wildly,
    loader,
    trainer,
    weights,
)
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer
from tests.support.texts import several_references

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 9


def inputs_of(batch):
    return [f"input {number}" for number in batch.tolist()]


class Mixed(Chooser):
    """Some of its predictions are right, some are empty, and the others belong to another example."""

    def choose(self, numbers):
        references = [self.references[i] for i in numbers.tolist()]
        first = [one if isinstance(one, str) else one[0] for one in self.references]
        preds = ["" if i % 4 == 3 else first[i] if i % 3 == 0 else first[(i + 4) % COUNT] for i in numbers.tolist()]
        return preds, references


def mixed(pairs, **kwargs):
    return chooser(pairs, count=COUNT, kind=Mixed, val_sizes=kwargs.pop("val_sizes", (COUNT,)), **kwargs)


def run_with(folder, module, encoder, samples=None, call="validate", metric=None, **arguments):
    samples = samples or SampleLogger(2, inputs=inputs_of)
    callbacks = [samples, BERTScoreCallback(metric or BERTScore(encoder))]
    arguments = {"logger": CSVLogger(folder, "csv")} | arguments
    run = trainer(folder, callbacks, **arguments)
    getattr(run, call)(module, **({} if call == "fit" else {"verbose": False}))
    return run


def table(folder, name="val_samples_step_0"):
    with (Path(folder) / "csv" / "version_0" / "samples" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files(folder):
    return sorted(path.name for path in (Path(folder) / "csv" / "version_0" / "samples").iterdir())


def expected_rows(preds, target, encoder, count, **options):
    """Chosen by sorting whole rows, with the scores of one call; equal texts score the same to five decimals."""
    scores = bert_score(preds, target, encoder, **options)
    ranked = sorted(range(len(preds)), key=lambda i: (round(scores["f1"][i].item(), 5), i))
    middle = ranked[count : len(ranked) - count]
    start = (len(middle) - count) // 2
    chosen = [("worst", i) for i in ranked[:count]]
    chosen += [("median", i) for i in middle[start : start + count]]
    chosen += [("best", i) for i in ranked[::-1][:count]]
    return [
        (kind, str(i), *(round(scores[name][i].item(), 4) for name in ("precision", "recall", "f1")))
        for kind, i in chosen
    ]


def shown(rows):
    return [(row["kind"], row["example"], float(row["P"]), float(row["R"]), float(row["F1"])) for row in rows]


def approximately(rows):
    return [(kind, number, *(pytest.approx(score, abs=1.1e-4) for score in scores)) for kind, number, *scores in rows]


# What is shown


@pytest.mark.parametrize(
    ("stage", "several", "idf"), [("validate", False, False), ("validate", True, True), ("test", True, False)]
)
def test_the_table_shows_the_worst_the_median_and_the_best(pairs, encoder, tmp_path, stage, several, idf):
    few = pairs[1][:COUNT]
    references = several_references(few) if several else None
    module = mixed(pairs, references=references)
    run_with(tmp_path, module, encoder, call=stage, metric=BERTScore(encoder, idf=idf))
    rows = table(tmp_path, f"{'val' if stage == 'validate' else 'test'}_samples_step_0")
    preds, target = module.choose(torch.arange(COUNT))
    assert shown(rows) == approximately(expected_rows(preds, target, encoder, 2, idf=idf))
    for row in rows:
        number = int(row["example"])
        wanted = target[number] if several else [target[number]]
        assert (row["input"], row["prediction"]) == (f"input {number}", preds[number])
        assert row["reference"] == "\n".join(wanted)


def test_the_numbers_are_those_of_a_metric_with_other_settings(pairs, minilm, tmp_path):
    layers = FrozenEncoder(minilm, num_layers=6, all_layers=True)
    module = mixed(pairs)
    run_with(tmp_path, module, None, metric=BERTScore(layers, num_layers=3, idf_sents=pairs[1][:60]))
    preds, target = module.choose(torch.arange(COUNT))
    single = FrozenEncoder(minilm, num_layers=3)
    assert shown(table(tmp_path)) == approximately(expected_rows(preds, target, single, 2, idf_sents=pairs[1][:60]))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_no_place_is_chosen_twice_and_kinds_are_in_order(scores, count):
    chosen = choose_samples(torch.tensor(scores, dtype=torch.float32), count)
    places = [place for kind in chosen.values() for place in kind]
    assert len(set(places)) == len(places)
    sizes = {kind: len(found) for kind, found in chosen.items()}
    if len(scores) >= 3 * count:
        assert sizes == {"worst": count, "median": count, "best": count}
    values = {kind: [scores[place] for place in found] for kind, found in chosen.items()}
    ranked = sorted(scores)
    assert values["worst"] == ranked[: sizes["worst"]]
    assert values["best"] == ranked[::-1][: sizes["best"]]
    assert values["median"] == sorted(values["median"])
    if len(scores) > 2:
        middle = len(scores) // 2
        assert ranked[middle] in values["median"] or ranked[(len(scores) - 1) // 2] in values["median"]


@given(st.lists(st.sampled_from([1.0, 1 - 1.2e-7, 1 + 1.2e-7]), min_size=6, max_size=6))
@settings(deadline=None, max_examples=20)
def test_rounding_does_not_choose(scores):
    scores = torch.tensor([*scores, 0.2, 0.4, 0.6], dtype=torch.float32)
    assert choose_samples(scores, 2) == choose_samples(scores.round(decimals=1), 2)


def test_unmatched_words_are_those_with_the_highest_cost(encoder):
    metric = BERTScore(encoder)
    alignment = metric.align("The kitten is sleeping on a tokenization.", "The cat sleeps on a mat.")
    side = alignment.candidate
    costs, word = {}, -1
    for i, token in enumerate(side.tokens):
        if not side.joined[i] or i == 0:
            word += 1
        name, cost = costs.get(word, ("", 0.0))
        costs[word] = (name + token, cost + side.weights[i].item() * (1 - side.best[i].item()))
    average = sum(cost for _, cost in costs.values()) / len(costs)
    dear = sorted((name for name, cost in costs.values() if cost >= average), key=str.lower)
    found = find_unmatched_words(side).split(", ")
    assert "tokenization" in found
    assert len(found) <= 3
    assert all(f"{one}." in dear or one in dear for one in found)
    assert find_unmatched_words(metric.align("The cat sleeps.", "The cat sleeps.").candidate) == ""


def test_described_sample_has_unmatched_words(encoder):
    metric = BERTScore(encoder)
    texts = ("in", "Parses a banana from disk.", ["Writes files.", "Parses a configuration file from disk."])
    found = describe_sample("worst", 3, (0.1, 0.2, 0.3), texts, metric, metric.token_weights())
    assert found.closest == texts[2][1]
    assert "banana" in found.out_of_place
    assert "configuration" in found.missed
    quoted = "Parses a “banana” from «disk»."
    side = describe_sample("worst", 3, (0.1, 0.2, 0.3), ("in", quoted, texts[2]), metric, metric.token_weights())
    assert not set(side.out_of_place) & set("“”«».")
    assert "banana" in side.out_of_place
    nothing = describe_sample("worst", 3, (0.0, 0.0, 0.0), ("in", "", ["Some words."]), metric, metric.token_weights())
    assert (nothing.alignment, nothing.out_of_place, nothing.missed) == (None, "", "")


def test_each_loader_has_a_table(pairs, encoder, tmp_path):
    module = mixed(pairs, val_sizes=(COUNT, 4))
    run_with(tmp_path, module, encoder, SampleLogger(1, 0, inputs=inputs_of))
    for number, count in enumerate((COUNT, 4)):
        preds, target = module.choose(torch.arange(count))
        rows = table(tmp_path, f"val_samples_dataloader_idx_{number}_step_0")
        assert shown(rows) == approximately(expected_rows(preds, target, encoder, 1))


def test_followed_examples_are_shown_every_time(pairs, encoder, tmp_path):
    samples = SampleLogger(1, 0, follow=[4, 2])
    run_with(tmp_path, chooser(pairs, val_sizes=(COUNT,)), encoder, samples, "fit", max_epochs=2)
    tables = [name for name in files(tmp_path) if name.endswith(".csv")]
    assert len(tables) == 2
    for name in tables:
        rows = table(tmp_path, name.removesuffix(".csv"))
        assert [row["example"] for row in rows if row["kind"] == "followed"] == ["4", "2"]
        assert "input" not in rows[0]
    assert len([name for name in files(tmp_path) if "followed_4" in name]) == 2


@pytest.mark.filterwarnings("error:SampleLogger follows")
def test_missing_followed_example_warns(pairs, encoder, tmp_path):
    with pytest.warns(UserWarning, match=r"this run did not score the examples \[77\]"):
        run_with(tmp_path, mixed(pairs), encoder, SampleLogger(1, 0, follow=[77, 1]))


def test_only_every_so_many_validations_also_after_a_resume(pairs, encoder, tmp_path):
    def fit(folder, epochs, **options):
        callbacks = [SampleLogger(1, 0, every_n_validations=2), BERTScoreCallback(BERTScore(encoder))]
        run = trainer(folder, callbacks, max_epochs=epochs, logger=CSVLogger(folder, "csv"), num_sanity_val_steps=1)
        run.fit(chooser(pairs), **options)
        return run

    fit(tmp_path / "a", 1).save_checkpoint(tmp_path / "one.ckpt")
    assert not (tmp_path / "a" / "csv" / "version_0" / "samples").exists()
    fit(tmp_path / "b", 3, ckpt_path=tmp_path / "one.ckpt")
    assert files(tmp_path / "b") == ["val_samples_step_5.csv"]  # three steps an epoch: the end of the second


# Where the inputs come from


class ReturnsQuestions(Mixed):
    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return {**super().evaluation_step(batch, batch_idx, dataloader_idx), "asked": inputs_of(batch)}

    validation_step = evaluation_step


def test_inputs_from_what_the_step_returns(pairs, encoder, tmp_path):
    module = chooser(pairs, count=COUNT, kind=ReturnsQuestions, val_sizes=(COUNT,))
    run_with(tmp_path, module, encoder, SampleLogger(1, 0, inputs="asked"))
    assert all(row["input"] == f"input {row['example']}" for row in table(tmp_path))


def test_inputs_that_are_token_ids_are_decoded(pairs, encoder, minilm, tmp_path):
    class Ids(ReturnsQuestions):
        def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
            ids = torch.stack([batch + 2000, torch.zeros_like(batch)], dim=1)  # words, and padding
            return {**super().evaluation_step(batch, batch_idx, dataloader_idx), "ids": ids}

        validation_step = evaluation_step

    samples = SampleLogger(1, 0, inputs="ids", tokenizer=str(minilm))
    run_with(tmp_path, chooser(pairs, count=COUNT, kind=Ids, val_sizes=(COUNT,)), encoder, samples)
    rows = table(tmp_path)
    assert [row["input"] for row in rows] == [samples.tokenizer.decode(2000 + int(row["example"])) for row in rows]


class WithModel(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def validation_step(self, batch, batch_idx):
        pass


def test_hugging_face_generators_provide_inputs(encoder, tmp_path):
    tokenizer = tiny_tokenizer(EVERY_FAMILY["bart"])
    model = randomised(AutoModelForSeq2SeqLM.from_config(tiny_config("bart")))
    texts = ["the cat sat", "it rains", "returns a name", "a b c"]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    data = [{"input_ids": row, "labels": "a cat"} for row in ids]
    callbacks = [
        SampleLogger(1, 0),
        BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(tokenizer, max_new_tokens=3)),
    ]
    run = trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path, "csv"))
    run.validate(WithModel(model), DataLoader(data, batch_size=2), verbose=False)
    rows = table(tmp_path)
    wanted = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [row["input"] for row in rows] == [wanted[int(row["example"])] for row in rows]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            "question",
            r"no inputs='question' in the batch or in the step's outputs, which have the keys \['asked', 'numbers',",
        ),
        ("numbers", "inputs='numbers' are token ids: pass tokenizer="),
        (lambda batch: ["one"], "must be a list of 3 texts, one per prediction"),
        (lambda batch: "abc", "must be a list of 3 texts, one per prediction, got 'abc'"),
        (lambda batch: [1, 2, 3], "must be a list of 3 texts, one per prediction"),
    ],
    ids=["no key", "ids", "too few", "a text", "no texts"],
)
def test_unusable_inputs_are_an_error(pairs, encoder, tmp_path, inputs, message):
    class Numbered(ReturnsQuestions):
        def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
            return {**super().evaluation_step(batch, batch_idx, dataloader_idx), "numbers": batch[:, None]}

        validation_step = evaluation_step

    module = chooser(pairs, count=COUNT, kind=Numbered, val_sizes=(COUNT,))
    with pytest.raises(MisconfigurationException, match=message):
        run_with(tmp_path, module, encoder, SampleLogger(inputs=inputs))


# Loggers


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


class Recorder:
    """Keeps the calls of an experiment's methods."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, method):
        return lambda *args, **kwargs: self.calls.append((method, args, kwargs))


class Recorded:
    """Stands in for the parts of a logger that need the package of its service."""

    name, version, run_id, save_dir = "recorded", "0", "run 7", None

    def __init__(self):
        self.recorder = Recorder()

    @property
    def experiment(self):
        return self.recorder

    def log_metrics(self, metrics, step=None):
        pass

    log_hyperparams = log_graph = finalize = log_metrics


class RecordedMLFlow(Recorded, MLFlowLogger):
    pass


class RecordedComet(Recorded, CometLogger):
    pass


def test_mlflow_gets_the_table_and_the_pictures(pairs, encoder, tmp_path):
    logger = RecordedMLFlow()
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3), logger=[logger, CSVLogger(tmp_path, "csv")])
    (method, (run_id, text, path), _), *figures = logger.experiment.calls
    assert (method, run_id, path) == ("log_text", "run 7", "samples/val_samples_step_0.csv")
    assert list(csv.DictReader(io.StringIO(text, newline=""))) == table(tmp_path)
    assert [(one[0], one[1][0]) for one in figures] == [("log_figure", "run 7")] * 3
    kinds = [args[2].removeprefix("samples/val_samples_step_0_") for _, args, _ in figures]
    assert kinds == ["worst_1.png", "median_1.png", "best_1.png"]
    assert all(hasattr(args[1], "savefig") for _, args, _ in figures)


def test_comet_gets_the_table_and_the_pictures(pairs, encoder, tmp_path):
    logger = RecordedComet()
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(3), logger=[logger, CSVLogger(tmp_path, "csv")])
    (method, names, content), *figures = logger.experiment.calls
    assert (method, names) == ("log_table", ("val_samples_step_0.csv",))
    rows = [dict(zip(content["headers"], map(str, row), strict=True)) for row in content["tabular_data"]]
    assert rows == table(tmp_path)
    assert [(one[0], one[2]["figure_name"], one[2]["step"]) for one in figures] == [
        ("log_figure", f"val_samples/{kind}_1", 0) for kind in ("worst", "median", "best")
    ]
    assert all(hasattr(one[2]["figure"], "savefig") for one in figures)


class Other(Logger):
    name, version = "other", 0

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params):
        pass


@pytest.mark.parametrize(("logger", "have"), [(False, "none"), (Other(), "Other")], ids=["none", "another"])
def test_no_logger_for_samples(pairs, encoder, tmp_path, logger, have):
    with pytest.raises(MisconfigurationException, match=rf"the trainer's loggers are: {have}\. Add a supported one"):
        run_with(tmp_path, mixed(pairs), encoder, logger=logger)
    assert find_writer(Other()) is None


def test_a_fast_development_run_needs_no_logger(pairs, encoder, tmp_path):
    run_with(tmp_path, chooser(pairs), encoder, call="fit", fast_dev_run=True)
    assert not (tmp_path / "csv").exists()


# With other callbacks


def test_no_scorer_is_an_error_before_training(pairs, encoder, tmp_path):
    with pytest.raises(
        MisconfigurationException, match="needs a BERTScoreCallback with a BERTScore, but the trainer has none: add"
    ):
        trainer(tmp_path, [SampleLogger()], logger=CSVLogger(tmp_path)).fit(chooser(pairs))
    callbacks = [SampleLogger(name="idff"), BERTScoreCallback({"idf": BERTScore(encoder)})]
    with pytest.raises(MisconfigurationException, match=r"name='idff', but the BERTScores are named 'idf': pass one"):
        trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path)).fit(chooser(pairs))


def test_two_sample_loggers_show_two_scores(pairs, encoder, tmp_path):
    metrics = {"plain": BERTScore(encoder), "idf": BERTScore(encoder, idf=True)}
    callbacks = [SampleLogger(2, 0, name=name) for name in metrics] + [BERTScoreCallback(metrics)]
    module = mixed(pairs)
    trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path, "csv")).validate(module, verbose=False)
    preds, target = module.choose(torch.arange(COUNT))
    for name in metrics:
        rows = table(tmp_path, f"val_{name}_samples_step_0")
        assert shown(rows) == approximately(expected_rows(preds, target, encoder, 2, idf=name == "idf"))


def test_nothing_is_generated_or_encoded_twice(pairs, minilm, tmp_path, monkeypatch):
    encoder = FrozenEncoder(minilm, num_layers=1)
    encoded, generated = [], []
    encode = FrozenEncoder.encode

    def counted(self, texts, *args, **kwargs):
        encoded.append(len(texts) if isinstance(texts, list) else len(texts.ids))
        return encode(self, texts, *args, **kwargs)

    def counted_generate(pl_module, batch):
        generated.append(len(batch))
        return generate(pl_module, batch)

    monkeypatch.setattr(FrozenEncoder, "encode", counted)
    counts = []
    for more in ([], [SampleLogger(1, 0)]):
        encoded.clear()
        callbacks = [*more, BERTScoreCallback(BERTScore(encoder, cache_bytes=0), counted_generate)]
        module = chooser(pairs, count=COUNT, kind=Silent, val_sizes=(COUNT,))
        trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path)).validate(module, verbose=False)
        counts.append(sum(encoded))
    assert sum(generated) == 2 * COUNT
    assert counts[1] - counts[0] == 2 * 3  # prediction and reference of three samples, to find the unmatched words


def test_training_is_bitwise_unchanged(pairs, encoder, tmp_path, monkeypatch):
    drawn = []

    def fitted(folder, more):
        callbacks = [*more, BERTScoreCallback(BERTScore(encoder), generate_wildly)]
        module = chooser(pairs, count=COUNT, kind=Silent)
        trainer(folder, callbacks, max_epochs=3, logger=CSVLogger(folder)).fit(module)
        return weights(module), torch.get_rng_state()

    plain = fitted(tmp_path / "a", [])
    monkeypatch.setattr(sample_logger, "find_writer", lambda logger: lambda logger, page: drawn.append(torch.rand(1)))
    with_samples = fitted(tmp_path / "b", [SampleLogger(1)])
    assert torch.equal(plain[0], with_samples[0])
    assert torch.equal(plain[1], with_samples[1])
    assert len(drawn) == 3


def test_sample_logger_pickles(pairs, encoder, tmp_path):
    run_with(tmp_path, mixed(pairs), encoder, pickle.loads(pickle.dumps(SampleLogger(2, inputs=inputs_of))))
    assert len(table(tmp_path)) == 6


@pytest.mark.parametrize("argument", ["num_samples", "every_n_validations", "num_alignments"])
def test_numbers_out_of_range_are_an_error(argument):
    with pytest.raises(ValueError, match=f"{argument} must be at least ., got -1"):
        SampleLogger(**{argument: -1})


def test_tables_without_inputs_have_no_input_column():
    assert "input" not in SampleTable("x", 0, [], {}).columns


# Several processes


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_show_what_one_does(pairs, encoder, tmp_path):
    tables = []
    for name, options in (("one", {}), ("two", {"devices": 2, "strategy": SpawnedDDP("forkserver")})):
        callbacks = [SampleLogger(3, inputs=inputs_of, follow=[5]), BERTScoreCallback(BERTScore(encoder, idf=True))]
        run = trainer(tmp_path / name, callbacks, max_epochs=1, logger=CSVLogger(tmp_path / name, "csv"), **options)
        run.fit(mixed(pairs), loader(2), loader(COUNT, batch_size=2))
        tables.append(table(tmp_path / name))
        assert len([one for one in files(tmp_path / name) if one.endswith(".png")]) == 4
    assert len(tables[0]) == 10
    assert tables[0] == tables[1]


@pytest.mark.filterwarnings("error:no installed font has")
def test_characters_without_a_font_do_not_warn(pairs, encoder, tmp_path):
    undrawable = "\U000e0fff \U00013000 \U0001f9ff"
    few = tuple([f"{text} {undrawable}" for text in side] for side in pairs)
    run_with(tmp_path, chooser(few, count=COUNT, val_sizes=(COUNT,)), encoder)
    assert any(name.endswith(".png") for name in files(tmp_path))
