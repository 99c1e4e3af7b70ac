"""The token table of a case: its schema and streaming writer (the reader: token_reader.py).

Every batch is one row group of `tokens.parquet` (all rollout rows, then train, then rescore) and one row group of
`samples.parquet`, so columns of both sides are read back aligned, without a join, one batch at a time. A small index
in the footers says which sides each row group holds.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from logdiff.case.batch import SIDES, PairBatch
from logdiff.case.batching import MAX_TOKENS, concat_batches, split_batch
from logdiff.case.files import sync_folder, temporary_name
from logdiff.errors import CaseError

INDEX_KEY = "logdiff-index"
LENGTHS = ("len_ids", "len_mask", "len_rollout", "len_train", "len_rescore")
EXTRA_LENGTHS = ("rollout_topk", "train_topk", "rollout_experts", "train_experts")
_KEY: list[tuple[str, pa.DataType]] = [
    ("sample_id", pa.dictionary(pa.int32(), pa.string())),
    ("step", pa.int32()),
    ("rank", pa.int32()),
    ("side", pa.dictionary(pa.int32(), pa.string())),
    ("position", pa.int32()),
]


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema(columns)


SCHEMAS = {
    "tokens": _schema(
        *_KEY, ("token_id", pa.int64()), ("logprob", pa.float32()), ("mask", pa.bool_()), ("entropy", pa.float32())
    ),
    "topk": _schema(*_KEY, ("k", pa.int32()), ("token_id", pa.int64()), ("logprob", pa.float32())),
    "experts": _schema(*_KEY, ("layer", pa.int32()), ("slot", pa.int32()), ("expert", pa.int32())),
    "samples": _schema(
        ("sample_id", pa.string()),
        ("step", pa.int32()),
        ("rank", pa.int32()),
        ("policy_version", pa.int64()),
        ("pack", pa.int32()),
        ("left_pad", pa.int32()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("response_tokens", pa.int64()),
        ("train_token_ids", pa.list_(pa.int64())),
        *((name, pa.int64()) for name in LENGTHS),
        *((f"len_{name}", pa.int64()) for name in EXTRA_LENGTHS),
    ),
}
# Logprobs hardly compress; positions and ids do best as packed differences. Snappy keeps writing far ahead of capture.
_DELTA = {"position", "token_id", "k", "layer", "slot", "expert"}
_PLAIN = {"logprob", "entropy"}


_MAX_CELLS = 1 << 22
"""Rows of one row group in the tables of top-k and experts, which have many rows for one token."""


def _cells_per_token(batch: PairBatch) -> int:
    shapes = [top.ids.shape[1:] for top in batch.topk.values()] + [e.shape[1:] for e in batch.experts.values()]
    return max([1, *(math.prod(shape) for shape in shapes)])


class TokenWriter:
    """Writes the tables of one case in bounded memory. Small batches are joined until a row group is worth it.

    Tables are written under temporary names. `close` gives them their final names, `tokens.parquet` last; leaving
    the context with an error, or `abort`, removes them and leaves an earlier table as it was.
    """

    def __init__(self, case: Path, *, target_tokens: int = MAX_TOKENS) -> None:
        self._case = case
        self._target = target_tokens
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._index: dict[str, list[dict[str, Any]]] = {"tokens": [], "topk": [], "experts": []}
        self._pending: list[PairBatch] = []
        self._pending_tokens = self._pending_samples = 0
        self._closed = False
        for name in ("tokens", "samples"):
            self._writer(name)

    def append(self, batch: PairBatch) -> None:
        """Add the samples of a batch after those already there."""
        target = min(self._target, _MAX_CELLS // _cells_per_token(batch))
        for piece in split_batch(batch, max(1, target)):
            tokens, samples = self._pending_tokens + piece.tokens, self._pending_samples + piece.samples
            if self._pending and max(tokens, samples) > target:
                self._flush()
            self._pending.append(piece)
            self._pending_tokens += piece.tokens
            self._pending_samples += piece.samples

    def close(self) -> None:
        """Finish the tables and give them their names. May be called twice."""
        if self._closed:
            return
        try:
            self._flush()
            self._finish()
        except BaseException:
            self.abort()
            raise
        self._closed = True
        # Without tokens.parquet there is no table, so a kill between the renames can't mix old tables with new ones.
        self._path("tokens").unlink(missing_ok=True)
        for name in ("topk", "experts", "samples", "tokens"):
            if name in self._writers:
                temporary_name(self._path(name)).replace(self._path(name))
            else:
                self._path(name).unlink(missing_ok=True)
        sync_folder(self._case)

    def abort(self) -> None:
        """Drop what was written."""
        if self._closed:
            return
        self._closed = True
        for name, writer in self._writers.items():
            with suppress(OSError):  # a full disk may be why the table is dropped
                writer.close()
            temporary_name(self._path(name)).unlink(missing_ok=True)

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _finish(self) -> None:
        for name, writer in self._writers.items():
            try:
                if name in self._index:
                    writer.add_key_value_metadata({INDEX_KEY: json.dumps(self._index[name])})
                writer.close()
                _sync(temporary_name(self._path(name)))
            except OSError as error:
                raise self._failed(error) from None

    def _failed(self, error: OSError) -> CaseError:
        return CaseError(
            f"the token table can't be written: {error}", value=str(self._case), hint="check rights and free space"
        )

    def _path(self, name: str) -> Path:
        return self._case / f"{name}.parquet"

    def _writer(self, name: str) -> pq.ParquetWriter:
        if name not in self._writers:
            schema = SCHEMAS[name]
            encoding = {c: "DELTA_BINARY_PACKED" for c in schema.names if c in _DELTA}
            dictionary: Any = ["sample_id", "side", "step", "rank"]
            encoding |= {c: "PLAIN" for c in schema.names if c in _PLAIN}
            self._writers[name] = pq.ParquetWriter(
                temporary_name(self._path(name)),
                schema,
                compression="snappy",
                use_dictionary=dictionary if name != "samples" else False,
                column_encoding=encoding if name != "samples" else None,
                write_statistics=["sample_id", "side", "step", "rank", "position", "token_id"],
            )
        return self._writers[name]

    def _flush(self) -> None:
        if not self._pending:
            return
        batch = concat_batches(self._pending)
        self._pending, self._pending_tokens, self._pending_samples = [], 0, 0
        sides = present_sides(batch)
        self._write("samples", _samples_table(batch))
        self._write("tokens", _tokens_table(batch, sides))
        self._index["tokens"].append({"sides": sides, "tokens": batch.tokens, "entropy": list(batch.entropy)})
        number = len(self._index["tokens"]) - 1
        for side, top in batch.topk.items():
            k = top.ids.shape[1]
            columns = {"k": _tile(k, batch.tokens), "token_id": top.ids.ravel(), "logprob": top.logprobs.ravel()}
            self._write("topk", _expanded("topk", batch, side, k, columns))
            self._index["topk"].append({"batch": number, "side": side, "k": k})
        for side, experts in batch.experts.items():
            layers, k = experts.shape[1:]
            columns = {
                "layer": np.tile(np.repeat(np.arange(layers, dtype=np.int32), k), batch.tokens),
                "slot": _tile(k, batch.tokens * layers),
                "expert": experts.ravel(),
            }
            self._write("experts", _expanded("experts", batch, side, layers * k, columns))
            self._index["experts"].append({"batch": number, "side": side, "layers": layers, "k": k})

    def _write(self, name: str, table: pa.Table) -> None:
        try:
            self._writer(name).write_table(table, row_group_size=max(1, table.num_rows))
        except OSError as error:
            raise self._failed(error) from None


def present_sides(batch: PairBatch) -> list[str]:
    """Sides that get rows: those some sample gave values for, or rollout alone when there are none at all."""
    given = batch.lengths[:, 2:] >= 0
    sides = [side for i, side in enumerate(SIDES) if given[:, i].any() or side in batch.entropy]
    return sides or ["rollout"]


def _tile(k: int, times: int) -> npt.NDArray[np.int32]:
    return np.tile(np.arange(k, dtype=np.int32), times)


def _positions(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    counts = np.diff(offsets)
    return (np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)).astype(np.int32)


def _key_columns(batch: PairBatch, sides: list[str], repeat: int = 1) -> dict[str, Any]:
    counts = np.diff(batch.offsets)
    sample = np.repeat(np.arange(batch.samples, dtype=np.int32), counts * repeat)
    position = np.repeat(_positions(batch.offsets), repeat)
    times, rows = len(sides), len(sample)
    codes = np.repeat(np.array([SIDES.index(side) for side in sides], np.int32), rows)
    return {
        "sample_id": _dictionary(np.tile(sample, times), batch.sample_id),
        "step": np.tile(batch.step[sample], times),
        "rank": np.tile(batch.rank[sample], times),
        "side": _dictionary(codes, list(SIDES)),
        "position": np.tile(position, times),
    }


def _dictionary(codes: npt.NDArray[np.int32], names: list[str]) -> Any:
    # A sample may stand in a batch twice (a finding of the gates, not an error here); a dictionary holds it once.
    encoded = pa.array(names, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.to_numpy()[codes], encoded.dictionary)


def _tokens_table(batch: PairBatch, sides: list[str]) -> pa.Table:
    times = len(sides)
    columns = _key_columns(batch, sides)
    columns["token_id"] = np.tile(batch.token_ids, times)
    columns["logprob"] = pa.array(
        np.concatenate([batch.logprob[s] for s in sides]), mask=np.concatenate([batch.null[s] for s in sides])
    )
    columns["mask"] = np.tile(batch.mask, times)
    if batch.entropy:
        absent = np.full(batch.tokens, np.nan, np.float32)
        entropy = np.concatenate([batch.entropy.get(s, absent) for s in sides])
        columns["entropy"] = pa.array(entropy, mask=np.isnan(entropy))
    else:
        columns["entropy"] = pa.nulls(batch.tokens * times, pa.float32())
    return pa.table(columns, schema=SCHEMAS["tokens"])


def _expanded(name: str, batch: PairBatch, side: str, repeat: int, columns: dict[str, Any]) -> pa.Table:
    return pa.table(_key_columns(batch, [side], repeat) | columns, schema=SCHEMAS[name])


def _samples_table(batch: PairBatch) -> pa.Table:
    train = [ids for ids in batch.train_ids if ids is not None]
    train_counts = np.array([0 if ids is None else len(ids) for ids in batch.train_ids], np.int64)
    absent = pa.array([ids is None for ids in batch.train_ids], pa.bool_())
    columns: dict[str, Any] = {
        "sample_id": pa.array(batch.sample_id, pa.string()),
        "step": batch.step,
        "rank": batch.rank,
        "policy_version": batch.policy_version,
        "pack": batch.pack,
        "left_pad": batch.left_pad,
        "prompt_ids": _lists(np.diff(batch.prompt_offsets), batch.prompt_ids, None),
        "response_tokens": np.diff(batch.offsets),
        "train_token_ids": _lists(train_counts, np.concatenate(train) if train else np.zeros(0, np.int64), absent),
    }
    columns |= {name: batch.lengths[:, i] for i, name in enumerate(LENGTHS)}
    for name in EXTRA_LENGTHS:
        given = batch.extra_lengths.get(name)
        columns[f"len_{name}"] = pa.nulls(batch.samples, pa.int64()) if given is None else given
    return pa.table(columns, schema=SCHEMAS["samples"])


def _lists(counts: npt.NDArray[np.int64], values: npt.NDArray[np.int64], absent: Any) -> Any:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int64()), mask=absent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
