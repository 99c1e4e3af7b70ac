"""The catalogue of errors that a user can meet, each with the value at fault and the way out."""

from __future__ import annotations

import errno
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


class StorageError(LogdiffError):
    """A disk, folder or file that refuses to be read or written: full, not there, not permitted."""

    exit_code = 2


_STORAGE_HINTS = {
    errno.ENOSPC: "free space there, or choose another place with --case, -o or TMPDIR; then run again",
    errno.EDQUOT: "free space there, or choose another place with --case, -o or TMPDIR; then run again",
    errno.EROFS: "choose a place you may write to",
    errno.EACCES: "change the rights, or choose another place",
    errno.EPERM: "change the rights, or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "check the symbolic links",
    errno.EIO: "check the disk",
    errno.EFBIG: "raise the limit on file sizes, or choose another file system",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def storage_error(error: OSError) -> StorageError | None:
    """The refusal of a disk or file as an error with a way out; None for other system errors, which are bugs here."""
    hint = _STORAGE_HINTS.get(error.errno) if error.errno is not None else None
    if hint is None:
        return None
    return StorageError(error.strerror or str(error), value=error.filename, hint=hint)
