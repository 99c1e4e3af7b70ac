"""The tables of the profiler databases, and how their columns are spelled in different versions.

Sources: `profile_data_file_references_db.md` and `msprof_db.cpp` of Ascend/msprof (July 2026; older spellings from the
CANN 8 pages of hiascend.com), `_constant.py` and the profiler guide of Ascend/pytorch (August 2026). None of the
databases read here came from a device of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from logdiff.errors import InputError

COMPUTE: dict[str, tuple[str, ...]] = {
    "name": ("name",),
    "op_type": ("opType",),
    "core": ("taskType",),
    "input_shapes": ("inputShapes",),
    "output_shapes": ("outputShapes",),
    "input_types": ("inputDataTypes",),
    "output_types": ("outputDataTypes",),
    "input_formats": ("inputFormats",),
    "output_formats": ("outputFormats",),
    "blocks": ("blockNum", "blockDim"),
    "mix_blocks": ("mixBlockNum", "mixBlockDim"),
    "state": ("opState",),
    "hf32": ("hf32Eligible",),
    "attributes": ("attrInfo", "hashId", "hashid"),
    "grid_dim": ("gridDim",),
    "block_dim": ("blockDim",),
}
"""Field of `Work` -> columns of COMPUTE_TASK_INFO that hold it, newest first.

`blockDim` was the number of cores until `blockNum` took that over; beside it, it is the block shape of SIMT kernels.
"""

NUMBERS = frozenset({"blocks", "mix_blocks"})
"""Fields that are numbers; all others are ids of STRING_IDS."""

TASK = ("startNs", "endNs", "deviceId", "streamId", "taskType", "connectionId")
"""Columns of TASK that are read beside `globalTaskId`; those that a version lacks are read as nulls."""

COMMUNICATION = (
    "opName", "opType", "startNs", "endNs", "dataType", "algType", "count", "rankSize", "deviceId",
)  # fmt: skip
"""Columns of COMMUNICATION_OP that are read, likewise."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of one database, by upper-case table name."""

    tables: dict[str, list[str]]

    def column(self, table: str, *spellings: str) -> str | None:
        """The column of a table under the first spelling that it has; None where it has none of them."""
        columns = {name.lower(): name for name in self.tables.get(table, ())}
        return next((columns[s.lower()] for s in spellings if s.lower() in columns), None)

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table is there with all these columns."""
        return table in self.tables and all(self.column(table, name) is not None for name in columns)

    def terms(self, table: str, columns: tuple[str, ...], alias: str) -> dict[str, str]:
        """Column -> its SQL term, or `null` where this version lacks it."""
        found = {name: self.column(table, name) for name in columns}
        return {name: "null" if column is None else f'{alias}."{column}"' for name, column in found.items()}

    def compute(self) -> dict[str, str]:
        """Field -> column of COMPUTE_TASK_INFO, as far as this version has it."""
        found = {field: self.column("COMPUTE_TASK_INFO", *names) for field, names in COMPUTE.items()}
        if found["blocks"] == found["block_dim"]:
            found["block_dim"] = None
        return {field: column for field, column in found.items() if column is not None}


def checked(tables: dict[str, list[str]], path: Path) -> Schema:
    """The schema, after a look at what a reading can't do without.

    Raises:
        InputError: no table, no device tasks, or columns of theirs under no known name.
    """
    schema = Schema(tables)
    if not tables:
        hint = "the profiler had not begun to write; profile again, and let the block of `with profile(...)` end"
        raise InputError("the profiler database has no table", value=str(path), hint=hint)
    here = ", ".join(sorted(tables)[:20])
    if "TASK" not in tables and not schema.has("COMMUNICATION_OP", "startNs", "endNs", "opName"):
        raise InputError(
            f"the database has no device tasks (table TASK); it has: {here}",
            value=str(path),
            hint="name ascend_pytorch_profiler*.db or msprof_*.db, profiled with ProfilerActivity.NPU and "
            "profiler_level Level1 (analysis.db and cluster_analysis.db hold sums only)",
        )
    needed = {
        "TASK": ("startNs", "endNs", "globalTaskId"),
        "COMPUTE_TASK_INFO": ("globalTaskId", "name"),
        "STRING_IDS": ("id", "value"),
    }
    for table, columns in needed.items():
        missing = [name for name in columns if schema.column(table, name) is None]
        if table in tables and missing:
            raise InputError(
                f"table {table} has no column {', '.join(missing)}; it has: {', '.join(tables[table][:30])}",
                value=str(path),
                hint="a schema of another version: please report these columns",
            )
    if "TASK" in tables and "COMPUTE_TASK_INFO" not in tables and "COMMUNICATION_OP" not in tables:
        raise InputError(
            f"the database has tasks but no operators (table COMPUTE_TASK_INFO); it has: {here}",
            value=str(path),
            hint="profile with profiler_level=Level1",
        )
    if "STRING_IDS" not in tables:
        raise InputError(
            f"the database has no names (table STRING_IDS); it has: {here}", value=str(path), hint="export it again"
        )
    return schema
