"""Progress on standard error: a bar on a terminal, one line per step anywhere; the summary as a table."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


class View:
    """Shows where a run of `steps` steps stands."""

    def __init__(self, mode: str, steps: int) -> None:
        self._mode = mode
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[phase]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bars.add_task(mode, total=steps, phase="")

    def __enter__(self) -> View:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._bars.stop()

    def phase(self, step: int, name: str) -> None:
        """What begins now."""
        self._bars.update(self._task, completed=step, phase=name)

    def step(self, line: dict[str, Any]) -> None:
        """A step that is done."""
        self._bars.update(self._task, completed=line["step"] + 1)
        first, last = line["first_update"], line["last_update"]
        self.say(
            f"{self._mode:7} {line['step']:3}  reward {line['reward']:.3f}  "
            f"differ {line['mismatched']}/{line['tokens']}  max|d| {line['max_abs']:.3g}  k3 {line['k3']:.2g}  "
            f"ratio {first['max']:.6g}, {last['max']:.6g}  {line['seconds']['step']:.1f} s"
        )

    def say(self, text: str) -> None:
        """One line above the bar."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


def table(rows: list[list[str]]) -> None:
    """Print the summary on standard output."""
    head, *body = rows
    shown = Table(*head)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in body:
        shown.add_row(*row)
    Console().print(shown)
