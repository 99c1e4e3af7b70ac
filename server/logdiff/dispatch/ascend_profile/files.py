"""Which files of a folder are captures, and of which rank."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from logdiff.errors import InputError, storage_error

MAX_ENTRIES = 200_000
"""Files and folders looked at below one path."""

_KINDS = (
    ("database", re.compile(r"ascend_pytorch_profiler(_\d+)?\.db$")),
    ("kernels", re.compile(r"kernel_details(_\w+)?\.csv$")),
    ("database", re.compile(r"msprof_\d+\.db$|msprof\.db$")),
    ("kernels", re.compile(r"op_summary(_\w+)*\.csv$")),
)
"""Kind of file, best first: one capture is read from its best kind alone, or its tasks would count twice."""

_OPERATORS = re.compile(r"operator_details(_\w+)?\.csv$")
_ROOT = re.compile(r"(_ascend_(pt|ms))$|^PROF_")
HINT = (
    "name a folder that torch_npu.profiler or msprof wrote, or one of its files: ascend_pytorch_profiler*.db, "
    "msprof_*.db, kernel_details.csv, op_summary_*.csv, operator_details.csv"
)


@dataclass(frozen=True, slots=True)
class Found:
    """One capture's files.

    Attributes:
        root: the folder of the capture.
        kind: "database", "kernels" or "operators".
        files: the files to read, in order.
        operators: its `operator_details.csv`, if any.
        notes: what was passed over.
    """

    root: Path
    kind: str
    files: tuple[Path, ...]
    operators: Path | None
    notes: tuple[str, ...]

    def rank(self) -> int | None:
        """The rank that a file's or folder's name tells."""
        for file in self.files:
            match = re.search(r"ascend_pytorch_profiler_(\d+)\.db$", file.name)
            if match:
                return int(match[1])
        try:
            names = sorted(entry.name for entry in self.root.iterdir())
        except OSError:
            return None
        ranks = [int(m[1]) for m in (re.fullmatch(r"profiler_info_(\d+)\.json", name) for name in names) if m]
        return ranks[0] if len(ranks) == 1 else None


def find(path: Path) -> tuple[list[Found], list[str]]:
    """The captures at or below a path.

    Args:
        path: a file, or a folder of any depth; it may be a symbolic link, those below it are not followed.

    Returns:
        the captures in order of their paths, and what was left out.

    Raises:
        InputError: nothing there, or no file of a known name.
        StorageError: it can't be read.
    """
    if path.is_file():
        return [_one(path)], []
    if not path.is_dir():
        raise InputError("there is no profile", value=str(path), hint=HINT)
    groups: dict[Path, list[tuple[int, str, Path]]] = {}
    operators: dict[Path, Path] = {}
    left_out: list[str] = []
    for file in _walk(path, left_out):
        root = _root(file, path)
        if _OPERATORS.fullmatch(file.name):
            operators.setdefault(root, file)
        for place, (kind, pattern) in enumerate(_KINDS):
            if pattern.fullmatch(file.name):
                groups.setdefault(root, []).append((place, kind, file))
    found = [_capture(root, many, operators.pop(root, None)) for root, many in groups.items()]
    found += [Found(root, "operators", (file,), file, ()) for root, file in operators.items()]
    if not found:
        raise InputError("the folder has no profile in it", value=str(path), hint=HINT)
    return sorted(found, key=lambda f: str(f.files[0])), left_out


def _one(path: Path) -> Found:
    if _OPERATORS.fullmatch(path.name):
        return Found(path.parent, "operators", (path,), path, ())
    with path.open("rb") as handle:
        head = handle.read(16)
    database = head.startswith(b"SQLite format 3") or path.suffix == ".db"
    return Found(path.parent, "database" if database else "kernels", (path,), None, ())


def _capture(root: Path, many: list[tuple[int, str, Path]], operators: Path | None) -> Found:
    best = min(place for place, _, _ in many)
    kind = _KINDS[best][0]
    files = sorted(file for place, _, file in many if place == best)
    notes = [f"{file.name} is of the same capture and was not read" for place, _, file in many if place != best]
    if kind == "database" and len(files) > 1:
        # Exports of one capture carry their time in the name; the last one is whole.
        notes += [f"{file.name} is an earlier export and was not read" for file in files[:-1]]
        files = files[-1:]
    return Found(root, kind, tuple(files), operators if kind == "kernels" else None, tuple(sorted(notes)))


def _root(file: Path, top: Path) -> Path:
    """The outermost folder of a capture that a file lies in; the file's own folder where none is named like one."""
    inside = file.relative_to(top).parts[:-1]
    if _ROOT.search(top.name):
        return top
    for place, part in enumerate(inside):
        if _ROOT.search(part):
            return top.joinpath(*inside[: place + 1])
    if "ASCEND_PROFILER_OUTPUT" in inside:
        return top.joinpath(*inside[: inside.index("ASCEND_PROFILER_OUTPUT")])
    return file.parent


def _walk(top: Path, left_out: list[str]) -> Iterator[Path]:
    seen = 0
    folders = [top]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            refused = storage_error(error)
            if folder == top:
                raise refused or error from None
            left_out.append(f"{folder.relative_to(top)}: {error.strerror}")
            continue
        for entry in entries:
            seen += 1
            if seen > MAX_ENTRIES:
                raise InputError(
                    f"the folder has more than {MAX_ENTRIES} files below it",
                    value=str(top),
                    hint="name the folder of the capture itself, such as .../HOST_PID_TIME_ascend_pt",
                )
            if entry.is_symlink():
                left_out.append(f"{Path(entry.path).relative_to(top)}: a symbolic link; name its target to read it")
            elif entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)
