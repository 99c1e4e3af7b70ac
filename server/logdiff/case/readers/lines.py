"""Lines of plain, gzip and zstd text files in bounded memory: no line longer than a limit is ever held whole."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

import msgspec

from logdiff.errors import InputError

DEFAULT_MAX_LINE_BYTES = 64 << 20
_LIMIT_VARIABLE = "LOGDIFF_MAX_LINE_BYTES"
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f
_BUFFER = 1 << 20


def max_line_bytes() -> int:
    """The longest line accepted, in bytes after decompression: `LOGDIFF_MAX_LINE_BYTES` or 64 MiB."""
    text = os.environ.get(_LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_MAX_LINE_BYTES
    if not text.isdecimal() or int(text) == 0:
        raise InputError(f"{_LIMIT_VARIABLE} must be a number of bytes", value=text, hint="for example 134217728")
    return int(text)


def file_kind(path: Path) -> str:
    """What a file is by its first bytes, whatever its name: "parquet", "gzip", "zstd" or "text".

    Raises:
        InputError: missing, a directory, empty or not readable.
    """
    _require_file(path)
    if not path.is_file():
        return "text"  # a pipe: its bytes can be taken once only
    try:
        with path.open("rb") as handle:
            head = handle.read(4)
    except OSError as error:
        raise InputError(
            f"the file can't be read: {error.strerror}", value=str(path), hint="check its rights"
        ) from None
    if not head:
        raise InputError("the file is empty", value=str(path), hint="write it again: header line, then samples")
    if head == _PARQUET:
        return "parquet"
    return _compression(head) or "text"


def iter_lines(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Yield (line number from 1, line without its end) of every line that isn't blank.

    Compression is recognised by content. A byte order mark is dropped.

    Raises:
        InputError: unreadable, cut off or damaged, or a line over the limit (which isn't read to its end).
    """
    limit = max_line_bytes()
    _require_file(path)
    number = 0
    try:
        with _open(path) as stream:
            while line := stream.readline(limit + 1):
                number += 1
                if len(line) > limit and not line.endswith(b"\n"):
                    raise InputError(
                        f"{path}: line {number} is longer than {limit} bytes",
                        value=f"starts with {_shown(line[:60])}",
                        hint=f"write one sample per line, or raise {_LIMIT_VARIABLE}",
                    )
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.strip()
                if line:
                    yield number, line
    except OSError as error:
        raise InputError(
            f"{path}: the file is cut off or damaged after line {number}: {error}",
            value=str(path),
            hint="copy or write it again; nothing was taken from it",
        ) from None


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """One JSON object, read as Python's json reads it (NaN and Infinity included).

    Raises:
        InputError: `where` and what is wrong there.
    """
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError):
        # The strict parser knows no NaN or Infinity; the standard one does, and words its errors better.
        value = _parse_slowly(line, where)
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: each line must be one JSON object", value=_shown(line[:60]), hint="see logdiff-pair/1"
        )
    return value


def _parse_slowly(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: the line is no UTF-8 text (byte {error.start})",
            value=_shown(line[max(0, error.start - 20) : error.start + 20]),
            hint="give JSON Lines (plain, .gz or .zst) or Parquet",
        ) from None
    except RecursionError:
        raise InputError(
            f"{where}: the JSON is nested too deeply", value=_shown(line[:60]), hint="write flat lists"
        ) from None
    except json.JSONDecodeError as error:
        cut_off = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        what = (
            "half a JSON object, the line was cut off" if cut_off else f"no JSON: {error.msg} at column {error.colno}"
        )
        start = max(0, error.pos - 30)
        raise InputError(
            f"{where}: {what}",
            value=_shown(error.doc[start : start + 60].encode("utf-8", "replace")),
            hint="write the file again, or remove the line if its writer was stopped",
        ) from None
    except ValueError as error:
        raise InputError(f"{where}: {error}", value=_shown(line[:60]), hint="write numbers as numbers") from None


def _open(path: Path) -> io.BufferedReader[Any]:
    raw = io.BufferedReader(io.FileIO(path), _BUFFER)
    compression = _compression(raw.peek(4)[:4])
    if compression is None:
        return raw
    import pyarrow as pa

    # Unlike the zstd module's reader, Arrow's raises when a stream ends before its frame does.
    stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)
    return io.BufferedReader(stream, _BUFFER)


def _compression(head: bytes) -> Literal["gzip", "zstd"] | None:
    if head[:2] == _GZIP:
        return "gzip"
    skippable = head[1:] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5  # parallel writers begin with such a frame
    return "zstd" if head == _ZSTD or skippable else None


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise InputError("a directory, where a file is needed", value=str(path), hint="give the files in it")
    if not path.exists():
        raise InputError("there is no such file", value=str(path), hint="check the path")


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
