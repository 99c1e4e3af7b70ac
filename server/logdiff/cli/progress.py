"""Progress of long commands on standard error: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from logdiff.target.engine import Progress

_SECONDS_BETWEEN_LINES = 5.0


class ProgressView:
    """Call it with each `Progress`; use it as a context manager so that bars are taken down."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._ids: dict[str, TaskID] = {}
        self._last: dict[str, float] = {}

    def __enter__(self) -> ProgressView:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Show one step."""
        if self._bars is not None:
            self._bar(self._bars, progress)
        else:
            self._line(progress)

    def say(self, text: str) -> None:
        """Print one line of news on standard error, above the bars."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _bar(self, bars: Bars, progress: Progress) -> None:
        if progress.task not in self._ids:
            self._ids[progress.task] = bars.add_task(progress.task, total=progress.total, unit=progress.unit)
        bars.update(
            self._ids[progress.task],
            completed=progress.done,
            total=progress.total,
            description=_title(progress),
            unit=progress.unit,
        )

    def _line(self, progress: Progress) -> None:
        now = time.monotonic()
        finished = progress.total is not None and progress.done >= progress.total
        if progress.task in self._last and not finished and now - self._last[progress.task] < _SECONDS_BETWEEN_LINES:
            return
        self._last[progress.task] = now
        of = f"/{progress.total}" if progress.total is not None else ""
        count = f": {progress.done}{of} {progress.unit}".rstrip() if progress.done or of else ""
        sys.stderr.write(f"{_title(progress)}{count}\n")
        sys.stderr.flush()


def _title(progress: Progress) -> str:
    return f"{progress.task}: {progress.message}" if progress.message else progress.task
