"""`logdiff-pair/1` files: one stream of batches from any number of them, JSON Lines (plain, gzip, zstd) or Parquet."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from logdiff.case.batch import PairBatch, PairMeta
from logdiff.case.batching import MAX_TOKENS
from logdiff.case.readers.json_rows import FIELDS, SampleCollector, misspelled
from logdiff.case.readers.lines import file_kind, iter_lines, parse_object
from logdiff.errors import InputError
from logdiff.jsonio import plain

FORMAT = "logdiff-pair/1"
MAX_META_DEPTH = 100
"""Deepest nesting of the header's `meta`; configurations have about five levels."""
_HEADER = f'the first line must be {{"format": "{FORMAT}", "meta": {{...}}}}'
_MOST_NAMES = 1000
_IMPORT = "`logdiff import jsonl` reads files without a header and with other field names"


class PairFile(Protocol):
    """One opened pair file."""

    def header(self) -> dict[str, Any]:
        """The `meta` of the header."""
        ...

    def batches(self, max_tokens: int) -> Iterator[PairBatch]:
        """All samples, at most `max_tokens` response tokens per batch; a longer sample comes alone."""
        ...


def read_pairs(
    paths: Iterable[str | os.PathLike[str]], *, max_tokens: int = MAX_TOKENS
) -> tuple[PairMeta, Iterator[PairBatch]]:
    """Open pair files and stream their samples in the order given.

    Headers are read at once and merged; samples are read as the iterator is consumed, so errors in them come then.

    Returns:
        The merged facts, and batches in bounded memory.

    Raises:
        InputError: a file that can't be read as `logdiff-pair/1` (with file, line, value and the way out), or two
            files whose headers contradict each other.
    """
    files = [(str(path), _open(Path(path))) for path in paths]
    if not files:
        raise InputError("no pair file was given", value=[], hint="give one file or more")
    facts = _merge([(name, file.header()) for name, file in files])
    meta = PairMeta(facts=facts, source=", ".join(name for name, _ in files))
    return meta, (batch for _, file in files for batch in file.batches(max_tokens))


def check_header(header: dict[str, Any], where: str) -> dict[str, Any]:
    """The `meta` of a header object. Raises InputError when it is no header of this format."""
    found = header.get("format")
    if found != FORMAT:
        if found is None:
            fields = ", ".join(sorted(header))[:80]
            raise InputError(f"{where}: the header is missing", value=fields, hint=f"{_HEADER}; {_IMPORT}")
        hint = "use the logdiff that wrote it" if str(found).startswith("logdiff-pair/") else _HEADER
        raise InputError(f"{where}: the format is not {FORMAT}", value=str(found)[:80], hint=hint)
    meta = header.get("meta")
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise InputError(f"{where}: meta must be an object", value=str(meta)[:80], hint=_HEADER)
    if _depth(meta) > MAX_META_DEPTH:
        raise InputError(
            f"{where}: meta is nested more than {MAX_META_DEPTH} levels deep",
            value=", ".join(meta)[:80],
            hint="write flat facts",
        )
    return meta


def _depth(tree: Any) -> int:
    """Levels of nested objects and lists, counted without recursion."""
    depth, level = 0, [tree]
    while level := [node for node in level if isinstance(node, (dict, list))]:
        depth += 1
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
    return depth


class _JsonLinesPairs:
    """A pair file in JSON Lines. A pipe is read once, from its header on; a file is opened again for its samples."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: Generator[tuple[int, bytes], None, None] | None = None

    def header(self) -> dict[str, Any]:
        lines = iter_lines(self._path)
        number, line = next(lines, (0, b""))
        if not number:
            raise InputError(f"{self._path}: the file is empty", value=str(self._path), hint=_HEADER)
        if self._path.is_file():
            lines.close()
        else:
            self._lines = lines
        where = f"{self._path}: line {number}"
        return check_header(parse_object(line, where), where)

    def batches(self, max_tokens: int) -> Iterator[PairBatch]:
        lines = self._lines
        if lines is None:
            lines = iter_lines(self._path)
            next(lines, None)
        return collect(self._rows(lines), str(self._path), max_tokens)

    def _rows(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
        judged = set(FIELDS)
        for number, line in lines:
            where = f"{self._path}: line {number}"
            row = parse_object(line, where)
            if not judged.issuperset(row):
                if slip := misspelled(row.keys() - judged, row):
                    raise InputError(f"{where}: {slip[0]} is no field", value=slip[0], hint=f"did you mean {slip[1]}?")
                judged.update(row if len(judged) + len(row) < _MOST_NAMES else ())
            if "format" in row and "sample_id" not in row:
                raise InputError(
                    f"{where}: a second header", value=str(row["format"])[:80], hint="give joined files one by one"
                )
            for key in ("prompt_token_ids", "response_token_ids"):
                if key not in row:
                    sample = f", sample {str(row.get('sample_id'))[:80]}"
                    raise InputError(f"{where}{sample}: {key} is missing", value=sorted(row)[:20], hint=f"add {key}")
            yield number, row


def collect(rows: Iterable[tuple[int, dict[str, Any]]], source: str, max_tokens: int) -> Iterator[PairBatch]:
    """Batches from (line number, sample object) in the field names of `logdiff-pair/1`."""
    collector = SampleCollector(source)
    for number, row in rows:
        ids = row.get("response_token_ids")
        coming = len(ids) if isinstance(ids, list) else 0
        if collector.sample_id and (collector.tokens + coming > max_tokens or collector.values > 8 * max_tokens):
            yield collector.build()
        collector.add(row, number)
    if collector.sample_id:
        yield collector.build()


def _open(path: Path) -> PairFile:
    if file_kind(path) == "parquet":
        from logdiff.case.readers.pair_parquet import ParquetPairs

        return ParquetPairs(path)
    return _JsonLinesPairs(path)


def _merge(headers: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    source: dict[str, str] = {}
    for name, meta in headers:
        for key, value in meta.items():
            if key in facts and plain(facts[key]) != plain(value):  # as JSON, so that a NaN equals itself
                raise InputError(
                    f"the pair files contradict each other: meta.{key} is {facts[key]!r} in {source[key]} "
                    f"and {value!r} in {name}",
                    value={"key": key, source[key]: facts[key], name: value},
                    hint="measure files of different runs one by one",
                )
            facts.setdefault(key, value)
            source.setdefault(key, name)
    return facts
