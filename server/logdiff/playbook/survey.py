"""What a workspace holds: run files, pair files and cases, told by their formats alone."""

from __future__ import annotations

import gzip
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEPTH = 4
"""Folders below the root that are looked into."""

MOST_ENTRIES = 4000
"""Files and folders looked at in all."""

MOST = 6
"""Most of each kind that is kept, newest first."""

HEAD = 1 << 12
TAIL = 1 << 16

_RUN = re.compile(rb"^format:[ \t]*[\"']?logdiff-run/1\b", re.M)
_PAIR = b'"logdiff-pair/1"'
_PAIR_FILES = (".jsonl", ".json", ".gz", ".zst", ".parquet")


@dataclass(frozen=True, slots=True)
class Survey:
    """Paths relative to the root, newest first.

    Args:
        run_files: `logdiff-run/1`.
        pairs: `logdiff-pair/1`.
        cases: folders with a manifest.
        case_is_newer: whether the newest case was changed after the newest evidence.
        truncated: the workspace is larger than what was looked at.
    """

    run_files: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    case_is_newer: bool = False
    truncated: bool = False


def survey(root: Path) -> Survey:
    """Look through a workspace: at most `DEPTH` folders down and `MOST_ENTRIES` entries, no links, nothing hidden.

    Of a file only its first bytes are read (of Parquet its last ones), and only its format is taken from them.
    """
    found: dict[str, list[tuple[float, str]]] = {"run": [], "pair": [], "case": []}
    seen = 0
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        seen += len(folders) + len(names)
        if seen > MOST_ENTRIES:
            break
        manifest = here / "manifest.json"
        if here != root and manifest.is_file():
            folders.clear()
            if _names_case(manifest):
                found["case"].append((_age(manifest), _relative(here, root)))
            continue
        deep = len(here.relative_to(root).parts) >= DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if _plain(f) and not (here / f).is_symlink())
        for name in sorted(names):
            path = here / name
            if _plain(name) and not path.is_symlink() and path.is_file() and (kind := _kind(path)) is not None:
                found[kind].append((_age(path), _relative(path, root)))
    newest = {kind: max((age for age, _ in entries), default=0.0) for kind, entries in found.items()}
    paths = {kind: tuple(p for _, p in sorted(entries, reverse=True)[:MOST]) for kind, entries in found.items()}
    return Survey(
        run_files=paths["run"],
        pairs=paths["pair"],
        cases=paths["case"],
        case_is_newer=bool(paths["case"]) and newest["case"] > max(newest["run"], newest["pair"]),
        truncated=seen > MOST_ENTRIES,
    )


def run_file_of(run: dict[str, Any] | None, root: Path, found: Survey) -> tuple[str | None, bool]:
    """The run file of the workspace that a live case was made from, and whether it says the same about alignment."""
    if run is None:
        return None, True
    from logdiff.errors import LogdiffError
    from logdiff.live.runfile import load_run_file

    best: tuple[str | None, bool] = (None, True)
    for name in found.run_files:
        try:
            public = load_run_file(root / name).public()
        except (LogdiffError, OSError):
            continue
        if public == run:
            return name, True
        if best[0] is None and _but_for_alignment(public) == _but_for_alignment(run):
            best = (name, False)
    return best


def _but_for_alignment(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key != "align"}


def _plain(name: str) -> bool:
    """A name that may stand in a call: not hidden, printable, no option."""
    return not name.startswith((".", "-")) and name.isprintable() and name != "__pycache__"


def _kind(path: Path) -> str | None:
    suffix = path.suffix.lower()
    try:
        if suffix in (".yaml", ".yml"):
            return "run" if _RUN.search(_head(path)) else None
        if suffix == ".parquet":
            tail = _tail(path)
            return "pair" if b"logdiff-pair" in tail or b"rollout_logprobs" in tail else None
        if suffix == ".gz":
            with gzip.open(path) as stream:
                return "pair" if _PAIR in stream.read(HEAD) else None
        if suffix == ".zst":
            import zstandard

            with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
                return "pair" if _PAIR in stream.read(HEAD) else None
        if suffix in _PAIR_FILES:
            return "pair" if _PAIR in _head(path) else None
    except Exception:  # a broken file of any of these formats is no evidence; who measures it is told why
        return None
    return None


def _names_case(manifest: Path) -> bool:
    return b"logdiff-case/1" in _head(manifest)


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(HEAD)


def _tail(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - TAIL))
        return stream.read(TAIL)


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
