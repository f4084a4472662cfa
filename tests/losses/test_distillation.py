"""Best-of-n distillation: made candidates, chosen targets and the data set that holds them."""

import json
from importlib.util import find_spec

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from bertscore_tm import bert_score
from bertscore_tm.losses import (
    Candidates,
    DistilledDataset,
    DistilledTargets,
    choose_targets,
    distillation,
    make_candidates,
    read_candidates,
)
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = [{"text": text} for text in ("a cat sat", "it rains", "names of files", "the sum", "hello", "a list", "x y z")]
OPTIONS = {"num_candidates": 3, "max_new_tokens": 5, "batch_size": 2}


def make_model(seed=0):
    model = randomised(AutoModelForSeq2SeqLM.from_config(tiny_config("bart")))
    with torch.no_grad():
        next(model.parameters()).mul_(1 - seed / 10)
    # Half of the tokens end a text.
    model.generation_config.eos_token_id = list(range(2, 80, 2))
    model.generation_config.forced_eos_token_id = None
    model.generation_config.decoder_start_token_id = 0
    return model


def make_tokenizer():
    return tiny_tokenizer(EVERY_FAMILY["bart"])


def collate(rows):
    return dict(make_tokenizer()([row["text"] for row in rows], padding=True, return_tensors="pt"))


def make(path, model=None, **options):
    return make_candidates(model or make_model(), make_tokenizer(), DATA, collate, path, **OPTIONS | options)


def make_in_a_rank(rank, path):
    torch.manual_seed(rank)
    return make(path)


def test_candidates_are_complete_samples_and_the_greedy_text(tmp_path):
    path, model = tmp_path / "candidates.jsonl", make_model()
    torch.manual_seed(5)
    expected_draw = torch.rand(1)
    torch.manual_seed(5)
    made = make(path, model)
    assert torch.rand(1) == expected_draw
    assert len(made) == len(DATA)
    counts = [len(one.candidates) for one in made]
    # Texts without an end token are left out.
    assert 0 < sum(counts) < 3 * len(DATA)
    tokenizer = make_tokenizer()
    inputs = collate(DATA[2:3])
    greedy = model.generate(**inputs, max_new_tokens=5, do_sample=False, num_beams=1)
    assert made[2].greedy == tokenizer.decode(greedy[0, 1:], skip_special_tokens=True)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["index"] for record in records] == list(range(len(DATA)))
    assert read_candidates(path) == made
    assert sorted(file.name for file in tmp_path.iterdir()) == ["candidates.jsonl", "candidates.jsonl.settings.json"]
    assert make(tmp_path / "other.jsonl", seed=1) != made


def test_a_stopped_run_goes_on_with_the_same_candidates(tmp_path, monkeypatch):
    whole = make(tmp_path / "whole.jsonl")
    sample, calls = distillation._sample, []

    def stopping(*args):
        calls.append(args[-1])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args)

    monkeypatch.setattr(distillation, "_sample", stopping)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "stopped.jsonl")
    (partial,) = tmp_path.glob(".stopped*.partial")
    with partial.open("a") as file:
        file.write('[{"index": 4')
    assert make(tmp_path / "stopped.jsonl") == whole
    assert calls[2:] == [(0, 4), (0, 4), (0, 6)]
    # A complete file is read.
    assert make(tmp_path / "stopped.jsonl") == whole
    assert len(calls) == 5
    with pytest.raises(ValueError, match="was made by another model or with other settings"):
        make(tmp_path / "stopped.jsonl", num_candidates=4)
    with pytest.raises(ValueError, match="was made by another model"):
        make(tmp_path / "stopped.jsonl", model=make_model(seed=1))


def test_a_second_run_is_refused_while_one_writes(tmp_path, monkeypatch):
    sample, refused = distillation._sample, []

    def start_again(*args):
        with pytest.raises(OSError, match=r"another run is writing .*candidates\.jsonl\.0\.partial: wait"):
            make(tmp_path / "candidates.jsonl")
        refused.append(args)
        return sample(*args)

    monkeypatch.setattr(distillation, "_sample", start_again)
    assert len(make(tmp_path / "candidates.jsonl")) == len(DATA)
    assert len(refused) == 4


@pytest.mark.parametrize("changed", ["first", "last", "language"])
def test_candidates_of_other_examples_or_languages_are_not_read(tmp_path, monkeypatch, changed):
    path, model = tmp_path / "candidates.jsonl", make_model()
    make(path, model)
    if changed == "language":
        model.generation_config.forced_bos_token_id = 9
    else:
        others = list(DATA)
        others[0 if changed == "first" else -1] = {"text": "rain"}
        monkeypatch.setitem(globals(), "DATA", others)
    with pytest.raises(ValueError, match="other settings, examples or special tokens"):
        make(path, model)


def test_labels_and_decoder_inputs_of_a_collator_do_not_reach_the_candidates(tmp_path):
    def collate_for_training(rows):
        inputs = collate(rows)
        return inputs | {"labels": inputs["input_ids"], "decoder_input_ids": inputs["input_ids"]}

    path = tmp_path / "candidates.jsonl"
    made = make_candidates(make_model(), make_tokenizer(), DATA, collate_for_training, path, **OPTIONS)
    assert made == make(tmp_path / "plain.jsonl")


def test_overwriting_replaces_candidates_of_other_settings_only(tmp_path, monkeypatch):
    path = tmp_path / "candidates.jsonl"
    first = make(path)
    sample, calls = distillation._sample, []
    monkeypatch.setattr(distillation, "_sample", lambda *args: calls.append(args) or sample(*args))
    assert make(path, overwrite=True) == first
    assert not calls
    replaced = make(path, overwrite=True, seed=1)
    assert replaced == make(tmp_path / "fresh.jsonl", seed=1)
    assert replaced == read_candidates(path) != first


def test_candidates_of_another_model_are_not_resumed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(distillation, "_merge", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "candidates.jsonl", model=make_model(seed=1))
    assert make(tmp_path / "candidates.jsonl") == make(tmp_path / "fresh.jsonl")


@pytest.mark.distributed
def test_two_ranks_make_what_one_does(tmp_path):
    alone = make(tmp_path / "one.jsonl")
    first, second = run_ranks(make_in_a_rank, 2, str(tmp_path / "two.jsonl"))
    assert first == second == alone


def test_targets_beat_the_greedy_text(encoder):
    references = ["the cat sat down", ["it rains", "it is raining"], "a list of names", "stocks fell"]
    candidates = [
        Candidates("a dog", ["a cat sat", "the cat sat", "", "the cat " * 9]),
        Candidates("it rains", ["it rains", "it snows"]),
        Candidates("a list", []),
        Candidates("stocks", ["stocks rose", "stocks fell today"]),
    ]
    chosen = choose_targets(candidates, references, encoder)
    assert chosen.targets == ["the cat sat", None, None, "stocks fell today"]
    f1 = bert_score(["the cat sat", "a dog"], ["the cat sat down"] * 2, encoder)["f1"]
    assert chosen.gains[0].item() == pytest.approx((f1[0] - f1[1]).item(), abs=1e-6)
    assert chosen.gains.isnan().tolist() == [False, True, True, False]
    assert chosen.num_refused == 2
    assert str(chosen).startswith("2 of 4 targets replaced, 0.")
    least = float(chosen.gains[0]) + 1e-4
    stricter = choose_targets(candidates, references, encoder, min_gain=least)
    assert stricter.targets[0] is None
    loose = choose_targets(candidates, references, encoder, max_repetition=1.0)
    assert loose.num_refused == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_targets_are_replaced_with_the_probability_in_every_worker(workers):
    data = [{"labels": "own", "index": i} for i in range(400)]
    targets = [None if i % 4 == 0 else "best" for i in range(400)]
    distilled = DistilledDataset(data, targets, probability=0.3)
    loader = DataLoader(distilled, batch_size=50, num_workers=workers, persistent_workers=workers > 0)
    drawn = []
    for epoch in (0, 1, 0):
        distilled.set_epoch(epoch)
        drawn.append([label for batch in loader for label in batch["labels"]])
    assert drawn[0] == drawn[2] != drawn[1]
    for labels in drawn:
        assert all(label == "own" for label in labels[::4])
        assert 60 < labels.count("best") < 120
    assert data[1]["labels"] == "own"


@pytest.mark.parametrize("workers", [0, 2])
def test_running_workers_read_new_targets(tmp_path, workers):
    distilled = DistilledDataset([{"labels": f"own {i}"} for i in range(8)], probability=1.0)
    loader = DataLoader(distilled, batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    seen = [[label for batch in loader for label in batch["labels"]]]
    for number in (1, 2):
        targets = ["grüße" if i == number else None for i in range(8)]
        gains = torch.tensor([0.5 if i == number else torch.nan for i in range(8)])
        DistilledTargets(targets, gains, 0).write(tmp_path / "targets.jsonl")
        distilled.read_targets(tmp_path / "targets.jsonl")
        seen.append([label for batch in loader for label in batch["labels"]])
    own = [f"own {i}" for i in range(8)]
    assert seen == [own, [own[0], "grüße", *own[2:]], [*own[:2], "grüße", *own[3:]]]
    record = json.loads((tmp_path / "targets.jsonl").read_text(encoding="utf-8").splitlines()[2])
    assert record == {"index": 2, "target": "grüße", "gain": 0.5}
    DistilledTargets([None], torch.tensor([torch.nan]), 0).write(tmp_path / "other.jsonl")
    with pytest.raises(ValueError, match="one entry per example, got 1 for 8 examples"):
        distilled.read_targets(tmp_path / "other.jsonl")


class DrawTargets(TrainerCallback):
    def __init__(self, distilled):
        self.distilled = distilled

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.distilled.set_epoch(round(state.epoch or 0))


@pytest.mark.skipif(find_spec("accelerate") is None, reason="Hugging Face's Trainer requires accelerate")
def test_hugging_faces_trainer_trains_on_the_targets(tmp_path):
    data = [{"text": row["text"], "labels": f"own {i}"} for i, row in enumerate(DATA)]
    distilled = DistilledDataset(data, [f"best {i}" for i in range(len(DATA))], probability=0.5)
    seen = []

    def collate_labels(rows):
        seen.append([row["labels"] for row in rows])
        labels = make_tokenizer()([row["labels"] for row in rows], padding=True, return_tensors="pt")["input_ids"]
        return {**collate(rows), "labels": labels}

    settings = {"num_train_epochs": 3, "per_device_train_batch_size": len(DATA), "remove_unused_columns": False}
    arguments = Seq2SeqTrainingArguments(tmp_path, use_cpu=True, save_strategy="no", report_to=[], **settings)
    Seq2SeqTrainer(make_model(), arguments, collate_labels, distilled, callbacks=[DrawTargets(distilled)]).train()
    expected = []
    for epoch in range(3):
        distilled.set_epoch(epoch)
        expected.append(sorted(row["labels"] for row in distilled))
    assert [sorted(labels) for labels in seen] == expected
    assert expected[0] != expected[1]


def test_own_examples_are_replaced_by_a_function():
    distilled = DistilledDataset([(1, "a"), (2, "b")], ["c", "d"], lambda row, text: (row[0], text), probability=1.0)
    assert list(distilled) == [(1, "c"), (2, "d")]
    assert distilled[-1] == (2, "d")
    assert list(DistilledDataset([(1, "a")], ["c"], probability=0.0)) == [(1, "a")]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: make("x.jsonl", num_candidates=0), "num_candidates must be at least 1, got 0"),
        (lambda: choose_targets([Candidates("a", [])], ["a", "b"]), "candidates of 1 examples and references of 2"),
        (lambda: choose_targets([], [], min_gain=-1.0), "min_gain must be at least 0"),
        (lambda: DistilledDataset([1], []), "targets must have one entry per example, got 0 for 1 examples"),
        (lambda: DistilledDataset([1], [None], probability=2.0), "probability must be between 0 and 1, got 2.0"),
        (
            lambda: DistilledDataset(DATA[:1], ["b"], target_key="summary", probability=1.0)[0],
            r"the examples have no 'summary' to replace, but \['text'\]: pass another target_key=",
        ),
    ],
)
def test_errors_name_the_argument(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_inputs_that_are_not_tensors_are_named(tmp_path):
    def with_texts(rows):
        return {**collate(rows), "summary": [row["text"] for row in rows]}

    with pytest.raises(TypeError, match="collate must return the model's inputs only, as tensors: leave out summary"):
        make_candidates(make_model(), make_tokenizer(), DATA, with_texts, tmp_path / "x.jsonl", **OPTIONS)
