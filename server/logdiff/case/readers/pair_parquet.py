"""`logdiff-pair/1` in Parquet: the same field names as nested list columns, the header in the file's metadata.

The key-value metadata entry `logdiff-pair` holds the header as JSON; a file without it has no facts. A top-k column is
`list<list<struct<id: int64, logprob: float>>>`; `list<list<list<double>>>`, as converters of JSON make it, is read too.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logdiff.case.batch import SIDES, PairBatch
from logdiff.case.batching import split_batch
from logdiff.case.readers.columns import ExpertsColumn, Ints, ListColumn, PairColumns, TopKColumn, assemble
from logdiff.case.readers.json_rows import FIELDS, NUMBERS, misspelled
from logdiff.case.readers.lines import parse_object
from logdiff.errors import InputError

METADATA_KEY = "logdiff-pair"
_REQUIRED = ("sample_id", "prompt_token_ids", "response_token_ids")
_MAX_VALUES_PER_ROW = 1 << 26
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


class ParquetPairs:
    """A pair file in Parquet, read by pages: a row group larger than memory is no obstacle."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def header(self) -> dict[str, Any]:
        """The `meta` of the header; empty when the file has none. Checks that required columns are there."""
        from logdiff.case.readers.pairs import check_header

        with self._file() as file:
            given = file.schema_arrow.names
            names = set(given)
            twice = next((name for name in given if name in FIELDS and given.count(name) > 1), None)
            if twice is not None:
                raise InputError(
                    f"{self._path}: column {twice} comes twice", value=given[:20], hint="give each column its own name"
                )
            lacking = [name for name in _REQUIRED if name not in names]
            if lacking:
                raise InputError(
                    f"{self._path}: column {lacking[0]} is missing",
                    value=sorted(names)[:20],
                    hint="name the columns as the fields of logdiff-pair/1",
                )
            if slip := misspelled(given, names):
                raise InputError(
                    f"{self._path}: column {slip[0]} is no field", value=slip[0], hint=f"did you mean {slip[1]}?"
                )
            text = (file.metadata.metadata or {}).get(METADATA_KEY.encode())
        if text is None:
            return {}
        where = f"{self._path}: metadata {METADATA_KEY}"
        return check_header(parse_object(text, where), where)

    def batches(self, max_tokens: int) -> Iterator[PairBatch]:
        """See `PairFile.batches`."""
        with self._file() as file:
            columns = [name for name in file.schema_arrow.names if name in FIELDS]
            first = 0
            most = _most_values(self._path)
            for group in range(file.num_row_groups):
                total = int(file.metadata.row_group(group).num_rows)
                rows = _rows_per_read(total, most.get(group, 0), max_tokens, str(self._path))
                try:
                    for part in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                        yield from split_batch(assemble(_Columns(part, str(self._path), first).read()), max_tokens)
                        first += part.num_rows
                except (pa.ArrowException, OSError, ValueError) as error:
                    raise InputError(
                        f"{self._path}: row group {group} is damaged: {error}",
                        value=str(self._path),
                        hint="copy or write the file again",
                    ) from None

    def _file(self) -> pq.ParquetFile:
        try:
            # Without these two, a whole row group would be fetched before its first row is seen.
            return pq.ParquetFile(self._path, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError, ValueError) as error:
            size = self._path.stat().st_size
            with self._path.open("rb") as handle:
                handle.seek(max(0, size - 4))
                cut_off = handle.read() != b"PAR1"
            what = "the Parquet file is cut off (no footer)" if cut_off else f"the Parquet file is damaged: {error}"
            raise InputError(f"{self._path}: {what}", value=size, hint="copy or write the file again") from None


def _most_values(path: Path) -> dict[int, int]:
    """Row group -> values of its longest column, from the footer.

    DuckDB reads them, since pyarrow ends the whole process when it looks at a damaged column of a footer.
    """
    import duckdb

    sql = "SELECT row_group_id, max(num_values) FROM parquet_metadata(?) GROUP BY row_group_id"
    try:
        with duckdb.connect(":memory:") as connection:
            found = connection.execute(sql, [glob.escape(str(path.resolve()))]).fetchall()
    except duckdb.Error as error:
        raise InputError(
            f"{path}: the footer is damaged: {error}", value=str(path), hint="copy or write the file again"
        ) from None
    return {int(group): int(values) for group, values in found}


def _rows_per_read(rows: int, most: int, max_tokens: int, where: str) -> int:
    # The count of values stands in the footer, so a small file can't unpack into a huge row unseen.
    if rows and most // rows > _MAX_VALUES_PER_ROW:
        raise InputError(
            f"{where}: {most // rows} values per sample are more than {_MAX_VALUES_PER_ROW}",
            value=most,
            hint="write one sample per row",
        )
    return max(1, min(rows, max_tokens * rows // max(most, 1)))


class _Columns:
    """One record batch of a pair file as plain columns."""

    def __init__(self, part: pa.RecordBatch, where: str, first: int) -> None:
        self._part = part
        self._where = where
        self._first = first
        self._names = set(part.schema.names)

    def read(self) -> PairColumns:
        both = ("rollout", "train")
        return PairColumns(
            sample_id=self._texts("sample_id"),
            numbers={name: self._whole(name) for name in NUMBERS},
            prompt=self._ints("prompt_token_ids"),
            ids=self._response_ids(),
            mask=self._mask(),
            logprobs={side: self._floats(f"{side}_logprobs") for side in SIDES},
            train_ids=self._ints("train_token_ids"),
            entropy={side: e for side in both if (e := self._floats(f"{side}_entropy")).present},
            topk={side: top for side in both if (top := self._topk(f"{side}_topk")) is not None},
            experts={side: x for side in both if (x := self._experts(f"{side}_experts")) is not None},
        )

    def _texts(self, name: str) -> list[str]:
        column: Any = self._part.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not any(is_text(column.type) for is_text in _TEXTS):
            raise self._error(name, "must be a string column", str(column.type))
        if column.null_count:
            raise self._error(name, "is null", self._row(column.is_null()))
        return [str(text) for text in column.to_pylist()]

    def _whole(self, name: str) -> Ints:
        default, width = NUMBERS[name]
        column = self._get(name)
        if column is None:
            return np.full(self._part.num_rows, default, np.int64)
        if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
            raise self._error(name, "must be an integer column", str(column.type))
        return self._integers(name, column.fill_null(default) if column.null_count else column, width).astype(np.int64)

    def _response_ids(self) -> ListColumn:
        column = self._ints("response_token_ids")
        if (column.counts < 0).any():
            raise self._error("response_token_ids", "is null", self._first + int(np.argmin(column.counts)) + 1)
        return column

    def _ints(self, name: str) -> ListColumn:
        counts, values = self._open(name, self._get(name))
        return ListColumn(counts, self._integers(name, values, np.int64))

    def _mask(self) -> ListColumn:
        name = "response_mask"
        counts, values = self._open(name, self._get(name))
        if pa.types.is_null(values.type) and not len(values):
            return ListColumn(counts, np.zeros(0, np.bool_))
        if not (pa.types.is_boolean(values.type) or _is_number(values.type)) or values.null_count:
            raise self._error(name, "must hold 0 and 1 only", str(values.type))
        plain = values.to_numpy(zero_copy_only=False)
        wrong = (plain != 0) & (plain != 1)
        if wrong.any():
            raise self._error(name, "must be 0 or 1", plain[int(np.argmax(wrong))].item())
        return ListColumn(counts, plain.astype(np.bool_))

    def _floats(self, name: str) -> ListColumn:
        counts, values = self._open(name, self._get(name))
        plain, null = self._reals(name, values)
        return ListColumn(counts, plain, null)

    def _topk(self, name: str) -> TopKColumn | None:
        column = self._get(name)
        if column is None:
            return None
        counts, tokens = self._open(name, column)
        if not (counts >= 0).any():
            return None
        entries, pairs = self._open(name, tokens)
        if pa.types.is_struct(pairs.type) and {"id", "logprob"} <= {f.name for f in pairs.type}:
            pairs = pairs.filter(pairs.is_valid())
            ids, logprobs = pairs.field("id"), pairs.field("logprob")
        else:
            sizes, flat = self._open(name, pairs)
            if (sizes != 2).any() or not _is_number(flat.type):
                raise self._error(name, "must hold pairs of id and logprob", str(pairs.type))
            ids, logprobs = (
                flat.take(pa.array(np.arange(0, len(flat), 2))),
                flat.take(pa.array(np.arange(1, len(flat), 2))),
            )
            try:
                ids = ids.cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise self._error(name, "must hold whole numbers as ids", str(error)) from None
        if len(ids) != int(np.maximum(entries, 0).sum()):
            raise self._error(name, "holds null pairs", "null")
        return TopKColumn(
            counts, np.maximum(entries, 0), self._integers(name, ids, np.int64), self._reals(name, logprobs)[0]
        )

    def _experts(self, name: str) -> ExpertsColumn | None:
        column = self._get(name)
        if column is None:
            return None
        counts, tokens = self._open(name, column)
        if not (counts >= 0).any():
            return None
        layers, rows = self._open(name, tokens)
        slots, values = self._open(name, rows)
        return ExpertsColumn(
            counts, np.maximum(layers, 0), np.maximum(slots, 0), self._integers(name, values, np.int32)
        )

    def _get(self, name: str) -> Any:
        return self._part.column(name) if name in self._names else None

    def _open(self, name: str, column: Any) -> tuple[Ints, Any]:
        """One level of lists: counts per row (-1 where null) and the joined elements."""
        if column is None:
            return np.full(self._part.num_rows, -1, np.int64), pa.array(
                [], pa.float32() if "log" in name else pa.int64()
            )
        kind = column.type
        if pa.types.is_null(kind):
            return np.full(len(column), -1, np.int64), pa.array([], pa.null())
        if pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
            column = column.cast(pa.large_list(kind.value_type))
        elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise self._error(name, "must be a list column", str(kind))
        return pc.list_value_length(column).fill_null(-1).to_numpy().astype(np.int64), column.flatten()

    def _integers(self, name: str, values: Any, width: type[Any]) -> npt.NDArray[Any]:
        if pa.types.is_null(values.type) and not len(values):
            return np.zeros(0, width)
        if not pa.types.is_integer(values.type):
            raise self._error(name, "must hold whole numbers", str(values.type))
        if values.null_count:
            raise self._error(name, "holds a null, where a whole number is needed", "null")
        try:
            return np.asarray(values.cast(pa.from_numpy_dtype(np.dtype(width))))
        except pa.ArrowInvalid as error:
            raise self._error(name, f"does not fit {np.dtype(width).name}", str(error)) from None

    def _reals(self, name: str, values: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_] | None]:
        if pa.types.is_null(values.type):
            return np.full(len(values), np.nan, np.float32), np.ones(len(values), np.bool_)
        if not _is_number(values.type):
            raise self._error(name, "must hold numbers", str(values.type))
        if not pa.types.is_floating(values.type):
            values = values.cast(pa.float64(), safe=False)
        null = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        # Read the buffer itself where nothing is null: a NaN in the file must not become a null, nor lose its bits.
        plain = values.to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore", invalid="ignore"):
            return plain.astype(np.float32, copy=False), null

    def _row(self, flags: Any) -> int:
        return self._first + int(np.argmax(flags.to_numpy(zero_copy_only=False))) + 1

    def _error(self, name: str, what: str, value: Any) -> InputError:
        last = self._first + self._part.num_rows
        return InputError(
            f"{self._where}: rows {self._first + 1} to {last}: column {name} {what}",
            value=value,
            hint=f"write {name} as logdiff-pair/1 says",
        )


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
