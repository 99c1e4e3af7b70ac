"""Which torch operator, in which module, launched a device task."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from logdiff.dispatch.ascend_profile.schema import Schema

_OP, _TRACE = 50001, 50003
"""Types of ENUM_API_TYPE: a torch operator, an event of the Python tracer."""

MODULE = "nn.Module: "
"""How the Python tracer names an event of a module."""

_BATCH = 10_000


def link(connection: sqlite3.Connection, schema: Schema) -> bool:
    """Fill `temp.callers(connection, name, module)` for TASK's connection ids; False where nothing was recorded.

    PYTORCH_API names its own id, which CONNECTION_IDS maps to those of the launches. Of several operators with one
    launch the innermost, which began last, is its caller. A module is the innermost `nn.Module: ` event of the Python
    tracer around it on the same thread.
    """
    if not schema.has("PYTORCH_API", "startNs", "endNs", "connectionId", "name") or not schema.has(
        "CONNECTION_IDS", "id", "connectionId"
    ):
        return False
    if schema.column("TASK", "connectionId") is None:
        return False
    connection.execute("create temp table apis (id integer primary key, name integer, module integer)")
    connection.execute("create temp table callers (connection integer primary key, name integer, module integer)")
    rows: list[tuple[Any, ...]] = []
    for row in _operators(connection, schema):
        rows.append(row)
        if len(rows) >= _BATCH:
            connection.executemany("insert or replace into temp.apis values (?, ?, ?)", rows)
            rows.clear()
    connection.executemany("insert or replace into temp.apis values (?, ?, ?)", rows)
    connection.execute(
        "insert or replace into temp.callers select k.connectionId, a.name, a.module "
        "from main.CONNECTION_IDS k join temp.apis a on a.id = k.id where k.connectionId is not null"
    )
    return True


def _operators(connection: sqlite3.Connection, schema: Schema) -> Iterator[tuple[Any, ...]]:
    """(connection id, name, module) of every torch operator with a launch, in order of their beginning."""
    kind = '"type"' if schema.column("PYTORCH_API", "type") else str(_OP)
    thread = '"globalTid"' if schema.column("PYTORCH_API", "globalTid") else "0"
    traced = f"(select id from main.STRING_IDS where value like '{MODULE}%')"
    # Times are declared as TEXT by torch_npu; as numbers they sort right.
    cursor = connection.execute(
        f"select {thread}, startNs + 0, endNs + 0, {kind}, name, connectionId from main.PYTORCH_API "
        f"where connectionId is not null or ({kind} = {_TRACE} and name in {traced}) order by 1, 2, 3 desc"
    )
    around: list[tuple[int, Any]] = []
    current = None
    while many := cursor.fetchmany(4096):
        for tid, start, end, what, name, ident in many:
            if tid != current:
                current = tid
                around.clear()
            while around and around[-1][0] < start:
                around.pop()
            if what == _TRACE:
                around.append((end, name))
            elif what == _OP and isinstance(ident, int):
                yield ident, name, around[-1][1] if around else None
