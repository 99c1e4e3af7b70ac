"""One side's profile: every capture below a path."""

from __future__ import annotations

from pathlib import Path

from logdiff.dispatch.ascend_profile.csv_tables import read_kernels, read_operators
from logdiff.dispatch.ascend_profile.files import Found, find
from logdiff.dispatch.ascend_profile.records import Capture, Side
from logdiff.dispatch.ascend_profile.tasks import read_database

MAX_CAPTURES = 1024


def read_side(path: Path, name: str) -> Side:
    """Read a file or folder of a profiler.

    Args:
        path: what `files.find` takes.
        name: "rollout" or "train".

    Raises:
        InputError, EvidenceError, StorageError: with the file at fault and the way out.
    """
    found, left_out = find(path)
    if len(found) > MAX_CAPTURES:
        left_out.append(f"{len(found) - MAX_CAPTURES} captures beyond the first {MAX_CAPTURES}")
    captures = [_capture(one, path, left_out) for one in found[:MAX_CAPTURES]]
    return Side(name, str(path), sorted(captures, key=lambda c: (c.rank is None, c.rank or 0, c.label)), left_out)


def _capture(found: Found, path: Path, left_out: list[str]) -> Capture:
    rank = found.rank()
    label = f"rank {rank}" if rank is not None else _shown(found.files[0], path)
    if found.kind == "database":
        capture = read_database(found.files[0], label, rank)
    elif found.kind == "kernels":
        capture = read_kernels(found.files, label, rank)
    else:
        capture = Capture(label, [], rank)
    if found.operators is not None:
        read_operators(found.operators, capture)
    left_out += [f"{capture.label}: {note}" for note in found.notes]
    return capture


def _shown(file: Path, path: Path) -> str:
    return str(file.relative_to(path)) if file != path and file.is_relative_to(path) else file.name
