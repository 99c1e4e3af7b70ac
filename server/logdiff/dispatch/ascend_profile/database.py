"""Opens a profiler's SQLite database so that nothing in it can write, run or reach anything."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from logdiff.errors import InputError

_MAGIC = b"SQLite format 3\x00"
_MAX_VALUE = 64 << 20
_CACHE_KIB = 64 << 10
AGAIN = "export it again (torch_npu.profiler.profiler.analyse, or msprof --export=on), or copy the whole file"


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that reads one file as it is.

    The file is taken as immutable, so no lock, journal or shared-memory file is made beside it; one that a process is
    still writing is therefore refused first. Extensions, ATTACH, views and virtual tables are off, values are at most
    64 MiB, and sorting goes to temporary files.

    Raises:
        InputError: empty, half-written, in use, damaged, or no SQLite database; it names the file and the way out.
    """
    before = _whole(path)
    connection = None
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        _restrict(connection)
        problem = connection.execute("pragma quick_check(1)").fetchone()
        if problem is None or problem[0] != "ok":
            raise sqlite3.DatabaseError(str(problem[0] if problem else "no answer"))
        yield connection
    except (sqlite3.Error, UnicodeError) as error:  # SQLite's message may quote the damaged bytes
        raise InputError(f"the profiler database is damaged: {error}", value=str(path), hint=AGAIN) from None
    finally:
        if connection is not None:
            connection.close()
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) != before:
        raise InputError(
            "the profiler database changed while it was read", value=str(path), hint="wait until the profiler has ended"
        )


def _whole(path: Path) -> tuple[int, int]:
    """Refuse a file that is no whole database at rest; its size in bytes and time of change in ns."""
    stat = path.stat()
    with path.open("rb") as handle:
        head = handle.read(100)
    if stat.st_size == 0:
        raise InputError("the profiler database is empty: 0 bytes", value=str(path), hint=AGAIN)
    if head[:16] != _MAGIC:
        raise InputError("the file is no SQLite database", value=str(path), hint="name a *.db file of the profiler")
    if len(head) < 100:
        raise InputError(f"the profiler database is cut off after {len(head)} bytes", value=str(path), hint=AGAIN)
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    counted = pages and head[24:28] == head[92:96]  # the count is valid only while both change counters agree
    if counted and stat.st_size < page * pages:
        raise InputError(
            f"the profiler database is half-written: {stat.st_size} of {page * pages} bytes are there",
            value=str(path),
            hint=AGAIN,
        )
    _unused(path, wal=head[18] == 2 or head[19] == 2)
    return stat.st_size, stat.st_mtime_ns


def _unused(path: Path, wal: bool) -> None:
    """Refuse a file that another process is writing."""
    for suffix, what in (("-wal", "changes that are not in the file yet"), ("-journal", "a change that was not ended")):
        beside = Path(f"{path}{suffix}")
        if beside.is_file() and beside.stat().st_size > 0:
            raise InputError(
                f"the profiler database is in use: {beside.name} holds {what}",
                value=str(path),
                hint="end the process that writes it; then open it once with `sqlite3 FILE .tables`, which brings the "
                "changes in, or export it again",
            )
    if wal:
        return  # only the immutable reading leaves no file beside a database in this mode
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    probe = sqlite3.connect(uri, uri=True, timeout=0)
    try:
        probe.execute("select count(*) from sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise InputError(
                "the profiler database is locked by another process",
                value=str(path),
                hint="wait until the profiler or viewer that has it open is done, or copy the file and read the copy",
            ) from None
        if not os.access(path, os.R_OK):
            raise
    except (sqlite3.DatabaseError, UnicodeError):
        pass  # damaged: the reading itself says how
    finally:
        probe.close()


def _restrict(connection: sqlite3.Connection) -> None:
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    if hasattr(connection, "setlimit"):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for pragma in (
        "trusted_schema=off",
        "cell_size_check=on",
        "mmap_size=0",
        "temp_store=file",
        f"cache_size=-{_CACHE_KIB}",
    ):
        connection.execute(f"pragma {pragma}")
    connection.set_authorizer(_allow)


def _allow(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _FUNCTIONS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() not in ("table_info", "quick_check"):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


_FUNCTIONS = frozenset({"count", "max", "min", "coalesce", "like"})


def tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Ordinary tables of the file and their columns; views and virtual tables are not looked at."""
    rows = connection.execute("select name, sql from sqlite_master where type = 'table'").fetchall()
    found: dict[str, list[str]] = {}
    for name, sql in rows:
        if isinstance(name, str) and not str(sql or "").lstrip().lower().startswith("create virtual"):
            quoted = '"' + name.replace('"', '""') + '"'
            found[name.upper()] = [str(row[1]) for row in connection.execute(f"pragma table_info({quoted})")]
    return found
