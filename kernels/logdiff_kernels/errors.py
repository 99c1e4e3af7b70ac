"""The catalogue of errors that a runner reports, each with the value at fault and the way out.

The same names stand in `logdiff.errors` on the other side of the wall; only their JSON form crosses it.
"""

from __future__ import annotations

from typing import Any


class RunnerError(Exception):
    """An error with everything that a user needs to act on it.

    Args:
        message: what was wrong, one sentence; for an engine's own refusal, its words.
        value: the offending value (path, key, number), shown as it is.
        hint: what to do about it.
        fatal: the engine can't go on after this error.
    """

    def __init__(self, message: str, *, value: Any = None, hint: str = "", fatal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.value = value
        self.hint = hint
        self.fatal = fatal

    def as_dict(self) -> dict[str, Any]:
        """The `error` object of an `error` event."""
        return {"type": type(self).__name__, "message": self.message, "value": self.value, "hint": self.hint}


class InputError(RunnerError):
    """A request, model folder, file or argument that can't be used as it stands."""


class EngineError(RunnerError):
    """The engine refused or failed; its own words are in the message."""


class UnsupportedError(RunnerError):
    """The engine can't do this task; `hint` says why and what can."""
