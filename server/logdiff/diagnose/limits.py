"""How long a diagnosis may go on, and how many engines it may start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Limits:
    """Time and engine starts that are left.

    Args:
        seconds: in all.
        starts: engines that may be started in all.
        used: tells how many were started.
        clock: seconds from an arbitrary moment.
    """

    seconds: float = 180.0
    starts: int = 6
    used: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    _begin: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the diagnosis began."""
        return self.clock() - self._begin

    @property
    def seconds_left(self) -> float:
        """Seconds, not below 0."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def starts_left(self) -> int:
        """Engine starts, not below 0."""
        return max(0, self.starts - self.used())

    def allow(self, seconds: float, starts: int = 0) -> str | None:
        """Why work of about so many seconds and starts can't be begun any more, or None where it can."""
        if starts > self.starts_left:
            return f"it needs {starts} engine start(s), and {self.starts_left} of {self.starts} are left"
        if seconds > self.seconds_left:
            return f"it takes about {seconds:.0f} s, and {self.seconds_left:.0f} of {self.seconds:.0f} s are left"
        return None
