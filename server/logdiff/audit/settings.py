"""What was read: settings with their place, files that could not be read, and the launches that settings belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SIDES = ("rollout", "train")

ORIGINS = ("default", "file", "env", "script", "override", "log", "live")
"""Where a value comes from, weakest first: what a framework printed beats what a script says."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that can't be told without running something.

    `why` says what it depends on; `partly` is the text around the unknown pieces, which stand there as `…`.
    """

    why: str
    partly: str = ""

    def __str__(self) -> str:
        return f"unknown ({self.why})"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of one key on one side, as one place says it.

    Args:
        side: rollout, train, ref, both, or driver (a process that is neither side).
        key: canonical name (`temperature`, `env.HCCL_DETERMINISTIC`, `model.rms_norm_eps`, `package.vllm`).
        value: plain value or `Unknown`.
        raw_key: the name as the user wrote it.
        where: `file:line`, `file`, or a process.
        origin: one of `ORIGINS`.
        condition: the branch that it stands in; empty where it always applies.
        framework: whose option it is.
        launch: `Launch.number` of the process that alone has it; 0 where it is of no single one.
    """

    side: str
    key: str
    value: Any
    raw_key: str
    where: str
    origin: str
    condition: str = ""
    framework: str = ""
    adds: bool = False
    launch: int = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, where and why."""

    file: str
    line: int | None
    why: str

    def as_dict(self) -> dict[str, Any]:
        """As the result shows it."""
        return {"file": self.file, "line": self.line, "why": self.why}


@dataclass(frozen=True, slots=True)
class Launch:
    """A process, or a set of them, that a file starts or describes.

    Args:
        framework: verl, vllm, sglang, megatron, slime, miles, transformers.
        sides: the sides that it decides.
        where: its place.
        complete: every option is known, so that an absent one has its default.
        driver_only: variables that its starting shell exports and its workers don't get, as name -> place.
        number: counts the launches from 1; 0 for one that hangs on a branch or whose settings are not its alone.
    """

    framework: str
    sides: tuple[str, ...]
    where: str
    complete: bool = True
    driver_only: tuple[tuple[str, str], ...] = ()
    number: int = 0


@dataclass(slots=True)
class Evidence:
    """Everything that was read; `apart` are processes of one engine that differ, see `logdiff.audit.launches`."""

    settings: list[Setting] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    read: list[dict[str, str]] = field(default_factory=list)
    repeated: list[tuple[Setting, Setting]] = field(default_factory=list)
    apart: list[tuple[Launch, Setting | None, Launch, Setting | None]] = field(default_factory=list)

    def frameworks(self) -> set[str]:
        """Names of the frameworks that were seen."""
        return {launch.framework for launch in self.launches}
