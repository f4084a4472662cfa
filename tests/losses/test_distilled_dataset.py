"""The data set of chosen targets: draws, workers, other data sets around and within it, and Hugging Face's Trainer."""

import multiprocessing
from importlib.util import find_spec

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset
from transformers import BatchEncoding, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from bertscore_tm.losses import DistilledDataset, DistilledTargets, make_candidates
from tests.losses.test_distillation import DATA, collate, make_model, make_tokenizer
from tests.support.ranks import RANK_IMPORTS

pytestmark = pytest.mark.usefixtures("one_thread")


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
        path = tmp_path / ("longer_name.jsonl" if number == 1 else "targets.jsonl")
        DistilledTargets(targets, gains, 0).write(path)
        distilled.read_targets(path)
        seen.append([label for batch in loader for label in batch["labels"]])
    own = [f"own {i}" for i in range(8)]
    assert seen == [own, [own[0], "grüße", *own[2:]], [*own[:2], "grüße", *own[3:]]]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1:3] == [
        '{"index": 1, "target": null, "gain": null}',
        '{"index": 2, "target": "grüße", "gain": 0.5}',
    ]
    DistilledTargets([None], torch.tensor([torch.nan]), 0).write(tmp_path / "other.jsonl")
    with pytest.raises(ValueError, match="one entry per example, got 1 for 8 examples"):
        distilled.read_targets(tmp_path / "other.jsonl")


class Table:
    """Rows as Hugging Face's datasets hold them: columns, read row by row or several rows at once."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def read(dataset, workers=0, context=None):
    """Return the labels of an epoch."""
    loader = DataLoader(dataset, 3, num_workers=workers, multiprocessing_context=context, collate_fn=list)
    return [row["labels"] for batch in loader for row in batch]


OWN = [f"own {i}" for i in range(8)]
BEST = [None if i % 3 == 0 else f"best {i}" for i in range(8)]
MIXED = [own if best is None else best for own, best in zip(OWN, BEST, strict=True)]


@pytest.mark.parametrize("workers", [0, 2])
def test_tables_subsets_and_concatenations_keep_each_example_its_target(workers):
    table = Table(text=[str(i) for i in range(8)], labels=OWN)
    distilled = DistilledDataset(table, BEST, probability=1.0)
    assert read(distilled, workers) == MIXED
    assert read(Subset(distilled, [5, 0, 1]), workers) == [MIXED[5], MIXED[0], MIXED[1]]
    assert read(ConcatDataset([distilled, Table(labels=["more"])]), workers) == [*MIXED, "more"]
    inner = DistilledDataset(Subset(table, [5, 0, 1]), ["a", None, "b"], probability=1.0)
    assert read(inner, workers) == ["a", "own 0", "b"]
    assert read(Table(labels=OWN)) == OWN
    assert table.columns["labels"] == OWN


@pytest.mark.distributed
def test_running_workers_with_a_pickled_copy_get_epochs_and_targets(tmp_path):
    # As spawned ones, which would import everything anew.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(RANK_IMPORTS)
    distilled = DistilledDataset([{"labels": own} for own in OWN], BEST, probability=0.5)
    loader = DataLoader(
        distilled, 4, num_workers=2, persistent_workers=True, multiprocessing_context=context, collate_fn=list
    )
    seen, expected = [], []
    for epoch in range(3):
        distilled.set_epoch(epoch)
        if epoch == 2:
            DistilledTargets([f"new {i}" for i in range(8)], torch.ones(8), 0).write(tmp_path / "targets.jsonl")
            distilled.read_targets(tmp_path / "targets.jsonl")
        seen.append([row["labels"] for batch in loader for row in batch])
        expected.append([row["labels"] for row in distilled])
    assert seen == expected
    assert expected[0] != expected[1]
    assert any(label.startswith("new") for label in expected[2])


class DrawTargets(TrainerCallback):
    def __init__(self, distilled):
        self.distilled = distilled

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.distilled.set_epoch(int(state.epoch or 0))


class Recorder(Seq2SeqTrainer):
    """``seen`` has the numbers of the examples of each epoch, and whether their targets were replaced."""

    seen: dict[int, dict[int, bool]]

    def compute_loss(self, model, inputs, **options):
        marks = inputs.pop("marks").tolist()
        # The epoch of a step that is not yet counted.
        epoch = self.state.global_step * self.args.per_device_train_batch_size // 8
        self.seen.setdefault(epoch, {}).update((number, bool(is_best)) for number, is_best in marks)
        return super().compute_loss(model, inputs, **options)


def collate_labels(rows):
    texts = [row["labels"] for row in rows]
    labels = make_tokenizer()(texts, padding=True, return_tensors="pt")["input_ids"]
    marks = torch.tensor([[int(text.split()[1]), text.startswith("best")] for text in texts])
    return {**collate(rows), "labels": labels, "marks": marks}


@pytest.mark.skipif(find_spec("accelerate") is None, reason="Hugging Face's Trainer requires accelerate")
@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_faces_trainer_trains_on_the_targets_also_when_it_resumes(tmp_path, workers):
    data = [{"text": DATA[i % len(DATA)]["text"], "labels": f"own {i}"} for i in range(8)]
    distilled = DistilledDataset(data, [f"best {i}" for i in range(8)], probability=0.5)
    expected = []
    for epoch in range(3):
        distilled.set_epoch(epoch)
        expected.append({i: row["labels"].startswith("best") for i, row in enumerate(distilled)})
    assert expected[0] != expected[1] != expected[2]

    def train(checkpoint=None):
        distilled.set_epoch(9)
        arguments = Seq2SeqTrainingArguments(
            tmp_path,
            use_cpu=True,
            num_train_epochs=3,
            per_device_train_batch_size=2,
            save_steps=7,  # within the second epoch
            remove_unused_columns=False,
            report_to=[],
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
        )
        trainer = Recorder(make_model(), arguments, collate_labels, distilled, callbacks=[DrawTargets(distilled)])
        trainer.seen = {}
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.seen

    assert train() == dict(enumerate(expected))
    resumed = train(str(tmp_path / "checkpoint-7"))
    assert len(resumed[1]) == 2
    assert resumed[1].items() <= expected[1].items()
    assert resumed[2] == expected[2]


def test_own_examples_are_replaced_by_a_function():
    distilled = DistilledDataset([(1, "a"), (2, "b")], ["c", "d"], lambda row, text: (row[0], text), probability=1.0)
    assert list(distilled) == [(1, "c"), (2, "d")]
    assert distilled[-1] == (2, "d")
    assert list(DistilledDataset([(1, "a")], ["c"], probability=0.0)) == [(1, "a")]
    encoded = DistilledDataset([BatchEncoding({"labels": "a"})], ["b"], probability=1.0)
    assert list(encoded) == [{"labels": "b"}]


@pytest.mark.parametrize(
    ("example", "kind", "said"),
    [
        (
            {"text": "a"},
            ValueError,
            r"the examples have no 'labels' to replace, but \['text'\]: pass another target_key=",
        ),
        ((1, "labels"), TypeError, "the examples are not mappings but tuple: pass replace="),
        (
            {"labels": [5, 6]},
            TypeError,
            "'labels' of the examples is not a text but list: pass .* replace= with a func",
        ),
    ],
)
def test_examples_without_a_target_text_are_refused(example, kind, said):
    with pytest.raises(kind, match=said):
        DistilledDataset([example], probability=0.5)


class Stream(IterableDataset):
    """Examples without a fixed place."""

    def __iter__(self):
        return iter(DATA)


def test_data_sets_that_can_only_be_iterated_are_refused(tmp_path):
    said = r"dataset is a Stream without a length: .* pass a map-style data set, such as list\(dataset\)"
    with pytest.raises(TypeError, match=said):
        DistilledDataset(Stream(), target_key="text")
    with pytest.raises(TypeError, match=said):
        make_candidates(make_model(), make_tokenizer(), Stream(), collate, tmp_path / "x.jsonl", max_new_tokens=5)
