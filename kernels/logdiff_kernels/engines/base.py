"""The one face that every engine adapter shows to the runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """What a task made: `files` by name, `data` of plain JSON values (numpy scalars and non-finite floats allowed)."""

    files: dict[str, Path] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


class Progress(Protocol):
    """Reports `done` of `total` (None while unknown) `unit`s; cheap to call often, throttled by the runner."""

    def __call__(self, done: int, total: int | None = None, unit: str = "", message: str = "") -> None:
        """Report one step of progress."""
        ...


class Adapter(Protocol):
    """A started engine. Built by `create(request: logdiff_kernels.protocol.Request) -> Adapter` of its module.

    `create` raises `InputError` for what is wrong with the request and `EngineError` with the engine's own words for
    what the engine refuses. A module that `engines.registry` names must be importable without importing the engine.
    """

    tasks: frozenset[str]
    """Names of the tasks that `run` takes; the runner refuses others with `UnsupportedError`."""

    def run(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Do one task of docs/architecture.md. Raises a `RunnerError`; anything else is reported as `EngineError`."""
        ...

    def close(self) -> None:
        """Free the engine and end every process that it started. May be called twice."""
        ...
