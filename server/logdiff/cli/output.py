"""Standard output carries one result, standard error everything else."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from logdiff.errors import LogdiffError

PLAIN_WIDTH = 120
"""Width of tables where standard output is no terminal."""


class Output:
    """Where a command's result goes: one JSON object, or text for a reader.

    With `as_json` the process's descriptor 1 is pointed at standard error, so that a library or a child that prints
    can't spoil the one object; the object itself goes to a private copy of the original.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._stream: IO[str] = _claim_stdout() if as_json else sys.stdout

    def json(self, value: dict[str, Any]) -> None:
        """Write one JSON object and a line end."""
        from logdiff.jsonio import dumps

        self._stream.write(dumps(value) + "\n")
        self._stream.flush()

    def text(self, *parts: Any) -> None:
        """Print text or rich renderables (tables) to standard output."""
        from rich.console import Console

        width = None if self._stream.isatty() else PLAIN_WIDTH
        console = Console(file=self._stream, width=width, soft_wrap=width is not None, highlight=False)
        for part in parts:
            if isinstance(part, str):
                console.print(part, markup=False)
            else:
                console.print(part)
        self._stream.flush()

    def error(self, error: LogdiffError) -> None:
        """Print `logdiff-error/1` on standard output, or the same facts as text on standard error."""
        if self.as_json:
            self.json(error.as_dict())
            return
        sys.stderr.write(f"error: {error.message}\n")
        if error.value is not None:
            sys.stderr.write(f"  value: {error.value}\n")
        if error.hint:
            sys.stderr.write(f"  hint:  {error.hint}\n")
        sys.stderr.flush()

    def hush(self) -> None:
        """Send what is still buffered nowhere: the reader of standard output has gone."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


def _claim_stdout() -> IO[str]:
    sys.stdout.flush()
    try:
        private = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):  # a captured stream without a descriptor has nothing below it to spoil
        stream: IO[str] = sys.stdout
        sys.stdout = sys.stderr
        return stream
    os.dup2(2, 1)
    return os.fdopen(private, "w", encoding="utf-8")
