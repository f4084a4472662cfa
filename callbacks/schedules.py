"""Schedules that change a loss's temperature or its weight during training."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback

from bertscore_tm.callbacks.trainer import require_lightning_trainer

__all__ = ["LossWeightSchedule", "TemperatureAnnealing", "interpolate_value"]

Shape = Literal["linear", "cosine", "exponential"]
Unit = Literal["step", "epoch"]


def interpolate_value(start: float, end: float, progress: float, shape: Shape = "linear") -> float:
    r"""Interpolate between two values.

    At progress t: linear :math:`a + (b - a) t`, cosine :math:`b + (a - b) (1 + \cos \pi t) / 2`, exponential
    :math:`a^{1-t} b^t`.

    Args:
        start: value a at t = 0.
        end: value b at t = 1.
        progress: t, clamped to the range 0 to 1.
        shape: ``"linear"``, ``"cosine"`` (slow at both ends) or ``"exponential"`` (for positive values).

    Returns:
        The interpolated value.

    Example:
        >>> [round(interpolate_value(1.0, 0.25, 0.5, shape), 4) for shape in ("linear", "cosine", "exponential")]
        [0.625, 0.625, 0.5]
    """
    t = min(max(progress, 0.0), 1.0)
    if shape == "exponential":
        return math.pow(start, 1 - t) * math.pow(end, t)
    share = t if shape == "linear" else (1 - math.cos(math.pi * t)) / 2
    return start + (end - start) * share


class _Schedule(Callback):
    """Base class that sets a number in the LightningModule before each training step or epoch."""

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
            raise ValueError(f"shape='exponential' needs start and end above 0, got start={start} and end={end}")
        if warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {warmup}")
        if over is not None and over <= warmup:
            raise ValueError(f"over must be above warmup={warmup}, got {over}")
        self.start, self.end, self.attribute = start, end, attribute
        self.over, self.by, self.shape, self.warmup = over, by, shape, warmup
        self.name = attribute.replace(".", "_") if name is None else name
        self._warmup_from = warmup_from
        self._over = over
        self._steps = 0
        self._global_step = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the module has the number to set, and start anew in a new trainer."""
        require_lightning_trainer(trainer, self)
        if stage != "fit":
            return
        if trainer.global_step == 0:  # a checkpoint is loaded after this
            self._steps = self._global_step = 0
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
                f"{type(self).__name__} sets pl_module.{self.attribute}, which must be an int or a float, got "
                f"{current!r}: pass attribute= with the dotted path of a number"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the length of the schedule to that of training, unless ``over`` is given."""
        if self.over is not None:
            return
        length = trainer.max_epochs if self.by == "epoch" else trainer.estimated_stepping_batches
        if length is None or length < 0 or math.isinf(length):
            raise MisconfigurationException(
                f"{type(self).__name__} needs a length, since the length of training is unknown: pass over=, the "
                f"number of {self.by}s"
            )
        # The last epoch trains with the end value.
        self._over = int(length) - (self.by == "epoch")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set and log the value of the epoch."""
        if self.by == "epoch":
            value = self._set(pl_module, trainer.current_epoch)
            pl_module.log(self.name, value, on_step=False, on_epoch=True)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set and log the value of the step."""
        # trainer.global_step counts every optimizer separately; this counts a batch that steps several of them once.
        if trainer.global_step != self._global_step:
            self._steps += 1
            self._global_step = trainer.global_step
        if self.by == "step":
            value = self._set(pl_module, self._steps)
            pl_module.log(self.name, value, on_step=True, on_epoch=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps for a checkpoint."""
        return {"steps": self._steps, "global_step": self._global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of steps."""
        self._steps, self._global_step = state_dict["steps"], state_dict["global_step"]

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint, which depends on ``attribute``."""
        return self._generate_state_key(attribute=self.attribute)

    def value_at(self, position: int) -> float:
        """Return the value of a step or epoch.

        Args:
            position: index of the step or epoch, from 0.

        Returns:
            The value.
        """
        if position < self.warmup:
            return interpolate_value(self._warmup_from, self.start, position / self.warmup)
        length = 1 if self._over is None else self._over - self.warmup
        progress = (position - self.warmup) / length if length > 0 else 1.0
        return interpolate_value(self.start, self.end, progress, self.shape)

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

    A high temperature keeps predictions diffuse, so that many tokens receive gradients; a low one brings the soft score
    close to the metric. The value is logged, and a resumed run continues the schedule. In another trainer without a
    checkpoint the schedule starts again.

    Args:
        start: initial temperature, above 0.
        end: final temperature, above 0.
        attribute: dotted path of the number in the LightningModule, such as
            ``"bertscore_loss.matching_temperature"`` for the temperature of the matching.
        over: number of steps or epochs, including the warm-up, after which the value is ``end``. Default: the length
            of training.
        by: unit of the schedule, an optimizer ``"step"`` or an ``"epoch"``. Use epochs with ``torch.compile``, which
            recompiles for every new value.
        shape: ``"linear"``, ``"cosine"`` or ``"exponential"``.
        warmup: number of steps or epochs that keep the initial temperature.
        name: the logged key. Default: the attribute with underscores.

    Raises:
        MisconfigurationException: the module has no such number, or the length of training is unknown.
        ValueError: a temperature is not positive, or another argument is out of range.

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
    """Change the weight of a loss during training, such as from 0 to 1 after training with cross-entropy alone.

    ``training_step`` multiplies the loss by the scheduled number:
    ``cross_entropy + self.bertscore_weight * self.bertscore_loss(logits, labels)``. The value is logged, and a resumed
    run continues the schedule. In another trainer without a checkpoint the schedule starts again.

    Args:
        start: weight after the warm-up, at least 0.
        end: final weight, at least 0.
        attribute: dotted path of the number in the LightningModule.
        over: number of steps or epochs, including the warm-up, after which the value is ``end``. Default: the length
            of training.
        by: unit of the schedule, an optimizer ``"step"`` or an ``"epoch"``.
        shape: ``"linear"``, ``"cosine"`` or ``"exponential"``.
        warmup: number of steps or epochs in which the weight rises linearly from 0 to ``start``.
        name: the logged key. Default: the attribute with underscores.

    Raises:
        MisconfigurationException: the module has no such number, or the length of training is unknown.
        ValueError: a weight is negative, or another argument is out of range.

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
                raise ValueError(f"{argument} is a loss weight and must be at least 0, got {value}")
        super().__init__(start, end, attribute, over, by, shape, warmup, 0.0, name)
