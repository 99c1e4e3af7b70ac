"""The one face that every engine shows to the rest of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from logdiff.errors import EngineError


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of progress: `done` of `total` (None while unknown) `unit`s of `task`."""

    task: str
    done: int
    total: int | None
    unit: str = ""
    message: str = ""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything needed to start one side (see the run file's `rollout` and `train`)."""

    engine: str
    side: str
    model: str
    dtype: str
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    score: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    python: str | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Files that a task wrote, by name, and its small facts."""

    files: dict[str, Path]
    data: dict[str, Any]


class Engine(Protocol):
    """A started rollout or training engine."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the tasks that this engine can do."""
        ...

    def run(self, task: dict[str, Any], on_progress: OnProgress | None = None) -> TaskResult:
        """Do one task of `docs/architecture.md` and wait for it. Raises a `LogdiffError`."""
        ...

    def cancel(self) -> None:
        """End the running task and the engine soon, from another thread."""
        ...

    def close(self) -> None:
        """End the engine and every process it started. May be called twice."""
        ...


class UnsupportedError(EngineError):
    """The engine can't do this task; `hint` says why and what can."""
