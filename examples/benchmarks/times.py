"""Wall and CPU times, and their ratios."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Times"]


@dataclass(frozen=True)
class Times:
    """Wall time and CPU time in seconds.

    Args:
        wall: wall time.
        cpu: CPU time of all threads of this process.
    """

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Times:
        """Return the current times; subtract earlier ones to get a duration."""
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: Times) -> Times:
        return Times(self.wall - other.wall, self.cpu - other.cpu)

    def shorter(self, other: Times | None) -> Times:
        """Return the minimum of wall time and of CPU time.

        Args:
            other: another measurement; ``None``: return these times.

        Returns:
            The minima.
        """
        return self if other is None else Times(min(self.wall, other.wall), min(self.cpu, other.cpu))

    def ratios(self, other: Times) -> dict[str, float]:
        """Return the ratios to other times.

        Args:
            other: the denominators.

        Returns:
            ``wall_ratio`` and ``cpu_ratio``, below 1 if these times are shorter.

        Example:
            >>> Times(2.0, 3.0).ratios(Times(4.0, 4.0))
            {'wall_ratio': 0.5, 'cpu_ratio': 0.75}
        """
        return {"wall_ratio": self.wall / other.wall, "cpu_ratio": self.cpu / other.cpu}
