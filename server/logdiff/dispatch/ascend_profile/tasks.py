"""Device tasks out of a profiler database, streamed."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from logdiff.dispatch.ascend_profile import callers, database
from logdiff.dispatch.ascend_profile.records import MAX_KINDS, Capture, Tally, Work, plain, types
from logdiff.dispatch.ascend_profile.schema import COMMUNICATION, COMPUTE, NUMBERS, TASK, Schema, checked
from logdiff.errors import EvidenceError, InputError

_ROWS = 512
MAX_STRINGS = 1 << 16
"""Strings that are kept in memory at a time."""

_TYPES = ("input_types", "output_types")


def read_database(path: Path, label: str, rank: int | None) -> Capture:
    """One capture out of one database, in one pass over its tasks.

    Raises:
        InputError: it can't be read (`database.reading`, `schema.checked`), or has too many kinds of work.
        EvidenceError: not one operator ran in it.
    """
    capture = Capture(label, [str(path)], rank)
    with database.reading(path) as connection:
        schema = checked(database.tables(connection), path)
        strings = _Strings(connection)
        _facts(connection, schema, capture)
        if "TASK" in schema.tables:
            _compute(connection, schema, strings, capture, path)
        if schema.has("COMMUNICATION_OP", "startNs", "endNs", "opName"):
            _communication(connection, schema, strings, capture)
        if strings.missing:
            capture.notes.append(f"{len(strings.missing)} names are not in STRING_IDS and are shown by their number")
    if not capture.tasks:
        raise EvidenceError(
            "the profiler database has no operator in it",
            value=str(path),
            hint="profile with ProfilerActivity.NPU and let at least one step run inside the profiler",
        )
    return capture


class _Strings:
    """STRING_IDS, looked up as needed and kept for those that kinds of work use."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[int, str] = {}
        self.missing: set[int] = set()
        indexed = connection.execute("pragma table_info(STRING_IDS)").fetchall()
        if not any(row[5] for row in indexed):  # torch_npu declares no primary key where msprof made no table
            connection.execute("create temp table strings (id integer primary key, value text)")
            connection.execute("insert or ignore into temp.strings select id, value from main.STRING_IDS")
            self._table = "temp.strings"
        else:
            self._table = "main.STRING_IDS"

    def of(self, number: Any) -> str | None:
        if number is None:
            return None
        if not isinstance(number, int):
            return str(number)[:2000]  # a version that writes the text itself
        if number not in self._known:
            row = self._connection.execute(f"select value from {self._table} where id = ?", (number,)).fetchone()
            if row is None and plain(number) is not None:
                self.missing.add(number)
            self._known[number] = f"string {number}" if row is None else str(row[0])
            if row is None and plain(number) is None:
                self._known[number] = ""
            if len(self._known) > MAX_STRINGS:
                found, self._known = self._known[number], {}
                return found or None
        return self._known[number] or None


def _compute(connection: sqlite3.Connection, schema: Schema, strings: _Strings, capture: Capture, path: Path) -> None:
    linked = callers.link(connection, schema)
    for table, why in (("PYTORCH_API", "torch operators"), ("COMPUTE_TASK_INFO", "compute operators")):
        if table not in schema.tables:
            capture.notes.append(f"no {why} were recorded (no table {table})")
    fields = schema.compute()
    names = list(fields)
    columns = [f'c."{column}"' for column in fields.values()] or ["null"]
    task = schema.terms("TASK", TASK, "t")
    joined = 'left join main.COMPUTE_TASK_INFO c on c."globalTaskId" = t."globalTaskId"' if fields else ""
    found = 'c."globalTaskId"' if fields else "null"
    caller = "k.name, k.module" if linked else "null, null"
    link = f"left join temp.callers k on k.connection = {task['connectionId']}" if linked else ""
    cursor = connection.execute(
        f"select {found}, {task['startNs']}, {task['endNs']}, {task['deviceId']}, {task['streamId']}, "
        f"{task['taskType']}, {caller}, {', '.join(columns)} from main.TASK t {joined} {link}"
    )
    place = names.index("name") if "name" in names else None  # numbered names must not make a kind of every launch
    kinds: dict[tuple[Any, ...], Tally] = {}
    works: dict[Work, Tally] = capture.work
    others: dict[Any, int] = {}
    bad = 0
    while rows := cursor.fetchmany(_ROWS):
        for known, start, end, device, stream, task_type, name, module, *key in rows:
            if known is None:
                others[task_type] = others.get(task_type, 0) + 1
                continue
            if not isinstance(start, int) or not isinstance(end, int) or end < start:
                bad += 1
                continue
            if place is not None:
                key[place] = stem(strings.of(key[place]))
            shape = tuple(key)
            tally = kinds.get(shape)
            if tally is None:
                if len(kinds) >= MAX_KINDS:
                    raise too_many(path)
                work = _work(dict(zip(names, key, strict=False)), strings)
                tally = kinds[shape] = works.setdefault(work, Tally())
            tally.add(
                start,
                end - start,
                stream if isinstance(stream, int) else None,
                (strings.of(name), _module(strings.of(module))),
            )
            if isinstance(device, int):
                capture.devices.add(device)
    if bad:
        capture.notes.append(f"{bad} tasks have no valid times and are left out")
    _others(connection, schema, strings, capture, others)


def _work(values: dict[str, Any], strings: _Strings) -> Work:
    text: dict[str, str | None] = {}
    for field in COMPUTE:
        value = values.get(field)
        text[field] = plain(value) if field in NUMBERS else (types if field in _TYPES else plain)(strings.of(value))
    grid, block = text.pop("grid_dim"), text.pop("block_dim")
    name = text.pop("name")
    op_type = text.pop("op_type") or name or "unknown"
    shape = ", ".join(f"{what} {value}" for what, value in (("grid", grid), ("block", block)) if value)
    return Work("compute", op_type, name, grid=shape or None, **text)


def _module(event: str | None) -> str | None:
    return None if event is None else event.removeprefix(callers.MODULE)


@lru_cache(MAX_STRINGS)
def stem(name: str | None) -> str | None:
    """A kernel's name without the number that tells one launch of a graph from the next."""
    text = plain(name)
    return None if text is None else _NUMBER.sub("", text) or text


_NUMBER = re.compile(r"(?:[_-]\d+)+$")


def _others(
    connection: sqlite3.Connection, schema: Schema, strings: _Strings, capture: Capture, found: dict[Any, int]
) -> None:
    for number, count in found.items():
        name = plain(strings.of(number)) or "unknown"
        capture.others[name] = capture.others.get(name, 0) + count


def _communication(connection: sqlite3.Connection, schema: Schema, strings: _Strings, capture: Capture) -> None:
    column = schema.terms("COMMUNICATION_OP", COMMUNICATION, "o")
    names = _enum(connection, schema, "ENUM_HCCL_DATA_TYPE")
    cursor = connection.execute(f"select {', '.join(column.values())} from main.COMMUNICATION_OP o")
    while rows := cursor.fetchmany(_ROWS):
        for name, op_type, start, end, dtype, algorithm, count, ranks, device in rows:
            if not isinstance(start, int) or not isinstance(end, int) or end < start:
                continue
            kind = plain(strings.of(op_type)) or _collective(plain(strings.of(name)))
            text = names.get(dtype, plain(dtype)) if isinstance(dtype, int) else plain(strings.of(dtype))
            work = Work(
                "communication",
                kind or "unknown",
                input_shapes=plain(count),
                input_types=types(text),
                blocks=None if plain(ranks) is None else f"{plain(ranks)} ranks",
                algorithm=plain(strings.of(algorithm)),
            )
            capture.work.setdefault(work, Tally()).add(start, end - start, None, (None, None))
            if isinstance(device, int):
                capture.devices.add(device)


def _collective(name: str | None) -> str | None:
    """`hcom_allReduce_` of `hcom_allReduce__428_0_1`."""
    return None if name is None else name.split("__")[0] + ("_" if "__" in name else "")


def _enum(connection: sqlite3.Connection, schema: Schema, table: str) -> dict[int, str]:
    if not schema.has(table, "id", "name"):
        return {}
    return {
        int(i): str(n) for i, n in _first(connection, f"select id, name from main.{table}", 1000) if isinstance(i, int)
    }


def _facts(connection: sqlite3.Connection, schema: Schema, capture: Capture) -> None:
    if schema.has("NPU_INFO", "id", "name"):
        chips = sorted({str(n) for _, n in _first(connection, "select id, name from main.NPU_INFO", 64) if n})
        capture.facts["chip"] = ", ".join(chips)[:200]
    if schema.has("RANK_DEVICE_MAP", "rankId"):
        ranks = {r for (r,) in _first(connection, "select rankId from main.RANK_DEVICE_MAP", 64) if isinstance(r, int)}
        if len(ranks - {-1}) == 1:
            capture.rank = next(iter(ranks - {-1}))
            capture.label = f"rank {capture.rank}"
    if schema.has("META_DATA", "name", "value"):
        for name, value in _first(connection, "select name, value from main.META_DATA", 200):
            if isinstance(name, str) and ("version" in name.lower() or name in ("profiler_level", "SCHEMA_VERSION")):
                capture.facts[name[:80]] = str(value).strip('"')[:200]


def _first(connection: sqlite3.Connection, sql: str, limit: int) -> Iterator[tuple[Any, ...]]:
    yield from connection.execute(f"{sql} limit {limit}")


def too_many(path: Path) -> InputError:
    """The refusal of a capture whose kinds of work do not fit into memory."""
    return InputError(
        f"the profile has more than {MAX_KINDS} different kinds of operators",
        value=str(path),
        hint="profile fewer steps: two or three are enough to see which kernels run",
    )
