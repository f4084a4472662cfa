"""Values that change during training: the loss's temperature, and its weight beside cross-entropy."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback

from bertscore_tm.callbacks.trainer import require_lightning_trainer

__all__ = ["LossWeightSchedule", "TemperatureAnnealing", "scheduled_value"]

Shape = Literal["linear", "cosine", "exponential"]
Unit = Literal["step", "epoch"]


def scheduled_value(start: float, end: float, progress: float, shape: Shape = "linear") -> float:
    r"""Return a value on its way from start to end.

    With progress t: linear :math:`a + (b - a) t`, cosine :math:`b + (a - b) (1 + \cos \pi t) / 2`, exponential
    :math:`a^{1-t} b^t`.

    Args:
        start: a.
        end: b.
        progress: t; values below 0 count as 0, values above 1 as 1.
        shape: ``"linear"``, ``"cosine"`` (slow at both ends) or ``"exponential"`` (equal factors; both ends above 0).

    Returns:
        The value.

    Example:
        >>> [round(scheduled_value(1.0, 0.25, 0.5, shape), 4) for shape in ("linear", "cosine", "exponential")]
        [0.625, 0.625, 0.5]
    """
    t = min(max(progress, 0.0), 1.0)
    if shape == "exponential":
        return math.pow(start, 1 - t) * math.pow(end, t)
    share = t if shape == "linear" else (1 - math.cos(math.pi * t)) / 2
    return start + (end - start) * share


class _Schedule(Callback):
    """Sets a number of the module before each training step, or before each epoch."""

    def __init__(
        self,
        start: float,
        end: float,
        attribute: str,
        over: int | None,
        by: Unit,
        shape: Shape,
        warmup: int,
        warmup_from: float,
        name: str | None,
    ) -> None:
        super().__init__()
        for argument, value, allowed in (("by", by, Unit), ("shape", shape, Shape)):
            if value not in get_args(allowed):
                raise ValueError(f"{argument}={value!r} is not one of {', '.join(map(repr, get_args(allowed)))}")
        if shape == "exponential" and not (start > 0 and end > 0):
            raise ValueError(f"an exponential schedule needs both ends above 0, got start={start} and end={end}")
        if warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {warmup}")
        if over is not None and over <= warmup:
            raise ValueError(f"over={over} leaves nothing behind the warm-up of {warmup}")
        self.start, self.end, self.attribute = start, end, attribute
        self.over, self.by, self.shape, self.warmup = over, by, shape, warmup
        self.name = attribute.replace(".", "_") if name is None else name
        self._warmup_from = warmup_from
        self._over = over
        self._steps = 0
        self._global_step = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the module has what is to be set."""
        require_lightning_trainer(trainer, self)
        if stage != "fit":
            return
        try:
            owner, last = self._owner(pl_module)
            current = getattr(owner, last)
        except AttributeError as error:
            raise MisconfigurationException(
                f"{type(self).__name__} sets pl_module.{self.attribute}, which does not exist ({error}): set it in the "
                f"module's __init__ and use it in training_step, or pass attribute= with its dotted path"
            ) from error
        if isinstance(current, bool) or not isinstance(current, int | float):
            raise MisconfigurationException(
                f"{type(self).__name__} sets pl_module.{self.attribute}, which is no plain number but {current!r}: "
                f"pass attribute= with the dotted path of a number"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find out how long the schedule is."""
        if self.over is not None:
            return
        length = trainer.max_epochs if self.by == "epoch" else trainer.estimated_stepping_batches
        if length is None or length < 0 or math.isinf(length):
            raise MisconfigurationException(
                f"how long training will take is not known, so {type(self).__name__} cannot end with it: pass over=, "
                f"the number of {self.by}s"
            )
        # An epoch's value holds from its start, so the last one starts at the end.
        self._over = int(length) - (self.by == "epoch")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the value of an epoch."""
        if self.by == "epoch":
            value = self._set(pl_module, trainer.current_epoch)
            pl_module.log(self.name, value, on_step=False, on_epoch=True)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the value of a step."""
        # Counted here, since the trainer counts a step of each optimizer, and none while gradients accumulate.
        if trainer.global_step != self._global_step:
            self._steps += 1
            self._global_step = trainer.global_step
        if self.by == "step":
            value = self._set(pl_module, self._steps)
            pl_module.log(self.name, value, on_step=True, on_epoch=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the steps so far, for checkpoints."""
        return {"steps": self._steps, "global_step": self._global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint's steps."""
        self._steps, self._global_step = state_dict["steps"], state_dict["global_step"]

    @property
    def state_key(self) -> str:
        """Name of the state, of its own for each attribute."""
        return self._generate_state_key(attribute=self.attribute)

    def value_at(self, position: int) -> float:
        """Return the value at a step or epoch, counted from 0.

        Args:
            position: number of steps taken, or number of the epoch.

        Returns:
            The value.
        """
        if position < self.warmup:
            return scheduled_value(self._warmup_from, self.start, position / self.warmup)
        length = 1 if self._over is None else self._over - self.warmup
        progress = (position - self.warmup) / length if length > 0 else 1.0
        return scheduled_value(self.start, self.end, progress, self.shape)

    def _set(self, pl_module: pl.LightningModule, position: int) -> float:
        value = self.value_at(position)
        owner, last = self._owner(pl_module)
        setattr(owner, last, value)
        return value

    def _owner(self, pl_module: pl.LightningModule) -> tuple[Any, str]:
        owner: Any = pl_module
        *path, last = self.attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, last


class TemperatureAnnealing(_Schedule):
    """Change the temperature of a loss during training, such as from 1 to 0.3.

    A high temperature keeps predictions diffuse, so that many tokens get a gradient; as it falls, the soft score comes
    closer to the metric's. The value is logged, and a run that is resumed goes on where it was.

    Args:
        start: the temperature at first, above 0.
        end: the temperature at last, above 0.
        attribute: dotted path of the number in the LightningModule; ``"bertscore_loss.matching_temperature"`` is that
            of the matching.
        over: steps or epochs until the end is reached, the warm-up included. Default: all of training.
        by: count ``"step"``s of the optimizer or ``"epoch"``s. With ``torch.compile``, which compiles anew for each
            value, choose epochs.
        shape: ``"linear"``, ``"cosine"`` or ``"exponential"``.
        warmup: steps or epochs for which the start is held.
        name: the logged key. Default: the attribute, with underscores.

    Raises:
        MisconfigurationException: the module has no such number, or the length of training is not known.
        ValueError: a temperature is not positive, or a setting is impossible.

    Example:
        >>> annealing = TemperatureAnnealing(1.0, 0.25, over=100, shape="exponential")
        >>> [annealing.value_at(step) for step in (0, 50, 100, 500)]
        [1.0, 0.5, 0.25, 0.25]
    """

    def __init__(
        self,
        start: float = 1.0,
        end: float = 0.3,
        attribute: str = "bertscore_loss.temperature",
        *,
        over: int | None = None,
        by: Unit = "step",
        shape: Shape = "linear",
        warmup: int = 0,
        name: str | None = None,
    ) -> None:
        for argument, value in (("start", start), ("end", end)):
            if not value > 0:
                raise ValueError(f"{argument} is a temperature and must be above 0, got {value}")
        super().__init__(start, end, attribute, over, by, shape, warmup, start, name)


class LossWeightSchedule(_Schedule):
    """Change the weight of a loss during training, such as from 0 to 1 once cross-entropy has done most of its work.

    ``training_step`` multiplies the loss by the number that this sets, as in
    ``cross_entropy + self.bertscore_weight * self.bertscore_loss(logits, labels)``. The value is logged, and a run
    that is resumed goes on where it was.

    Args:
        start: the weight at first, behind the warm-up.
        end: the weight at last.
        attribute: dotted path of the number in the LightningModule.
        over: steps or epochs until the end is reached, the warm-up included. Default: all of training.
        by: count ``"step"``s of the optimizer or ``"epoch"``s.
        shape: ``"linear"``, ``"cosine"`` or ``"exponential"``.
        warmup: steps or epochs in which the weight rises linearly from 0 to the start.
        name: the logged key. Default: the attribute, with underscores.

    Raises:
        MisconfigurationException: the module has no such number, or the length of training is not known.
        ValueError: a weight is negative, or a setting is impossible.

    Example:
        >>> schedule = LossWeightSchedule(1.0, 0.5, over=20, warmup=10)
        >>> [schedule.value_at(step) for step in (0, 5, 10, 15, 20)]
        [0.0, 0.5, 1.0, 0.75, 0.5]
    """

    def __init__(
        self,
        start: float = 0.0,
        end: float = 1.0,
        attribute: str = "bertscore_weight",
        *,
        over: int | None = None,
        by: Unit = "step",
        shape: Shape = "linear",
        warmup: int = 0,
        name: str | None = None,
    ) -> None:
        for argument, value in (("start", start), ("end", end)):
            if not value >= 0:
                raise ValueError(f"{argument} is a weight and must be at least 0, got {value}")
        super().__init__(start, end, attribute, over, by, shape, warmup, 0.0, name)
