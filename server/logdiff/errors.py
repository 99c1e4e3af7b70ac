"""The catalogue of errors that a user can meet, each with the value at fault and the way out."""

from __future__ import annotations

from typing import Any


class LogdiffError(Exception):
    """An error with everything that a user needs to act on it.

    Args:
        message: what was wrong, one sentence.
        value: the offending value (path, key, number), shown as it is.
        hint: what to do about it.
    """

    exit_code = 3

    def __init__(self, message: str, *, value: Any = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.value = value
        self.hint = hint

    def as_dict(self) -> dict[str, Any]:
        """The `logdiff-error/1` object of the command line and the tools."""
        return {
            "format": "logdiff-error/1",
            "error": {"type": type(self).__name__, "message": self.message, "value": self.value, "hint": self.hint},
        }


class InputError(LogdiffError):
    """A file, argument or option that can't be used as it stands."""

    exit_code = 2


class EvidenceError(LogdiffError):
    """Evidence that was read but proves nothing: no token, no common sample, a missing side."""

    exit_code = 2


class EngineError(LogdiffError):
    """A rollout or training engine refused, failed or went away; its own words are kept in the message."""

    exit_code = 2


class CaseError(LogdiffError):
    """A case folder that is broken, sealed, in use or belongs to other input."""

    exit_code = 2


class CancelledError(LogdiffError):
    """The work was cancelled or ran out of time; what was captured stays in the case."""

    exit_code = 2
