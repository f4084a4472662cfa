"""Small Lightning modules, which ranks import, and runs: trainers, strategies, and comparisons of what they leave."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.functional import SCORE_NAMES
from tests.support.models import EVERY_FAMILY, tiny_generator, tiny_tokenizer

# Of the examples, and of the encoder.
COUNT, LAYER = 9, 2


# Data: a batch is a tensor of the numbers of examples.


def loader(count: int, first: int = 0, batch_size: int = 3) -> DataLoader[int]:
    """Return batches of the numbers of consecutive examples."""
    return DataLoader(range(first, first + count), batch_size=batch_size)


class Stream(IterableDataset[int]):
    """Numbers of examples in a data set without a length."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def stream(numbers: Sequence[int]) -> DataLoader[int]:
    """Return batches of example numbers from a data set without a length."""
    return DataLoader(Stream(numbers), batch_size=3)


# Modules that choose texts


class Chooser(pl.LightningModule):
    """Learns the reference of each example; the text that it chooses is its "generated" text.

    ``seen`` holds the batches scored last, (loader, predictions, references), and ``written`` what ``generate_wildly``
    made of them.
    """

    def __init__(
        self,
        choices: Sequence[str],
        references: Sequence[Any],
        val_sizes: Sequence[int] = (7,),
        keys: tuple[str, str] = ("preds", "target"),
        lr: float = 0.05,
    ) -> None:
        super().__init__()
        self.choices, self.references = list(choices), list(references)
        self.val_sizes, self.keys, self.lr = tuple(val_sizes), keys, lr
        self.seen: list[tuple[int, list[str], list[Any]]] = []
        self.written: list[tuple[int, list[str], list[Any]]] = []
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("inputs", torch.randn(len(self.references), 8, generator=generator))
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, len(self.choices)))

    def choose(self, numbers: Tensor) -> tuple[list[str], list[Any]]:
        preds = [self.choices[i] for i in self.net(self.inputs[numbers]).argmax(-1).tolist()]
        return preds, [self.references[i] for i in numbers.tolist()]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(self.inputs[batch]), batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def evaluation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        texts = self.choose(batch)
        self.seen.append((dataloader_idx, *texts))
        return {**dict(zip(self.keys, texts, strict=True)), "index": batch}

    def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.evaluation_step(batch, batch_idx, dataloader_idx)

    test_step = validation_step

    def on_validation_epoch_start(self) -> None:
        self.seen.clear()
        self.written.clear()

    on_test_epoch_start = on_validation_epoch_start

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.lr)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(len(self.references)), batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        loaders = [loader(size) for size in self.val_sizes]
        return loaders[0] if len(loaders) == 1 else loaders

    test_dataloader = val_dataloader


class ShardedChooser(Chooser):
    """A Chooser that shards its net over the strategy's device mesh."""

    def configure_model(self) -> None:
        if self.device_mesh is not None and not isinstance(self.net[0].weight, DTensor):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class Steady(Chooser):
    """A Chooser whose training depends on the step number alone: a resumed run equals an unbroken one."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        torch.manual_seed(self.global_step)
        return super().training_step(batch, batch_idx)

    def train_dataloader(self) -> DataLoader[int]:
        return loader(len(self.references))


class Quality(Chooser):
    """In epoch e the first ``qualities[e]`` predictions are right and the others are all the same wrong text."""

    def __init__(self, choices: Sequence[str], references: Sequence[Any], qualities: Sequence[int]) -> None:
        super().__init__(choices, references)
        self.qualities = list(qualities)

    def choose(self, numbers: Tensor) -> tuple[list[str], list[Any]]:
        right = 0 if self.trainer.sanity_checking else self.qualities[self.current_epoch]
        references = [self.references[i] for i in numbers.tolist()]
        preds = [self.references[i] if i < right else self.choices[-1] for i in numbers.tolist()]
        return preds, references


class Returns(Chooser):
    """A Chooser whose steps return a given value; by default None, so that its texts come from ``generate``."""

    def __init__(self, choices: Sequence[str], references: Sequence[Any], returned: Any = None, **options: Any) -> None:
        super().__init__(choices, references, **options)
        self.returned = returned

    def evaluation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.returned


def chooser(
    pairs: tuple[list[str], list[str]],
    *args: Any,
    count: int = COUNT,
    kind: type[Chooser] = Chooser,
    references: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Chooser:
    """Return a module over the first pairs, with the same initial weights and random states in every call."""
    pl.seed_everything(7, verbose=False)
    return kind(pairs[0][:count], references or pairs[1][:count], *args, **kwargs)


def generate(pl_module: Chooser, batch: Tensor) -> tuple[list[str], list[Any]]:
    """Return what the step would return."""
    return pl_module.choose(batch)


def generate_wildly(pl_module: Chooser, batch: Tensor) -> tuple[list[str], list[Any]]:
    """Generate with side effects on modes and random states, and keep the texts."""
    pl_module.train()
    torch.set_grad_enabled(True)
    preds, references = pl_module.choose(batch)
    noise = torch.rand(3).sum() + random.random() + np.random.rand()
    texts = preds if noise < 2 else preds[::-1], references
    pl_module.written.append((0, *texts))
    return texts


def texts_of(
    batches: Sequence[tuple[int, list[str], list[Any]]], number: int | None = None
) -> tuple[list[str], list[Any]]:
    """Return the predictions and references of one loader, or of all."""
    preds: list[str] = []
    target: list[Any] = []
    for loader_number, batch_preds, batch_target in batches:
        if number is None or number == loader_number:
            preds += batch_preds
            target += batch_target
    return preds, target


# Other modules


class Logs(pl.LightningModule):
    """Logs given values of a key, one per epoch; ``None`` logs nothing."""

    def __init__(self, values: Any, key: str = "val_bertscore_f1", hook: str = "on_validation_epoch_end") -> None:
        super().__init__()
        self.values, self.key, self.hook = values, key, hook
        self.layer = nn.Linear(1, 1)
        self.epochs = 0

    def log_value(self, hook: str) -> None:
        value = self.values[min(self.current_epoch, len(self.values) - 1)]
        if value is not None and hook == self.hook and not self.trainer.sanity_checking:
            self.log(self.key, torch.tensor(value))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.log_value("training_step")
        return self.layer(batch.float()[:, None]).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log_value("validation_step")

    def on_validation_epoch_end(self) -> None:
        self.log_value("on_validation_epoch_end")

    def on_train_epoch_end(self) -> None:
        self.log_value("on_train_epoch_end")
        self.epochs += 1

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self) -> DataLoader[int]:
        return loader(2)

    val_dataloader = train_dataloader


class WithModel(pl.LightningModule):
    """Holds a generator, and leaves generating to a callback."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        return None


def generator(family: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a tiny random model that generates up to the length limit, and its tokenizer."""
    model = tiny_generator(family)
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 0
    return model, tiny_tokenizer(EVERY_FAMILY[family])


# Runs


def trainer(folder: Path, callbacks: Sequence[pl.Callback] = (), **kwargs: Any) -> pl.Trainer:
    """Return a trainer on the processor, without progress bar and summary."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "max_epochs": 2,
        "log_every_n_steps": 1,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": any(isinstance(callback, pl.callbacks.ModelCheckpoint) for callback in callbacks),
    }
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}
    return pl.Trainer(callbacks=list(callbacks), **(defaults | quiet | kwargs))


class FSDPOnCPU(FSDPStrategy):
    """Lightning's FSDP on the processor, where both it and torch assume an accelerator."""

    def _setup_model(self, model: nn.Module) -> nn.Module:
        device = torch.device("cpu")
        return FullyShardedDataParallel(
            model, sharding_strategy=self.sharding_strategy, device_id=device, **self.kwargs
        )


def strategy_on_cpu(name: str, wrapped: set[type[nn.Module]] | None = None) -> Strategy:
    """Return a strategy for two processes; FSDP wraps each module of the classes ``wrapped``."""
    if name == "ddp":
        # Synchronised buffers would make ranks with fewer batches hang in the forward pass of validation.
        return DDPStrategy(process_group_backend="gloo", broadcast_buffers=False)
    if name == "fsdp":
        return FSDPOnCPU(process_group_backend="gloo", auto_wrap_policy=wrapped)
    data, tensor = (2, 1) if name == "fully_shard" else (1, 2)
    return ModelParallelStrategy(data, tensor, save_distributed_checkpoint=False, process_group_backend="gloo")


class Record(pl.Callback):
    """Keeps the F1 of every validation."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.scores.append(trainer.callback_metrics["val_bertscore_f1"].item())


class Keep(pl.Callback):
    """Keeps the state at the end of training: weights, optimizers, random states and modes."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        states = []
        for optimizer in trainer.optimizers:
            for entry in optimizer.state_dict()["state"].values():
                states.append([gathered(value) for value in entry.values() if isinstance(value, Tensor)])
        self.found = {
            "weights": weights(trainer.strategy.model),  # type: ignore[arg-type]
            "optimizers": states,
            **random_states_and_flags(pl_module),
            "modes": [torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")],
        }


# What a run leaves


def gathered(tensor: Tensor) -> Tensor:
    """Return a tensor, put together from its shards if it has any."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def weights(module: nn.Module) -> Tensor:
    """Return all weights: gathered from the shards of ``fully_shard``, for FSDP those of this rank."""
    return torch.cat([gathered(parameter).detach().flatten() for parameter in module.parameters()])


def random_states_and_flags(module: nn.Module) -> dict[str, Any]:
    """Return the random states, and which modules are in training mode."""
    state: Any = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [*state[1].tolist(), state[2]],
        "flags": [part.training for part in module.modules()],
    }


def differences(state: Any, other: Any) -> list[str]:
    """Return the names of the entries that differ in any bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor):
            return a.dtype == b.dtype and torch.equal(a, b)
        if isinstance(a, list):
            return len(a) == len(b) and all(map(equal, a, b))
        return bool(a == b)

    assert state.keys() == other.keys() != set()
    return [name for name in state if not equal(state[name], other[name])]


def logged(metrics: Any, name: str = "bertscore", stage: str = "val", suffix: str = "") -> list[float]:
    """Return the logged precision, recall and F1 of a metric."""
    return [float(metrics[f"{stage}_{name}_{score}{suffix}"]) for score in SCORE_NAMES]


def means(preds: Sequence[str], target: Sequence[Any], encoder: FrozenEncoder, **options: Any) -> list[float]:
    """Return the mean scores of all texts by ``bert_score``."""
    scores = bert_score(list(preds), list(target), encoder, **options)
    return [scores[score].mean().item() for score in SCORE_NAMES]


def expected_means(batches, encoder, number=None, **options):
    """The mean scores of the texts of one loader, or of all."""
    preds, references = texts_of(batches, number)
    return pytest.approx(means(preds, references, encoder, **options), abs=1e-6)
