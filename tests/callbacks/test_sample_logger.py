"""SampleLogger: the selected examples, and next to other callbacks."""

import csv
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, Seq2SeqGenerate
from bertscore_tm.callbacks.sample_logger import choose_samples
from tests.support.lightning_runs import (
    Record,
    Returns,
    WithModel,
    chooser,
    generator,
    loader,
    trainer,
)
from tests.support.sample_tables import COUNT, files, inputs_of, mixed, run_with, table
from tests.support.texts import real_pairs, several_references

REFERENCES = real_pairs(60, words=8)[1]


# Random texts share tokens with no other, and empty ones have none.
pytestmark = pytest.mark.filterwarnings("ignore:[0-9]+ candidates? scored 0")


# What is shown


def expected_rows(preds, target, encoder, count, **options):
    """Chosen by sorting whole rows, with the scores of one call; equal texts score the same to five decimals."""
    scores = bert_score(preds, target, encoder, **options)
    ranked = sorted(range(len(preds)), key=lambda i: (round(scores["f1"][i].item(), 5), i))
    middle = ranked[count : len(ranked) - count]
    start = (len(middle) - count) // 2
    chosen = {"worst": ranked[:count], "median": middle[start : start + count], "best": ranked[::-1][:count]}
    rows = []
    for kind, places in chosen.items():
        for i in places:
            shown = [pytest.approx(values[i].item(), abs=1.6e-4) for values in scores.values()]
            rows.append((kind, str(i + 1), *shown))
    return rows


def shown(rows):
    return [(row["kind"], row["example"], float(row["P"]), float(row["R"]), float(row["F1"])) for row in rows]


@pytest.mark.parametrize(
    ("stage", "has_lists", "options"),
    [("validate", False, {}), ("test", True, {"idf": True}), ("validate", False, {"idf": REFERENCES, "layer": 2})],
    ids=["val", "test", "layer"],
)
def test_the_table_shows_the_worst_the_median_and_the_best(pairs, shallow, tmp_path, stage, has_lists, options):
    references = several_references(pairs[1][:COUNT]) if has_lists else None
    module = mixed(pairs, references=references)
    samples = pickle.loads(pickle.dumps(SampleLogger(2, inputs=inputs_of)))
    layers = shallow
    if "layer" in options:
        layers = FrozenEncoder(shallow.name, num_layers=3, all_layers=True)

    run_with(tmp_path, module, shallow, samples, call=stage, metric=BERTScore(layers, **options))

    rows = table(tmp_path, f"{stage}_samples_step_0")
    preds, target = module.choose(torch.arange(COUNT))
    idf = options.get("idf", False)
    assert shown(rows) == expected_rows(preds, target, shallow, 2, idf=idf)
    for row in rows:
        number = int(row["example"]) - 1
        references = target[number] if has_lists else [target[number]]
        assert row["input"] == f"input {number}"
        assert row["prediction"] == preds[number]
        assert row["reference"] == "\n".join(references)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(0, 6))
@settings(deadline=None, max_examples=60)
def test_no_place_is_chosen_twice_and_kinds_are_in_order(scores, count):
    chosen = choose_samples(torch.tensor(scores, dtype=torch.float32), count)

    places = [place for positions in chosen.values() for place in positions]
    assert len(set(places)) == len(places)
    values = {kind: [scores[place] for place in positions] for kind, positions in chosen.items()}
    ranked = sorted(scores)
    if len(scores) >= 3 * count:
        assert [len(part) for part in values.values()] == [count] * 3
    assert values["worst"] == ranked[: len(values["worst"])]
    assert values["best"] == ranked[::-1][: len(values["best"])]
    assert values["median"] == sorted(values["median"])
    if len(scores) > 2 and count:
        middles = {ranked[len(scores) // 2], ranked[(len(scores) - 1) // 2]}
        assert middles & set(values["median"])


@given(st.lists(st.sampled_from([1.0, 1 - 1.2e-7, 1 + 1.2e-7]), min_size=6, max_size=6))
@settings(deadline=None, max_examples=20)
def test_rounding_does_not_choose(scores):
    scores = torch.tensor([*scores, 0.2, 0.4, 0.6], dtype=torch.float32)

    assert choose_samples(scores, 2) == choose_samples(scores.round(decimals=1), 2)


@pytest.mark.parametrize("idf", [False, ["Return all members of", "Make a window"]])
def test_the_closest_reference_is_not_chosen_by_the_pole(minilm, tmp_path, idf):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=6, all_layers=True), layer=6, idf=idf)
    prediction, unrelated, related = "Construct a Ttk Panedwindow", "Return all members of", "Make a window"
    if not idf:
        assert metric.align(prediction, unrelated).f1 > metric.align(prediction, related).f1
    preds = [prediction, "", prediction]
    target = [[unrelated, "", related], [related], ["", " "]]
    module = Returns(preds, target, {"preds": preds, "target": target})
    tables = []

    samples = SampleLogger(3, 3, writer=lambda logger, table: tables.append(table))
    run_with(tmp_path, module, metric.encoder, samples, metric=metric)

    alignments = {sample.number: sample.alignment for sample in tables[0].samples}
    assert alignments[1].reference.tokens == metric.align(prediction, related).reference.tokens
    assert alignments[2] is None
    assert alignments[3] is None


def test_followed_examples_are_shown_every_time(pairs, encoder, tmp_path):
    samples = SampleLogger(1, follow=[4, 77, 2])
    module = chooser(pairs, val_sizes=(COUNT,))

    with pytest.warns(UserWarning, match=r"val_samples is without examples \[77\]"):
        run = run_with(tmp_path, module, encoder, samples, "fit", max_epochs=2)

    with (Path(run.logger.log_dir) / "metrics.csv").open() as file:
        steps = [row["step"] for row in csv.DictReader(file) if row["val_bertscore_f1"]]
    assert steps == ["2", "5"]
    tables = [name for name in files(tmp_path) if name.endswith(".csv")]
    assert tables == [f"val_samples_step_{step}.csv" for step in steps]
    for name in tables:
        rows = table(tmp_path, name.removesuffix(".csv"))
        assert [row["example"] for row in rows if row["kind"] == "followed"] == ["4", "2"]
        assert "input" not in rows[0]


# Lightning's ModelCheckpoint says so of each folder that has files.
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_validations_between_optimizer_steps_have_their_files(pairs, encoder, tmp_path, recwarn):
    samples = SampleLogger(1)
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    record = Record()
    data = loader(8, batch_size=1), loader(COUNT)

    for epochs, last in ((1, None), (2, tmp_path / "last.ckpt")):
        callbacks = [samples, BERTScoreCallback(BERTScore(encoder)), record, checkpoint]
        options = {"max_epochs": epochs, "accumulate_grad_batches": 4, "val_check_interval": 2}
        trainer(tmp_path, callbacks, **options).fit(chooser(pairs), *data, ckpt_path=last)

    ends = ["step_0", "step_0_validation_2", "step_1", "step_1_validation_4"]
    ends += ["step_2", "step_2_validation_6", "step_3", "step_3_validation_8"]
    assert len(record.scores) == 8
    names = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert names == [f"val_samples_{end}.csv" for end in ends]
    assert not [warning for warning in recwarn if "earlier run" in str(warning.message)]


# With other callbacks


def test_no_scorer_is_an_error_before_training(pairs, tmp_path):
    with pytest.raises(MisconfigurationException, match="SampleLogger needs a BERTScoreCallback with a BERTScore"):
        trainer(tmp_path, [SampleLogger()]).fit(chooser(pairs))


def test_each_score_and_loader_has_a_table(pairs, encoder, tmp_path):
    metrics = {"plain": BERTScore(encoder), "idf": BERTScore(encoder, idf=True)}
    callbacks = [SampleLogger(1, name=name) for name in metrics] + [BERTScoreCallback(metrics)]
    module = mixed(pairs, val_sizes=(COUNT, 4))

    trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path, "csv")).validate(module, verbose=False)

    for number, count in enumerate((COUNT, 4)):
        preds, target = module.choose(torch.arange(count))
        for name in metrics:
            rows = table(tmp_path, f"validate_{name}_samples_dataloader_idx_{number}_step_0")
            assert shown(rows) == expected_rows(preds, target, encoder, 1, idf=name == "idf")


# Inputs


def test_hugging_face_generators_provide_inputs(encoder, tmp_path):
    model, tokenizer = generator("bart")
    texts = ["the cat sat", "it rains", "returns a name", "a b c"]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    data = [{"input_ids": row, "labels": "a cat"} for row in ids]
    callbacks = [SampleLogger(1), BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(tokenizer, max_new_tokens=3))]

    run = trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path, "csv"))
    run.validate(WithModel(model), DataLoader(data, batch_size=2), verbose=False)

    rows = table(tmp_path)
    inputs = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [row["input"] for row in rows] == [inputs[int(row["example"]) - 1] for row in rows]


def test_inputs_are_what_the_step_returns_under_a_key(pairs, encoder, tmp_path):
    run_with(tmp_path, mixed(pairs), encoder, SampleLogger(1, inputs="target"))

    assert all(row["input"] == row["reference"] for row in table(tmp_path))


def test_inputs_that_are_token_ids_are_an_error(pairs, encoder, tmp_path):
    with pytest.raises(TypeError, match=r"inputs must be texts, got a tensor of shape \(3, 1\): decode token ids"):
        run_with(tmp_path, mixed(pairs), encoder, SampleLogger(inputs=lambda batch: batch[:, None]))
