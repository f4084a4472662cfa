"""Modules, data and comparisons for tests of the callbacks under precisions and strategies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertscore_tm import FrozenEncoder, bert_score
from tests.support.lightning_modules import Chooser, generate_wildly
from tests.support.models import EVERY_FAMILY, tiny_generator, tiny_tokenizer

# Of the examples, and of the encoder.
COUNT, LAYER = 9, 2
SCORES = ("precision", "recall", "f1")
PROMPTS = ["sum the list", "open a file and read its lines", "close it", "return a new string from both"]
ANSWERS = ["a cat sat", "it rains today", "hello", "returns a list of names"]


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


class ShardedChooser(Chooser):
    """A Chooser that shards its net over the strategy's device mesh; ``written`` holds generated texts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.written: list[tuple[int, list[str], list[Any]]] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None and not isinstance(self.net[0].weight, DTensor):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self.written.clear()


def write_wildly(pl_module: ShardedChooser, batch: Tensor) -> tuple[list[str], list[Any]]:
    """Generate with side effects on modes and random states, and keep the texts."""
    texts = generate_wildly(pl_module, batch)
    pl_module.written.append((0, *texts))
    return texts


class Writer(pl.LightningModule):
    """Trains a tiny Hugging Face model; its validation step makes no forward pass."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.model, self.tokenizer = generator(family)

    @property
    def blocks(self) -> list[nn.Module]:
        return [
            part
            for part in self.model.modules()
            if type(part).__name__
            in {"BartEncoderLayer", "BartDecoderLayer", "GPT2Block", "LlamaDecoderLayer", "T5Block"}
        ]

    def shard(self, *, fully: bool = True, by_blocks: bool = True, whole: bool = True, **options: Any) -> None:
        """Shard with ``fully_shard`` the blocks, the remaining modules, or both; or the model with the older FSDP."""
        if not fully:
            self.model: Any = FullyShardedDataParallel(self.model, device_id=torch.device("cpu"))
            return
        for part in [*(self.blocks if by_blocks else ()), *([self.model] if whole else ())]:
            fully_shard(part, **options)

    def configure_model(self) -> None:
        if self.device_mesh is not None and not any(isinstance(p, DTensor) for p in self.parameters()):
            self.shard(mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        labels = batch["labels"] if self.model.config.is_encoder_decoder else batch["input_ids"]
        loss: Tensor = self.model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        return None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        whole = batch_of(self.tokenizer)
        return DataLoader([{key: rows[i] for key, rows in whole.items()} for i in range(len(PROMPTS))], batch_size=1)  # type: ignore[arg-type]

    val_dataloader = train_dataloader


def generator(family: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a tiny random model that generates up to the length limit, and its tokenizer."""
    model = tiny_generator(family)
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 0
    return model, tiny_tokenizer(EVERY_FAMILY[family])


def batch_of(tokenizer: PreTrainedTokenizerBase, chosen: slice = slice(None)) -> dict[str, Tensor]:
    """Return padded prompts and answers."""

    def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)

    ids = tokenizer(PROMPTS)["input_ids"]
    labels = tokenizer(ANSWERS, add_special_tokens=False)["input_ids"]
    batch = {
        "input_ids": padded(ids, 3),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "labels": padded(labels, -100),
    }
    return {key: rows[chosen] for key, rows in batch.items()}


class Stream(IterableDataset[int]):
    """Numbers of examples in a data set without a length."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def stream(numbers: Sequence[int]) -> DataLoader[int]:
    return DataLoader(Stream(numbers), batch_size=3)


def whole_weights(module: nn.Module) -> Tensor:
    """Return all weights: gathered from the shards of ``fully_shard``, for FSDP those of this rank."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in module.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])


class Keep(pl.Callback):
    """Keeps the state at the end of training: weights, optimizers, random states and modes."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.found = {
            "weights": whole_weights(trainer.strategy.model),  # type: ignore[arg-type]
            "optimizers": [_tensors(optimizer.state_dict()["state"]) for optimizer in trainer.optimizers],
            **random_states_and_flags(pl_module),
            "modes": [torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")],
        }


def random_states_and_flags(module: nn.Module) -> dict[str, Any]:
    """Return the random states, and which modules are in training mode."""
    state: Any = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [*state[1].tolist(), state[2]],
        "flags": [part.training for part in module.modules()],
    }


def _tensors(state: Any) -> list[Tensor]:
    values = [value for entry in state.values() for value in entry.values() if isinstance(value, Tensor)]
    return [value.full_tensor() if isinstance(value, DTensor) else value for value in values]


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


def texts_of(
    batches: Sequence[tuple[int, list[str], list[Any]]], number: int | None = None
) -> tuple[list[str], list[Any]]:
    """Return the predictions and references of one loader, or of all."""
    chosen = [(preds, target) for loader, preds, target in batches if number in (None, loader)]
    return [p for preds, _ in chosen for p in preds], [t for _, target in chosen for t in target]


def logged(metrics: Any, name: str = "bertscore", stage: str = "val", suffix: str = "") -> list[float]:
    return [float(metrics[f"{stage}_{name}_{score}{suffix}"]) for score in SCORES]


def means(preds: Sequence[str], target: Sequence[Any], encoder: FrozenEncoder, **options: Any) -> list[float]:
    """Return the mean scores of all texts by ``bert_score``."""
    scores = bert_score(list(preds), list(target), encoder, **options)
    return [scores[score].mean().item() for score in SCORES]
