"""Writing `logdiff-pair/1` files from batches, streaming, in one step (the file appears when it is whole)."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from logdiff.case.batch import SIDES, PairBatch, PairMeta
from logdiff.case.files import atomic_writer
from logdiff.errors import InputError

_SUFFIXES = (".jsonl", ".json", ".ndjson", ".gz", ".zst", ".parquet")
_BOTH = ("rollout", "train")


def write_pairs(path: str | os.PathLike[str], meta: PairMeta, batches: Iterable[PairBatch]) -> Path:
    """Write a pair file; the suffix chooses plain JSON Lines, `.gz`, `.zst` or `.parquet`.

    Log-probabilities keep their fp32 bits in every form (a NaN loses its payload in JSON).

    Raises:
        InputError: another suffix.
    """
    target = Path(path)
    if target.suffix not in _SUFFIXES:
        raise InputError("the suffix names no form of pair file", value=target.name, hint=", ".join(_SUFFIXES))
    with atomic_writer(target) as handle:
        if target.suffix == ".parquet":
            _write_parquet(handle, meta, batches)
        elif target.suffix == ".gz":
            # No time in the header: equal evidence makes equal files.
            with gzip.GzipFile(filename="", mode="wb", fileobj=handle, compresslevel=6, mtime=0) as stream:
                _write_lines(stream, meta, batches)
        elif target.suffix == ".zst":
            import zstandard

            with zstandard.ZstdCompressor(level=3).stream_writer(handle, closefd=False) as compressed:
                _write_lines(compressed, meta, batches)
        else:
            _write_lines(handle, meta, batches)
    return target


def _header(meta: PairMeta) -> bytes:
    from logdiff.case.readers.pairs import FORMAT

    return json.dumps({"format": FORMAT, "meta": meta.facts}).encode()


def _write_lines(stream: Any, meta: PairMeta, batches: Iterable[PairBatch]) -> None:
    stream.write(_header(meta) + b"\n")
    for batch in batches:
        finite = _all_finite(batch)
        buffer = io.BytesIO()
        for row in _rows(batch, lambda ids, values: [list(pair) for pair in zip(ids, values, strict=True)]):
            kept = {key: value for key, value in row.items() if value is not None}
            # msgspec would write NaN as null, which is another fact.
            buffer.write(msgspec.json.encode(kept) if finite else json.dumps(kept).encode())
            buffer.write(b"\n")
        stream.write(buffer.getvalue())


def _write_parquet(handle: IO[bytes], meta: PairMeta, batches: Iterable[PairBatch]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from logdiff.case.readers.pair_parquet import METADATA_KEY

    ints, floats = pa.list_(pa.int64()), pa.list_(pa.float32())
    pairs = pa.list_(pa.list_(pa.struct([pa.field("id", pa.int64()), pa.field("logprob", pa.float32())])))
    kinds: dict[str, pa.DataType] = {
        "sample_id": pa.string(),
        **dict.fromkeys(("step", "rank", "pack", "left_pad"), pa.int32()),
        "policy_version": pa.int64(),
        **dict.fromkeys(("prompt_token_ids", "response_token_ids", "train_token_ids"), ints),
        "response_mask": pa.list_(pa.int8()),
        **{f"{side}_logprobs": floats for side in SIDES},
        **{f"{side}_entropy": floats for side in _BOTH},
        **{f"{side}_topk": pairs for side in _BOTH},
        **{f"{side}_experts": pa.list_(pa.list_(pa.list_(pa.int32()))) for side in _BOTH},
    }
    schema = pa.schema(list(kinds.items()), metadata={METADATA_KEY: _header(meta)})
    with pq.ParquetWriter(handle, schema, compression="snappy", use_dictionary=False) as writer:
        for batch in batches:
            rows = _rows(batch, lambda ids, lps: [{"id": i, "logprob": lp} for i, lp in zip(ids, lps, strict=True)])
            table = pa.Table.from_pylist(list(rows), schema=schema)
            writer.write_table(table, row_group_size=max(1, table.num_rows))


def _all_finite(batch: PairBatch) -> bool:
    floats = [batch.logprob[side][~batch.null[side]] for side in SIDES]
    floats += [values[~np.isnan(values)] for values in batch.entropy.values()]
    floats += [top.logprobs[top.ids >= 0] for top in batch.topk.values()]
    return all(bool(np.isfinite(values).all()) for values in floats)


def _rows(batch: PairBatch, pairs: Callable[[list[int], list[float]], list[Any]]) -> Iterator[dict[str, Any]]:
    """Samples in the field names of a pair file, None where absent; lists get back the lengths they were given with."""
    ids, mask = batch.token_ids.tolist(), batch.mask.astype(np.int8).tolist()
    prompts, starts = batch.prompt_ids.tolist(), batch.prompt_offsets.tolist()
    offsets, lengths = batch.offsets.tolist(), batch.lengths.tolist()
    values = {side: _nullable(batch.logprob[side], batch.null[side]) for side in SIDES}
    entropy = {side: _nullable(e, np.isnan(e)) for side, e in batch.entropy.items()}
    for i, name in enumerate(batch.sample_id):
        t = slice(offsets[i], offsets[i + 1])
        train = batch.train_ids[i]
        row: dict[str, Any] = {
            "sample_id": name,
            "step": int(batch.step[i]),
            "rank": int(batch.rank[i]),
            "prompt_token_ids": prompts[starts[i] : starts[i + 1]],
            "response_token_ids": ids[t],
            "response_mask": _as_given(mask[t], lengths[i][1], 0),
            "train_token_ids": None if train is None else train.tolist(),
        }
        for key in ("policy_version", "pack", "left_pad"):
            number = int(getattr(batch, key)[i])
            row[key] = None if number == -1 else number
        for column, side in enumerate(SIDES, start=2):
            row[f"{side}_logprobs"] = _as_given(values[side][t], lengths[i][column], None)
        for side, flat in entropy.items():
            row[f"{side}_entropy"] = None if all(v is None for v in flat[t]) else flat[t]
        for side, top in batch.topk.items():
            tokens = [
                pairs(row_ids[row_ids >= 0].tolist(), lps[row_ids >= 0].astype(np.float64).tolist())
                for row_ids, lps in zip(top.ids[t], top.logprobs[t], strict=True)
            ]
            row[f"{side}_topk"] = _as_given(tokens, _length(batch, f"{side}_topk", i, tokens), [])
        for side, experts in batch.experts.items():
            tokens = [
                [[e for e in layer if e >= 0] for layer in token if max(layer, default=-1) >= 0]
                for token in experts[t].tolist()
            ]
            row[f"{side}_experts"] = _as_given(tokens, _length(batch, f"{side}_experts", i, tokens), [])
        yield row


def _length(batch: PairBatch, name: str, i: int, tokens: list[Any]) -> int:
    if name in batch.extra_lengths:
        return int(batch.extra_lengths[name][i])
    return len(tokens) if any(tokens) else -1


def _nullable(values: Any, null: Any) -> list[float | None]:
    out: list[float | None] = values.astype(np.float64).tolist()
    for at in np.flatnonzero(null).tolist():
        out[at] = None
    return out


def _as_given(values: list[Any], length: int, fill: Any) -> list[Any] | None:
    if length < 0:
        return None
    return values[:length] + [fill] * (length - len(values))
