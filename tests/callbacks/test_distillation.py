"""BestOfNDistillation in real training runs: targets of each epoch, workers, ranks, resumed runs and side effects."""

import json
import os
import socket
import warnings
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM

from bertscore_tm import FrozenEncoder
from bertscore_tm.callbacks import BestOfNDistillation
from bertscore_tm.losses import DistilledDataset, choose_targets, make_candidates, read_candidates
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["a cat sat", "it rains", "names of files", "the sum of a list", "hello", "a list"]
DATA = [{"text": text, "labels": f"own {i}"} for i, text in enumerate(TEXTS)]
SAMPLING = {"num_candidates": 4, "max_new_tokens": 5, "batch_size": 2}


def tokenize(rows):
    return dict(tiny_tokenizer(EVERY_FAMILY["bart"])([row["text"] for row in rows], padding=True, return_tensors="pt"))


def collate(rows):
    """A batch with the texts of its labels."""
    ids = tiny_tokenizer(EVERY_FAMILY["bart"])([row["labels"] for row in rows], padding=True, return_tensors="pt")
    return {**tokenize(rows), "labels": ids["input_ids"], "texts": [row["labels"] for row in rows]}


class Writer(pl.LightningModule):
    """A tiny generator; ``seen`` holds the target texts of each epoch."""

    def __init__(self, dataset, workers=0):
        super().__init__()
        self.model = randomised(AutoModelForSeq2SeqLM.from_config(tiny_config("bart"))).train()
        self.model.generation_config.eos_token_id = list(range(2, 80, 2))  # half of the tokens end a text
        self.model.generation_config.forced_eos_token_id = None
        self.model.generation_config.decoder_start_token_id = 0
        self.dataset, self.workers = dataset, workers
        self.seen, self.draws = {}, []

    def train_dataloader(self):
        return DataLoader(
            self.dataset, 2, collate_fn=collate, num_workers=self.workers, persistent_workers=self.workers > 0
        )

    def val_dataloader(self):
        return DataLoader([0], 1)

    def training_step(self, batch, batch_idx):
        assert self.model.training
        self.seen.setdefault(self.current_epoch, []).extend(batch.pop("texts"))
        self.draws.append(torch.rand(()).item())
        torch.manual_seed(self.global_step)  # a resumed run equals an unbroken one
        return self.model(**batch).loss

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.02)


def fit(
    folder,
    encoder,
    *callbacks,
    epochs=4,
    workers=0,
    ckpt_path=None,
    distil=True,
    probability=1.0,
    logger=False,
    **options,
):
    """Train and return the module."""
    dataset = DistilledDataset(DATA, probability=probability)
    settings = {"every_n_epochs": 2, **options.pop("settings", {})}
    distillation = BestOfNDistillation(
        dataset, TEXTS, tiny_tokenizer(EVERY_FAMILY["bart"]), tokenize, folder, encoder=encoder, **SAMPLING, **settings
    )
    torch.manual_seed(0)
    module = Writer(dataset if distil else DATA, workers)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[*([distillation] if distil else []), *callbacks],
        logger=logger,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return module


def targets_of(folder, epoch):
    lines = (folder / f"distillation_targets_epoch_{epoch}.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line)["target"] for line in lines]
    return [own["labels"] if target is None else target for own, target in zip(DATA, found, strict=True)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("unbroken")
    return folder, fit(folder / "best", encoder, logger=CSVLogger(folder))


def test_each_epoch_trains_on_the_targets_of_its_refresh(unbroken, encoder):
    folder, module = unbroken
    first, second = targets_of(folder / "best", 0), targets_of(folder / "best", 2)
    assert [own["labels"] for own in DATA] != first != second
    assert module.seen == {0: first, 1: first, 2: second, 3: second}
    assert not list((folder / "best").glob("*epoch_[134]*"))
    torch.manual_seed(0)
    model = Writer(None).model
    made = make_candidates(
        model, tiny_tokenizer(EVERY_FAMILY["bart"]), DATA, tokenize, folder / "again.jsonl", **SAMPLING
    )
    assert made == read_candidates(folder / "best/distillation_candidates_epoch_0.jsonl")
    chosen = choose_targets(made, TEXTS, encoder)
    assert [own["labels"] if one is None else one for own, one in zip(DATA, chosen.targets, strict=True)] == first
    (path,) = folder.rglob("metrics.csv")
    names, *rows = (line.split(",") for line in path.read_text(encoding="utf-8").splitlines())
    logged = {name: float(value) for name, value in zip(names, rows[0], strict=True)}
    assert logged["distillation_share"] == pytest.approx(chosen.num_replaced / len(DATA))
    assert logged["distillation_gain"] == pytest.approx(chosen.mean_gain)
    assert logged["distillation_refused"] == chosen.num_refused
    # The samples of a refresh have their own seed.
    made_with = [folder / f"best/distillation_candidates_epoch_{epoch}.jsonl.settings.json" for epoch in (0, 2)]
    assert [json.loads(path.read_text(encoding="utf-8"))["seed"] for path in made_with] == [0, 2]


def test_running_workers_get_the_new_targets(unbroken, tmp_path, encoder):
    module = fit(tmp_path, encoder, workers=2)
    assert module.seen == unbroken[1].seen


def test_training_is_the_same_where_no_target_is_replaced(tmp_path, encoder):
    with_callback, alone = (
        fit(tmp_path, encoder, epochs=3, distil=distil, probability=0.0) for distil in (True, False)
    )
    assert with_callback.seen == alone.seen
    assert with_callback.draws == alone.draws
    for ours, theirs in zip(with_callback.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("at_epoch_end", [True, False])
def test_a_resumed_run_trains_on_the_targets_of_its_epoch(unbroken, tmp_path, encoder, at_epoch_end):
    checkpoints = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at_epoch_end)
    fit(tmp_path / "best", encoder, checkpoints, epochs=3)
    resumed = fit(tmp_path / "best", encoder, ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert resumed.seen == {epoch: unbroken[1].seen[epoch] for epoch in (2, 3)}


def test_a_run_resumed_within_an_epoch_goes_on_with_its_targets(unbroken, tmp_path, encoder):
    checkpoints = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=4)
    fit(tmp_path / "best", encoder, checkpoints, epochs=3)
    resumed = fit(tmp_path / "best", encoder, epochs=3, ckpt_path=str(tmp_path / "step=4.ckpt"))
    assert resumed.seen[1]
    assert set(resumed.seen[1]) <= set(unbroken[1].seen[1])
    assert resumed.seen[2] == targets_of(tmp_path / "best", 2)


def test_a_checkpoint_without_the_callback_starts_it(tmp_path, encoder):
    fit(tmp_path, encoder, ModelCheckpoint(tmp_path, "last"), epochs=1, distil=False)
    resumed = fit(tmp_path / "best", encoder, epochs=2, ckpt_path=str(tmp_path / "last.ckpt"))
    assert resumed.seen == {1: targets_of(tmp_path / "best", 1)}


def test_missing_targets_of_a_checkpoint_are_named(tmp_path, encoder):
    fit(tmp_path / "best", encoder, ModelCheckpoint(tmp_path, "last"), epochs=1)
    with pytest.raises(MisconfigurationException, match=r"targets_epoch_0.jsonl, the targets of the checkpoint's"):
        fit(tmp_path / "elsewhere", encoder, ckpt_path=str(tmp_path / "last.ckpt"))


def test_the_first_epochs_may_keep_their_own_targets(tmp_path, encoder):
    module = fit(tmp_path, encoder, epochs=2, settings={"first_epoch": 1})
    assert module.seen == {0: [own["labels"] for own in DATA], 1: targets_of(tmp_path, 1)}


@pytest.mark.parametrize("options", [{"fast_dev_run": True}, {"fast_dev_run": 2}], ids=str)
def test_a_trial_run_samples_one_batch_in_its_own_files(unbroken, tmp_path, encoder, options):
    fit(tmp_path, encoder, epochs=1)
    kept = {file: file.read_bytes() for file in tmp_path.iterdir()}
    module = fit(tmp_path, encoder, **options)
    path = tmp_path / "distillation_candidates_fast_dev_run.jsonl"
    made = read_candidates(tmp_path / "distillation_candidates_epoch_0.jsonl")
    assert read_candidates(path) == made[: SAMPLING["batch_size"]]
    expected = [*targets_of(tmp_path, 0)[:2], *(row["labels"] for row in DATA[2:])]
    assert module.seen == {0: expected[: 2 * int(options["fast_dev_run"])]}
    assert {file: file.read_bytes() for file in kept} == kept


@pytest.mark.parametrize("options", [{"limit_train_batches": 2}, {"overfit_batches": 2}], ids=str)
def test_fewer_batches_train_on_their_targets(unbroken, tmp_path, encoder, options):
    module = fit(tmp_path, encoder, epochs=3, **options)
    assert module.seen[0] == module.seen[1] == targets_of(unbroken[0] / "best", 0)[:4]
    assert module.seen[2] == targets_of(tmp_path, 2)[:4]


class Stop(pl.Callback):
    """Stops training, as EarlyStopping does, before the callback after it ends the second epoch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.current_epoch >= 1


@pytest.mark.parametrize(("min_epochs", "epochs"), [(None, [0, 1]), (3, [0, 1, 2])])
def test_nothing_is_sampled_when_training_stops(tmp_path, encoder, min_epochs, epochs):
    module = fit(tmp_path, encoder, Stop(), min_epochs=min_epochs, settings={"every_n_epochs": 1})
    assert sorted(module.seen) == epochs
    assert len(list(tmp_path.glob("*targets*"))) == len(epochs)


def test_nothing_is_sampled_for_a_finished_run(tmp_path, encoder):
    fit(tmp_path / "none", encoder, epochs=0)
    assert not (tmp_path / "none").exists()
    fit(tmp_path / "steps", encoder, max_steps=3, settings={"every_n_epochs": 1})
    assert not list((tmp_path / "steps").glob("*epoch_1*"))
    fit(tmp_path / "best", encoder, ModelCheckpoint(tmp_path, "last"), epochs=2)
    before = sorted((tmp_path / "best").iterdir())
    assert fit(tmp_path / "best", encoder, epochs=2, ckpt_path=str(tmp_path / "last.ckpt")).seen == {}
    assert sorted((tmp_path / "best").iterdir()) == before


def fit_in_a_rank(rank, folder, minilm, port, checkpoints=None, **options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank), NODE_RANK="0")
    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=True)
    of_steps = ModelCheckpoint(checkpoints, "{step}", save_top_k=-1, every_n_train_steps=1)
    of_epochs = ModelCheckpoint(checkpoints, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    saving = [of_steps, of_epochs] if checkpoints else []
    options = options | {"devices": 2, "strategy": strategy}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = fit(folder, FrozenEncoder(minilm, num_layers=5), *saving, **options)
    assert not [str(one.message) for one in caught if "distillation" in str(one.message)]
    return module.seen


def fit_in_ranks(folder, minilm, **options):
    """Train in two ranks, and return the targets of each epoch in any order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = run_ranks(partial(fit_in_a_rank, **options), 2, folder, minilm, port)
    # Lightning shuffles the loader's examples over the ranks.
    return {epoch: sorted([*first[epoch], *second[epoch]]) for epoch in first}


@pytest.mark.distributed
def test_two_ranks_train_on_the_targets_of_one(unbroken, tmp_path, minilm):
    seen = fit_in_ranks(tmp_path, minilm, epochs=1)
    first = targets_of(unbroken[0] / "best", 0)
    assert targets_of(tmp_path, 0) == first
    assert seen == {0: sorted(first)}


@pytest.mark.distributed
def test_two_ranks_resume_between_refreshes(tmp_path, minilm, encoder):
    checkpoints = tmp_path / "checkpoints"
    whole = fit_in_ranks(tmp_path / "best", minilm, checkpoints=checkpoints)
    assert whole[0] == whole[1] != whole[2] == whole[3]
    # Between two refreshes at the end of an epoch, after its last step just before a refresh, and within an epoch.
    for name, finished in (("epoch=0", 1), ("step=4", 2), ("step=5", 2)):
        resumed = fit_in_ranks(tmp_path / "best", minilm, ckpt_path=str(checkpoints / f"{name}.ckpt"))
        assert sorted(resumed) == list(range(finished, 4))
        assert set(resumed[finished]) <= set(whole[finished])
        assert all(resumed[epoch] == whole[epoch] for epoch in range(finished + 1, 4))
    # On one rank.
    resumed = fit(tmp_path / "best", encoder, epochs=2, ckpt_path=str(checkpoints / "epoch=0.ckpt"))
    assert {epoch: sorted(seen) for epoch, seen in resumed.seen.items()} == {1: whole[1]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every_n_epochs": 0}, "every_n_epochs must be at least 1, got 0"),
        ({"references": TEXTS[:2]}, "references must have one entry per example, got 2 for 6 examples"),
        ({"min_gain": -0.1}, "min_gain must be at least 0, got -0.1"),
    ],
)
def test_errors_name_the_argument(tmp_path, encoder, settings, said):
    arguments = {"references": TEXTS, "max_new_tokens": 5, "encoder": encoder, **settings}
    with pytest.raises(ValueError, match=said):
        BestOfNDistillation(
            DistilledDataset(DATA),
            tokenizer=tiny_tokenizer(EVERY_FAMILY["bart"]),
            collate=tokenize,
            folder=tmp_path,
            **arguments,
        )


def test_a_module_without_the_model_is_refused(tmp_path, encoder):
    said = r"pl_module\.net, which is not a .*: pass model= with the dotted path of the model$"
    with pytest.raises(MisconfigurationException, match=said):
        fit(tmp_path, encoder, settings={"model": "net"})


def test_a_new_trainer_starts_anew_and_sharded_models_are_refused(tmp_path, encoder):
    callback = BestOfNDistillation(
        DistilledDataset(DATA),
        TEXTS,
        tiny_tokenizer(EVERY_FAMILY["bart"]),
        tokenize,
        tmp_path,
        encoder=encoder,
        max_new_tokens=5,
    )
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    callback.load_state_dict({"refreshed_epoch": 3, "logged": {"distillation_share": 0.5}})
    callback.setup(trainer, Writer(None), "fit")
    assert callback.state_dict() == {"refreshed_epoch": None, "logged": {}}
    trainer.strategy.__class__ = FSDPStrategy
    with pytest.raises(MisconfigurationException, match="FSDPStrategy does not keep: use DDP"):
        callback.setup(trainer, Writer(None), "fit")
