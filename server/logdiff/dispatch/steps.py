"""Progress of a dispatch as a whole: engines started and phases looked at, over both sides and every switch."""

from __future__ import annotations

from logdiff.target import OnProgress, Progress

TASK = "dispatch"
_AROUND = 2
"""Steps of one engine beside its phases: starting it, comparing its functions with their files."""


class Steps:
    """Turns the progress of one engine after the other into one count; call it with each `Progress` of an engine.

    Args:
        phases: number of phases of each engine that will be started, in their order.
        on_progress: takes the count, and what is no part of it (an engine's own start) as it comes.
    """

    def __init__(self, phases: list[int], on_progress: OnProgress | None) -> None:
        self._sizes = [count + _AROUND for count in phases]
        self._on_progress = on_progress
        self._engine = -1
        self._name = ""

    def start(self, name: str) -> None:
        """The next engine starts; those before it have ended, whether or not they came through."""
        self._engine += 1
        self._name = name
        self._tell(0, "starting the engine")

    def end(self) -> None:
        """Every engine has ended."""
        self._engine, self._name = len(self._sizes), ""
        self._tell(0, "")

    def __call__(self, progress: Progress) -> None:
        """One step of the engine that runs."""
        if self._on_progress is None:
            return
        if not progress.task.startswith(f"{TASK}/"):
            self._on_progress(progress)
            return
        share = progress.done / progress.total if progress.total else 0.0
        self._tell(1 + int(share * (self._sizes[self._engine] - _AROUND)), progress.message)

    def _tell(self, inside: int, message: str) -> None:
        if self._on_progress is None:
            return
        words = f"{self._name}: {message}" if self._name and message else self._name or message
        done = sum(self._sizes[: self._engine]) + inside
        self._on_progress(Progress(TASK, done, sum(self._sizes), "steps", words))
