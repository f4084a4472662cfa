"""Schedule of a number in the LightningModule, such as a loss's temperature or weight."""

from __future__ import annotations

import math
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback

from bertscore_tm.utilities.settings import require_at_least, require_choice

__all__ = ["AttributeSchedule"]

Shape = Literal["linear", "cosine", "exponential"]
Interval = Literal["step", "epoch"]


class AttributeSchedule(Callback):
    r"""Change a number in the LightningModule during training, such as the temperature or the weight of a loss.

    The value at progress t, from 0 to 1, between start a and end b is linear :math:`a + (b - a) t`, cosine
    :math:`b + (a - b) (1 + \cos \pi t) / 2`, or exponential :math:`a^{1-t} b^t`. It is set before each training step or
    epoch and logged, and a resumed run continues the schedule. In another trainer without a checkpoint the schedule
    starts again.

    A high temperature keeps predictions diffuse, so that many tokens receive gradients; a low one brings the soft score
    close to the metric. A weight of 0 at the start, with ``delay``, first trains with cross-entropy alone.

    Args:
        attribute: dotted path of the number in the LightningModule, such as ``"bertscore_loss.temperature"``, or
            ``"bertscore_weight"`` where ``training_step`` returns
            ``cross_entropy + self.bertscore_weight * self.bertscore_loss(logits, labels)``.
        start: value at the start.
        end: value at the end.
        shape: ``"linear"``, ``"cosine"`` (slow at both ends) or ``"exponential"`` (for positive values).
        interval: ``"step"`` of the optimizer or ``"epoch"``. Use epochs with ``torch.compile``, which recompiles for
            every new value.
        total_iters: number of steps or epochs, including the delay, after which the value is ``end``. Default: the
            length of training.
        delay: number of steps or epochs that keep the value ``start``.
        name: the logged key. Default: the attribute with underscores.

    Raises:
        MisconfigurationException: the module has no such number, or the length of training is unknown.
        ValueError: an argument is out of range.

    Example:
        >>> schedule = AttributeSchedule("bertscore_loss.temperature", 1.0, 0.25, shape="exponential", total_iters=100)
        >>> [schedule.value_at(step) for step in (0, 50, 100, 500)]
        [1.0, 0.5, 0.25, 0.25]
        >>> schedule = AttributeSchedule("bertscore_weight", 0.0, 1.0, total_iters=20, delay=10)
        >>> [schedule.value_at(step) for step in (0, 10, 15, 20)]
        [0.0, 0.0, 0.5, 1.0]
    """

    def __init__(
        self,
        attribute: str,
        start: float,
        end: float,
        *,
        shape: Shape = "linear",
        interval: Interval = "step",
        total_iters: int | None = None,
        delay: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__()
        require_choice("shape", shape, Shape)
        require_choice("interval", interval, Interval)
        if shape == "exponential" and not (start > 0 and end > 0):
            raise ValueError(f"shape='exponential' needs start and end above 0, got start={start} and end={end}")
        require_at_least("delay", delay, 0)
        if total_iters is not None and total_iters <= delay:
            raise ValueError(f"total_iters must be above delay={delay}, got {total_iters}")
        self.attribute, self.start, self.end, self.shape = attribute, start, end, shape
        self.interval, self.total_iters, self.delay = interval, total_iters, delay
        self.name = attribute.replace(".", "_") if name is None else name
        self._length = total_iters
        self._steps = 0
        self._global_step = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the module has the number to set, and start anew in a new trainer."""
        if stage != "fit":
            return
        if trainer.global_step == 0:  # a checkpoint is loaded after this
            self._steps = self._global_step = 0
        try:
            owner, last = self._owner(pl_module)
            current = getattr(owner, last)
        except AttributeError as error:
            raise MisconfigurationException(
                f"AttributeSchedule sets pl_module.{self.attribute}, which does not exist ({error}): set it in the "
                f"module's __init__ and use it in training_step, or pass attribute= with its dotted path"
            ) from error
        if isinstance(current, bool) or not isinstance(current, int | float):
            raise MisconfigurationException(
                f"AttributeSchedule sets pl_module.{self.attribute}, which must be an int or a float, got "
                f"{current!r}: pass attribute= with the dotted path of a number"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the length of the schedule to that of training, unless ``total_iters`` is given."""
        if self.total_iters is not None:
            return
        length = trainer.max_epochs if self.interval == "epoch" else trainer.estimated_stepping_batches
        if length is None or length < 0 or math.isinf(length):
            raise MisconfigurationException(
                f"AttributeSchedule needs a length, since the length of training is unknown: pass total_iters=, the "
                f"number of {self.interval}s"
            )
        # The last epoch trains with the end value.
        self._length = int(length) - (self.interval == "epoch")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set and log the value of the epoch."""
        if self.interval == "epoch":
            self._set(pl_module, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set and log the value of the step."""
        # trainer.global_step counts every optimizer separately; this counts a batch that steps several of them once.
        if trainer.global_step != self._global_step:
            self._steps += 1
            self._global_step = trainer.global_step
        if self.interval == "step":
            self._set(pl_module, self._steps)

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
        length = 1 if self._length is None else self._length - self.delay
        t = min(max((position - self.delay) / length, 0.0), 1.0) if length > 0 else float(position >= self.delay)
        if self.shape == "exponential":
            return math.pow(self.start, 1 - t) * math.pow(self.end, t)
        share = t if self.shape == "linear" else (1 - math.cos(math.pi * t)) / 2
        return self.start + (self.end - self.start) * share

    def _set(self, pl_module: pl.LightningModule, position: int) -> None:
        value = self.value_at(position)
        owner, last = self._owner(pl_module)
        setattr(owner, last, value)
        pl_module.log(self.name, value, on_step=self.interval == "step", on_epoch=self.interval == "epoch")

    def _owner(self, pl_module: pl.LightningModule) -> tuple[Any, str]:
        owner: Any = pl_module
        *path, last = self.attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, last
