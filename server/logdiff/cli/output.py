"""Standard output carries one result, standard error everything else."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from logdiff.errors import LogdiffError, StorageError

PLAIN_WIDTH = 120
"""Width of tables where standard output is no terminal."""


class Output:
    """Where a command's result goes: one JSON object, or text for a reader.

    With `as_json` the process's descriptor 1 is pointed at standard error, so that a library or a child that prints
    can't spoil the one object; the object itself goes to a private copy of the original.
    """

    def __init__(self, as_json: bool) -> None:
        _open_standard_streams()
        self.as_json = as_json
        self._lost = False
        self._python_stdout = sys.stdout
        self._private = _private_stdout() if as_json else None
        self._stream: IO[str] = self._private or sys.stdout
        if as_json:
            sys.stdout = sys.stderr

    def show(self, data: dict[str, Any], table: Callable[[dict[str, Any]], Sequence[Any]]) -> None:
        """Write a result: the object itself with `--json`, else what `table` makes of it for a reader."""
        if self.as_json:
            self.json(data)
        else:
            self.text(*table(data))

    def json(self, value: dict[str, Any]) -> None:
        """Write one JSON object and a line end."""
        from logdiff.jsonio import dumps

        self._write(dumps(value) + "\n")

    def text(self, *parts: Any) -> None:
        """Print text or rich renderables (tables) to standard output."""
        from rich.console import Console

        terminal = self._stream.isatty()
        width = shutil.get_terminal_size().columns if terminal else PLAIN_WIDTH
        page = io.StringIO()
        console = Console(file=page, width=width, soft_wrap=not terminal, highlight=False, force_terminal=terminal)
        for part in parts:
            if isinstance(part, str):
                console.print(part, markup=False)
            else:
                console.print(part)
        self._write(page.getvalue())

    def flush(self) -> None:
        """Send on what commands printed by themselves, such as help."""
        self._write("")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)  # what is left in the buffer must not fail again at exit
            os.dup2(null, self._stream.fileno())
            os.close(null)
            self._lost = True
            if not isinstance(error, BrokenPipeError):  # a reader that left has what it wanted
                raise StorageError(
                    f"the result can't be written to standard output: {error.strerror}",
                    hint="send it elsewhere; the evidence stays in the case",
                ) from None

    def error(self, error: LogdiffError) -> None:
        """Print `logdiff-error/1` on standard output, or the same facts as text on standard error."""
        if self.as_json and not self._lost:
            with suppress(StorageError):
                self.json(error.as_dict())
                return
        sys.stderr.write(f"error: {error.message}\n")
        if error.value is not None:
            sys.stderr.write(f"  value: {error.value}\n")
        if error.hint:
            sys.stderr.write(f"  hint:  {error.hint}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Give standard output back."""
        if self._private is not None:
            self._python_stdout.flush()  # what others printed belongs to standard error still
            os.dup2(self._private.fileno(), 1)
            self._private.close()
            self._private = None
            sys.stdout = self._stream = self._python_stdout
            self.as_json = False


def _open_standard_streams() -> None:
    """Make sure that descriptors 0 to 2 exist, so that no file of ours gets their numbers, and that any text prints.

    A caller may have closed them (`>&-`), and a terminal's encoding may lack our arrows.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _private_stdout() -> IO[str]:
    sys.stdout.flush()
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "w", encoding="utf-8")
