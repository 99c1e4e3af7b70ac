"""Readers: one file per foreign format, each turning files into `PairBatch`es.

To add one, write `READER(paths, mapping) -> (PairMeta, Iterator[PairBatch])` and name it in `FORMATS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from logdiff.case.batch import PairBatch, PairMeta
from logdiff.case.readers.jsonl import read_jsonl
from logdiff.case.readers.pair_writer import write_pairs
from logdiff.case.readers.pairs import read_pairs
from logdiff.errors import InputError

Paths = Iterable[str | os.PathLike[str]]
Reader = Callable[[Paths, Mapping[str, str]], tuple[PairMeta, Iterator[PairBatch]]]

__all__ = ["FORMATS", "Reader", "read", "read_jsonl", "read_pairs", "write_pairs"]


def _pair(paths: Paths, mapping: Mapping[str, str]) -> tuple[PairMeta, Iterator[PairBatch]]:
    if mapping:
        raise InputError(
            "logdiff-pair/1 has fixed names", value=dict(mapping), hint="leave the mapping out, or use format jsonl"
        )
    return read_pairs(paths)


FORMATS: dict[str, Reader] = {"pair": _pair, "jsonl": read_jsonl}
"""Format name of `logdiff import` -> its reader."""


def read(format: str, paths: Paths, mapping: Mapping[str, str] | None = None) -> tuple[PairMeta, Iterator[PairBatch]]:
    """Open files of a named format. Raises InputError for an unknown format and what its reader can't read."""
    if format not in FORMATS:
        raise InputError("unknown format", value=format, hint=f"one of {', '.join(sorted(FORMATS))}")
    return FORMATS[format](paths, dict(mapping or {}))
