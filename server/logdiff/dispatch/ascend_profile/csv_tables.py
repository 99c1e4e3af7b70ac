"""The profilers' CSV files: `kernel_details.csv`, `op_summary_*.csv`, `operator_details.csv`, read row by row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from logdiff.dispatch.ascend_profile.records import MAX_KINDS, Capture, Tally, Work, plain, types
from logdiff.dispatch.ascend_profile.tasks import stem, too_many
from logdiff.errors import EvidenceError, InputError

MAX_FIELD = 1 << 20
"""Characters of one field."""

KERNELS: dict[str, tuple[str, ...]] = {
    "name": ("Name", "Op Name"),
    "op_type": ("Type", "OP Type"),
    "core": ("Accelerator Core", "Task Type"),
    "start": ("Start Time(us)", "Task Start Time(us)", "Task Start Time"),
    "duration": ("Duration(us)", "Task Duration(us)"),
    "device": ("Device_id", "Device ID"),
    "stream": ("Stream ID",),
    "blocks": ("Block Num", "Block Dim"),
    "mix_blocks": ("Mix Block Num", "Mix Block Dim"),
    "state": ("OP State",),
    "hf32": ("HF32 Eligible",),
    "input_shapes": ("Input Shapes",),
    "input_types": ("Input Data Types",),
    "input_formats": ("Input Formats",),
    "output_shapes": ("Output Shapes",),
    "output_types": ("Output Data Types",),
    "output_formats": ("Output Formats",),
}
"""Field -> headers of `kernel_details.csv` and `op_summary_*.csv`, newest first (Block Dim became Block Num)."""

OPERATORS: dict[str, tuple[str, ...]] = {
    "name": ("Name",),
    "input_shapes": ("Input Shapes",),
    "host": ("Host Self Duration(us)",),
    "device": ("Device Self Duration(us)",),
}
"""Field -> headers of `operator_details.csv`."""

_COMMUNICATION = ("COMMUNICATION", "HCCL", "HCOM")


def read_kernels(files: tuple[Path, ...], label: str, rank: int | None) -> Capture:
    """One capture out of its kernel tables.

    Raises:
        InputError: a file that is empty, cut off, or without the needed columns; it names file and line.
        EvidenceError: not one kernel in them.
    """
    capture = Capture(label, [str(file) for file in files], rank)
    kinds: dict[tuple[Any, ...], Tally] = {}
    unreadable = 0
    for file in files:
        for values in _rows(file, KERNELS, ("name", "duration"), capture):
            duration = _nanoseconds(values["duration"])
            if duration is None or duration < 0:
                unreadable += 1
                continue
            values["name"] = stem(values["name"]) or ""  # numbered names must not make a kind of every launch
            key = tuple(values.get(field) for field in _KEY)
            tally = kinds.get(key)
            if tally is None:
                if len(kinds) >= MAX_KINDS:
                    raise too_many(file)
                tally = kinds[key] = capture.work.setdefault(_work(values), Tally())
            tally.add(_nanoseconds(values.get("start")), duration, _whole(values.get("stream")), (None, None))
            device = _whole(values.get("device"))
            if device is not None:
                capture.devices.add(device)
    if unreadable:
        capture.notes.append(f"{unreadable} rows have no valid duration and are left out")
    if not capture.work:
        raise EvidenceError(
            "the kernel table has no kernel in it", value=str(files[0]), hint="profile at least one step with an NPU"
        )
    return capture


def read_operators(file: Path, capture: Capture) -> None:
    """Add the torch operators of `operator_details.csv` to a capture.

    Raises:
        InputError: as `read_kernels`.
    """
    for values in _rows(file, OPERATORS, ("name",), capture):
        key = (plain(values["name"]) or "unknown", plain(values.get("input_shapes")) or "")
        if key not in capture.torch_ops and len(capture.torch_ops) >= MAX_KINDS:
            raise too_many(file)
        sums = capture.torch_ops.setdefault(key, [0, 0, 0])
        sums[0] += 1
        sums[1] += _nanoseconds(values.get("host")) or 0
        sums[2] += _nanoseconds(values.get("device")) or 0
    if str(file) not in capture.files:
        capture.files.append(str(file))


_KEY = tuple(field for field in KERNELS if field not in ("start", "duration", "device", "stream"))


def _work(values: dict[str, str]) -> Work:
    core = plain(values.get("core"))
    kernel = plain(values.get("name"))
    op_type = plain(values.get("op_type")) or kernel or "unknown"
    collective = (core or "").upper() in _COMMUNICATION or op_type.lower().startswith("hcom_")
    if collective:
        return Work("communication", op_type)
    fields = {f: plain(values.get(f)) for f in ("input_shapes", "output_shapes", "input_formats", "output_formats")}
    return Work(
        "compute",
        op_type,
        kernel,
        input_types=types(values.get("input_types")),
        output_types=types(values.get("output_types")),
        core=core,
        blocks=_count(values.get("blocks")),
        mix_blocks=_count(values.get("mix_blocks")),
        state=plain(values.get("state")),
        hf32=plain(values.get("hf32")),
        **fields,
    )


def _rows(
    file: Path, wanted: dict[str, tuple[str, ...]], needed: tuple[str, ...], capture: Capture
) -> Iterator[dict[str, str]]:
    """Rows as {field: text} of the columns that are there."""
    limit = csv.field_size_limit(MAX_FIELD)
    try:
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as handle:
            reader = csv.reader(_checked_lines(handle, file, capture), strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not any(header):
                raise InputError("the profiler table is empty", value=str(file), hint=_AGAIN)
            places = {
                field: header.index(name)
                for field, names in wanted.items()
                if (name := _spelled(names, header)) is not None
            }
            missing = [wanted[field][0] for field in needed if field not in places]
            if missing:
                raise InputError(
                    f"the table has no column {', '.join(missing)}; it has: {', '.join(header[:30])}",
                    value=str(file),
                    hint="name kernel_details.csv, op_summary_*.csv or operator_details.csv",
                )
            for row in reader:
                if len(row) != len(header):
                    if not row:
                        continue
                    raise InputError(
                        f"line {reader.line_num} has {len(row)} fields, the header {len(header)}: cut off or damaged",
                        value=str(file),
                        hint=_AGAIN,
                    )
                yield {field: row[place] for field, place in places.items()}
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} is no CSV: {error}", value=str(file), hint=_AGAIN) from None
    finally:
        csv.field_size_limit(limit)


_AGAIN = "export it again: torch_npu.profiler.profiler.analyse(FOLDER), or msprof --export=on --output=FOLDER"


def _checked_lines(handle: Any, file: Path, capture: Capture) -> Iterator[str]:
    """Lines of bounded length; a last one without its end is told, for it may be cut off."""
    last = "\n"
    while line := handle.readline(64 * MAX_FIELD):
        if "\0" in line:
            raise InputError("the table holds binary data", value=str(file), hint=_AGAIN)
        yield line
        last = line
    if not last.endswith("\n"):
        capture.notes.append(f"{file.name}: the last line has no line end, so the file may be cut off there")


def _spelled(names: tuple[str, ...], header: list[str]) -> str | None:
    return next((name for name in names if name in header), None)


def _nanoseconds(text: str | None) -> int | None:
    """Nanoseconds of microseconds as written, exactly (op_summary writes a tabulator behind its start times)."""
    try:
        value = Decimal((text or "").strip()) * 1000
        return int(value.to_integral_value()) if value.is_finite() and abs(value) < 1 << 62 else None
    except InvalidOperation:
        return None


def _whole(text: str | None) -> int | None:
    value = plain(text)
    return int(value) if value is not None and value.isdecimal() and len(value) < 18 else None


def _count(text: str | None) -> str | None:
    """A number of cores; level 0 writes 0 where it recorded none."""
    value = plain(text)
    return None if value == "0" else value
