"""Small Lightning modules, which ranks import."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.support.ranks import RANK_IMPORTS


class Numbers(Dataset[int]):
    """Numbers of the examples: a batch is a tensor of numbers."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> int:
        return self.first + i


def loader(count: int, first: int = 0, batch_size: int = 3) -> DataLoader[int]:
    return DataLoader(Numbers(count, first), batch_size=batch_size)


class Chooser(pl.LightningModule):
    """Learns the reference of each example; the text that it chooses is its "generated" text.

    ``seen`` holds the batches scored last: (loader, predictions, references).
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
        return dict(zip(self.keys, texts, strict=True))

    validation_step = evaluation_step
    test_step = evaluation_step

    def on_validation_epoch_start(self) -> None:
        self.seen.clear()

    on_test_epoch_start = on_validation_epoch_start

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.lr)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(Numbers(len(self.references)), batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        loaders = [loader(size) for size in self.val_sizes]
        return loaders[0] if len(loaders) == 1 else loaders

    test_dataloader = val_dataloader


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
        return [
            reference if i < right else self.choices[-1]
            for i, reference in zip(numbers.tolist(), references, strict=True)
        ], references


class Returns(Chooser):
    """A Chooser whose steps return a given value."""

    def __init__(self, choices: Sequence[str], references: Sequence[Any], returned: Any = None, **options: Any) -> None:
        super().__init__(choices, references, **options)
        self.returned = returned

    def evaluation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.returned

    validation_step = evaluation_step
    test_step = evaluation_step


class Silent(Returns):
    """A Chooser whose steps return None: its texts come from ``generate``."""


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


def generate(pl_module: Chooser, batch: Tensor) -> tuple[list[str], list[Any]]:
    """Return what the step would return."""
    return pl_module.choose(batch)


def generate_wildly(pl_module: Chooser, batch: Tensor) -> tuple[list[str], list[Any]]:
    """Generate with side effects on modes and random states."""
    pl_module.train()
    torch.set_grad_enabled(True)
    preds, references = pl_module.choose(batch)
    noise = torch.rand(3).sum() + random.random() + np.random.rand()
    return preds if noise < 2 else preds[::-1], references


def generate_few(pl_module: Chooser, batch: Tensor) -> tuple[list[str], list[Any]]:
    """Generate one text too few."""
    preds, references = pl_module.choose(batch)
    return preds[1:], references[1:]


class SpawnedDDP(DDPStrategy):
    """Processes over gloo that the trainer starts, and that leave their group before they end.

    Lightning ends them with the threads of the group running, which now and then aborts them. They come from a fork
    server, which imports once for all tests. Unlike with ``"spawn"``, Lightning then neither copies the random states
    and the seed of the main process nor keeps the processes from sharing the module's memory.
    """

    def __init__(self) -> None:
        multiprocessing.set_forkserver_preload(RANK_IMPORTS)
        super().__init__(process_group_backend="gloo", start_method="forkserver", find_unused_parameters=False)

    def setup(self, trainer: pl.Trainer) -> None:
        assert self.model is not None
        for parameter in self.model.parameters():
            parameter.data = parameter.data.clone()
        super().setup(trainer)

    def teardown(self) -> None:
        super().teardown()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


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


def weights(module: pl.LightningModule) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def chooser(
    pairs: tuple[list[str], list[str]],
    *args: Any,
    count: int = 9,
    kind: type[Chooser] = Chooser,
    references: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Chooser:
    """Return a module over the first pairs, with the same initial weights and random states in every call."""
    pl.seed_everything(7, verbose=False)
    return kind(pairs[0][:count], references or pairs[1][:count], *args, **kwargs)


class Record(pl.Callback):
    """Keeps the F1 of every validation."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.scores.append(trainer.callback_metrics["val_bertscore_f1"].item())
