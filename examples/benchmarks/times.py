"""Times that are compared with each other on one machine, never told in seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Times"]


@dataclass(frozen=True)
class Times:
    """How long something took, in seconds.

    Args:
        wall: on the clock, with the waiting for processors that others use.
        cpu: on the processors, all threads of this process together.
    """

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Times:
        """Return the present, from which an earlier present is to be subtracted."""
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: Times) -> Times:
        return Times(self.wall - other.wall, self.cpu - other.cpu)

    def shorter(self, other: Times | None) -> Times:
        """Return the shorter wall time and the shorter processor time.

        Args:
            other: how long it took another time, if there was any.

        Returns:
            The shorter ones.
        """
        return self if other is None else Times(min(self.wall, other.wall), min(self.cpu, other.cpu))

    def ratios(self, other: Times) -> dict[str, float]:
        """Compare with something else.

        Args:
            other: how long that took.

        Returns:
            ``wall_ratio`` and ``cpu_ratio``, below 1 where this took less.

        Example:
            >>> Times(2.0, 3.0).ratios(Times(4.0, 4.0))
            {'wall_ratio': 0.5, 'cpu_ratio': 0.75}
        """
        return {"wall_ratio": self.wall / other.wall, "cpu_ratio": self.cpu / other.cpu}
