"""Makes profiles with the documented schema of the Ascend profilers. Made data: no device wrote it.

Tables and columns are those of `profile_data_file_references_db.md` and `msprof_db.cpp` (Ascend/msprof, July 2026) and
of `_constant.py` (Ascend/pytorch, August 2026); `old=True` gives the spellings of CANN 8 (`blockDim` for the number of
cores). CSV headers are those of `op_summary_assembler.cpp` and `_csv_headers.py` of the same repositories.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

TABLES = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, "
    "globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockNum INTEGER, mixBlockNum INTEGER, "
    "taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, inputShapes INTEGER, "
    "outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, attrInfo INTEGER, opState INTEGER, "
    "hf32Eligible INTEGER, gridDim INTEGER, blockDim INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER, "
    "opId INTEGER PRIMARY KEY, relay INTEGER, retry INTEGER, dataType INTEGER, algType INTEGER, count NUMERIC, "
    "opType INTEGER, deviceId INTEGER, rankSize INTEGER",
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, "
    "connectionId INTEGER PRIMARY KEY, name INTEGER",
    "NPU_INFO": "id INTEGER, name TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "META_DATA": "name TEXT, value TEXT",
    "ENUM_API_TYPE": "id INTEGER PRIMARY KEY, name TEXT",
    "ENUM_HCCL_DATA_TYPE": "id INTEGER PRIMARY KEY, name TEXT",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, "
    "sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, callchainId INTEGER, "
    "type INTEGER",
    "CONNECTION_IDS": "id INTEGER, connectionId INTEGER",
    "PYTORCH_CALLCHAINS": "id INTEGER, stack INTEGER, stackDepth INTEGER",
}
"""Table -> columns, as the documents give them (msprof and torch_npu together)."""

OLD_COMPUTE = TABLES["COMPUTE_TASK_INFO"].replace(", gridDim INTEGER, blockDim INTEGER", "").replace(
    "blockNum INTEGER, mixBlockNum", "blockDim INTEGER, mixBlockDim"
)  # fmt: skip

NA = "N/A"
FRAMEWORK_CONNECTIONS = 5 << 28  # torch_npu numbers its own connections from here


@dataclass(frozen=True)
class Op:
    """One kind of device work, `times` launches of `ns` each, and what launched it."""

    op_type: str
    name: str = ""
    shapes: str = "128,4096;4096,4096"
    types: str = "DT_BF16;DT_BF16"
    formats: str = "ND;ND"
    out_shapes: str = "128,4096"
    out_types: str = "DT_BF16"
    out_formats: str = "ND"
    core: str = "AI_CORE"
    blocks: int = 24
    mix_blocks: int = 0
    attributes: str = NA
    state: str = "dynamic"
    hf32: str = "NO"
    times: int = 1
    ns: int = 1000
    torch_op: str | None = None
    module: str | None = None

    def but(self, **changes: Any) -> Op:
        return replace(self, **changes)


@dataclass(frozen=True)
class Collective:
    """One communication operator."""

    op_type: str = "hcom_allReduce_"
    dtype: str = "BFP16"
    algorithm: str = "MESH-RING"
    count: int = 4096
    ranks: int = 2
    ns: int = 5000
    times: int = 1


@dataclass
class Writer:
    """Writes rows of one database; strings are numbered as they come."""

    connection: sqlite3.Connection
    strings: dict[str, int] = field(default_factory=dict)

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings))

    def rows(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self.connection.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)


def database(
    path: Path,
    ops: Sequence[Op],
    collectives: Sequence[Collective] = (),
    *,
    rank: int | None = None,
    old: bool = False,
    torch: bool = True,
    without: Sequence[str] = (),
    keyed_strings: bool = True,
) -> Path:
    """A profiler database with these operators; `without` leaves tables out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute("begin")
    tables = dict(TABLES)
    if old:
        tables["COMPUTE_TASK_INFO"] = OLD_COMPUTE
    if not keyed_strings:
        tables["STRING_IDS"] = "id INTEGER, value TEXT"
    if not torch:
        for name in ("PYTORCH_API", "CONNECTION_IDS", "PYTORCH_CALLCHAINS"):
            tables.pop(name)
    for name, columns in tables.items():
        connection.execute(f"create table {name} ({columns})")
    writer = Writer(connection)
    _tasks(writer, ops, old, torch)
    _collectives(writer, collectives)
    writer.rows("NPU_INFO", [(0, "Ascend910B1")])
    writer.rows("RANK_DEVICE_MAP", [(-1 if rank is None else rank, 0)])
    writer.rows("META_DATA", [("torch_npu_version", '"2.9.0"')])
    writer.rows("ENUM_API_TYPE", [(50001, "op"), (50002, "queue"), (50003, "trace"), (10000, "node")])
    writer.rows("ENUM_HCCL_DATA_TYPE", [(3, "FP16"), (4, "FP32"), (11, "BFP16")])
    writer.rows("STRING_IDS", [(number, value) for value, number in writer.strings.items()])
    for name in without:
        connection.execute(f"drop table {name}")
    connection.execute("commit")
    connection.close()
    return path


def _tasks(writer: Writer, ops: Sequence[Op], old: bool, torch: bool) -> None:
    clock = 1_700_000_000_000_000_000
    number = 0
    for op in ops:
        for _ in range(op.times):
            number += 1
            launch = 100 + number
            blank = (number, 0, 0)
            writer.rows("TASK", [(clock, clock + op.ns, 0, launch, number, 1, writer.text(op.core), 0, 7, *blank[:2])])
            writer.rows("COMPUTE_TASK_INFO", [_compute(writer, op, number, old)])
            if torch and op.torch_op:
                _caller(writer, op, number, launch, clock)
            clock += op.ns + 500
    writer.rows("TASK", [(clock, clock + 10, 0, 99, number + 1, 1, writer.text("EVENT_RECORD"), 0, 7, 0, 0)])


def _compute(writer: Writer, op: Op, number: int, old: bool) -> tuple[Any, ...]:
    text = writer.text
    name = op.name or f"aclnn_{op.op_type}_{number}"
    row = (
        text(name), number, op.blocks, op.mix_blocks, text(op.core), text(op.op_type),
        text(op.formats), text(op.types), text(f'"{op.shapes}"'), text(op.out_formats), text(op.out_types),
        text(f'"{op.out_shapes}"'), text(op.attributes), text(op.state), text(op.hf32),
    )  # fmt: skip
    return row if old else (*row, text(NA), text(NA))


def _caller(writer: Writer, op: Op, number: int, launch: int, clock: int) -> None:
    """An outer and an inner torch operator around the launch, in a module if one is given."""
    text = writer.text
    thread, begin = 1 << 32 | 5, clock - 400
    rows: list[tuple[Any, ...]] = []
    if op.module:
        module = text(f"nn.Module: {op.module}")
        rows.append((str(begin - 50), str(begin + 350), thread, None, module, None, None, None, None, None, 50003))
    outer, inner = FRAMEWORK_CONNECTIONS + 2 * number, FRAMEWORK_CONNECTIONS + 2 * number + 1
    rows.append((str(begin), str(begin + 300), thread, outer, text("aten::outer"), 1, None, None, None, None, 50001))
    rows.append(
        (str(begin + 9), str(begin + 200), thread, inner, text(op.torch_op or ""), 1, None, None, None, None, 50001)
    )
    writer.rows("PYTORCH_API", rows)
    writer.rows("CONNECTION_IDS", [(outer, FRAMEWORK_CONNECTIONS - number), (inner, launch)])


def _collectives(writer: Writer, collectives: Sequence[Collective]) -> None:
    dtypes = {"FP16": 3, "FP32": 4, "BFP16": 11}
    text, number = writer.text, 0
    for one in collectives:
        for _ in range(one.times):
            number += 1
            row = (
                text(f"{one.op_type}_{number}_0_1"), 10**18 + number, 10**18 + number + one.ns, 9000 + number,
                text("group"), number, 0, 0, dtypes[one.dtype], text(one.algorithm), one.count, text(one.op_type), 0,
                one.ranks,
            )  # fmt: skip
            writer.rows("COMMUNICATION_OP", [row])


OP_SUMMARY = [
    "Device_id",
    "Model ID",
    "Task ID",
    "Stream ID",
    "Op Name",
    "OP Type",
    "OP State",
    "Task Type",
    "Task Start Time(us)",
    "Task Duration(us)",
    "Task Wait Time(us)",
    "Block Num",
    "Mix Block Num",
    "HF32 Eligible",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
    "Context ID",
]
KERNEL_DETAILS = {"Op Name": "Name", "OP Type": "Type", "Task Type": "Accelerator Core",
                  "Task Start Time(us)": "Start Time(us)", "Task Duration(us)": "Duration(us)",
                  "Task Wait Time(us)": "Wait Time(us)"}  # fmt: skip
OLD = {"Block Num": "Block Dim", "Mix Block Num": "Mix Block Dim"}
OPERATOR_DETAILS = [
    "Name",
    "Input Shapes",
    "Call Stack",
    "Host Self Duration(us)",
    "Host Total Duration(us)",
    "Device Self Duration(us)",
    "Device Total Duration(us)",
    "Device Self Duration With AICore(us)",
    "Device Total Duration With AICore(us)",
]


def kernel_table(
    path: Path, ops: Sequence[Op], *, summary: bool = False, old: bool = False, level0: bool = False
) -> Path:
    """`kernel_details.csv`, or with `summary` an `op_summary_*.csv`; `level0`: without what level 0 leaves out."""
    header = [OLD.get(name, name) if old else name for name in OP_SUMMARY]
    if not summary:
        header = [KERNEL_DETAILS.get(name, name) for name in header]
    rows, number = [], 0
    for op in ops:
        for _ in range(op.times):
            number += 1
            name = op.name or f"aclnn_{op.op_type}_{number}"
            start = f"1717575960208020.{number:03d}" + ("\t" if summary else "")
            known = [op.op_type, op.state, op.core] if not level0 else [NA, NA, NA]
            tensors = [f'"{op.shapes}"', op.types, op.formats, f'"{op.out_shapes}"', op.out_types, op.out_formats]
            rows.append([
                0, 4294967295, number, 7, name, *known, start, f"{op.ns / 1000:.3f}", "0",
                *([op.blocks, op.mix_blocks, op.hf32, *tensors] if not level0 else [0, 0, NA, *[NA] * 6]), NA,
            ])  # fmt: skip
    return _csv(path, header, rows)


def operator_table(path: Path, rows: Sequence[tuple[str, str, float, float]]) -> Path:
    """`operator_details.csv` of (name, input shapes, host self us, device self us)."""
    return _csv(path, OPERATOR_DETAILS, [[n, s, "", host, host, dev, dev, dev, dev] for n, s, host, dev in rows])


def _csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, lineterminator="\n").writerows([header, *rows])
    return path
