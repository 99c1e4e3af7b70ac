"""Reading the token table of a case back exactly as it was written, one row group at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from logdiff.case.batch import SIDES, PairBatch, TopK
from logdiff.case.batching import split_batch
from logdiff.case.tokens import EXTRA_LENGTHS, INDEX_KEY, LENGTHS
from logdiff.errors import CaseError


def read_batches(case: Path, max_tokens: int | None = None) -> Iterator[PairBatch]:
    """Yield the table of a case as `PairBatch`es, one row group at a time (see `Case.batches`)."""
    tokens, samples = open_table(case / "tokens.parquet"), open_table(case / "samples.parquet")
    index = _read_index(tokens, case / "tokens.parquet")
    if len(index) != tokens.num_row_groups or samples.num_row_groups != tokens.num_row_groups:
        raise CaseError(
            "tokens.parquet and samples.parquet don't belong together", value=str(case), hint="make the case again"
        )
    optional: dict[str, tuple[pq.ParquetFile, dict[int, list[tuple[int, dict[str, Any]]]]]] = {}
    for name in ("topk", "experts"):
        path = case / f"{name}.parquet"
        if path.is_file():
            file = open_table(path)
            by_batch: dict[int, list[tuple[int, dict[str, Any]]]] = {}
            for group, entry in enumerate(_read_index(file, path)):
                by_batch.setdefault(entry["batch"], []).append((group, entry))
            optional[name] = (file, by_batch)
    for number, entry in enumerate(index):
        try:
            batch = _read_batch(number, entry, tokens, samples, optional)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise CaseError(
                f"batch {number} of the token table is damaged: {error}", value=str(case), hint="make the case again"
            ) from None
        yield from split_batch(batch, max_tokens) if max_tokens else (batch,)


def open_table(path: Path) -> pq.ParquetFile:
    """Open one Parquet table of a case. Raises CaseError when it is missing, cut off or no Parquet."""
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError:
        raise CaseError(
            f"the case has no {path.name}", value=str(path.parent), hint="resume the run, or make the case again"
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = table_problem(path) or str(error)
        raise CaseError(f"{path.name}: {problem}", value=str(path), hint="make the case again") from None


def table_problem(path: Path) -> str | None:
    """What is wrong with a Parquet file, in words; None when its footer can be read."""
    size = path.stat().st_size
    if size == 0:
        return "the file is empty"
    with path.open("rb") as handle:
        handle.seek(max(0, size - 4))
        if handle.read(4) != b"PAR1":
            return f"the file is cut off after {size} bytes (no footer)"
    try:
        with pq.ParquetFile(path):
            return None
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"the file is damaged: {error}"


def _read_index(file: pq.ParquetFile, path: Path) -> list[dict[str, Any]]:
    try:
        index = json.loads((file.metadata.metadata or {})[INDEX_KEY.encode()])
        if isinstance(index, list) and all(isinstance(entry, dict) for entry in index):
            return index
    except (KeyError, ValueError):
        pass
    raise CaseError(f"{path.name} wasn't written by logdiff: no index in it", value=str(path), hint="make it again")


def _read_batch(
    number: int, entry: dict[str, Any], tokens: pq.ParquetFile, samples: pq.ParquetFile, optional: dict[str, Any]
) -> PairBatch:
    rows = samples.read_row_group(number)
    count = rows.num_rows
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(rows["response_tokens"].to_numpy(), out=offsets[1:])
    total, sides = int(offsets[-1]), entry["sides"]
    with_entropy = entry["entropy"]
    columns = tokens.read_row_group(number, columns=["token_id", "logprob", "mask"] + ["entropy"] * bool(with_entropy))
    if columns.num_rows != total * len(sides) or not set(sides) <= set(SIDES) or not sides:
        raise ValueError(f"{columns.num_rows} rows for {total} tokens of {sides}")
    logprob, null, entropy = {}, {}, {}
    for side in SIDES:
        at = sides.index(side) * total if side in sides else None
        logprob[side], null[side] = _values(columns["logprob"], at, total)
        if side in with_entropy:
            entropy[side] = _values(columns["entropy"], at, total)[0]
    prompt = _combined(rows["prompt_ids"])
    prompt_offsets = np.asarray(prompt.offsets, dtype=np.int64)
    train = _combined(rows["train_token_ids"])
    train_offsets = np.asarray(train.offsets)
    flat, absent = train.values.to_numpy(), train.is_null().to_numpy(zero_copy_only=False)
    lengths = np.stack([rows[name].to_numpy() for name in LENGTHS], axis=1).astype(np.int64)
    extra = {name: rows[f"len_{name}"] for name in EXTRA_LENGTHS}
    topk, experts = {}, {}
    for name, (file, by_batch) in optional.items():
        for group, shape in by_batch.get(number, ()):
            if name == "topk":
                pair = file.read_row_group(group, columns=["token_id", "logprob"])
                ids = pair["token_id"].to_numpy().reshape(total, shape["k"])
                topk[shape["side"]] = TopK(ids, pair["logprob"].to_numpy().reshape(total, shape["k"]))
            else:
                values = file.read_row_group(group, columns=["expert"])["expert"].to_numpy()
                experts[shape["side"]] = values.reshape(total, shape["layers"], shape["k"])
    return PairBatch(
        sample_id=[str(name) for name in rows["sample_id"].to_pylist()],
        step=rows["step"].to_numpy(),
        rank=rows["rank"].to_numpy(),
        policy_version=rows["policy_version"].to_numpy(),
        pack=rows["pack"].to_numpy(),
        left_pad=rows["left_pad"].to_numpy(),
        prompt_offsets=prompt_offsets - prompt_offsets[0],
        prompt_ids=prompt.values.to_numpy()[prompt_offsets[0] : prompt_offsets[-1]],
        offsets=offsets,
        token_ids=columns["token_id"].slice(0, total).to_numpy(),
        mask=columns["mask"].slice(0, total).to_numpy(),
        logprob=logprob,
        null=null,
        lengths=lengths,
        train_ids=[None if absent[i] else flat[train_offsets[i] : train_offsets[i + 1]] for i in range(count)],
        topk=topk,
        experts=experts,
        entropy=entropy,
        extra_lengths={name: column.to_numpy() for name, column in extra.items() if column.null_count == 0 and count},
    )


def _values(column: Any, at: int | None, total: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    if at is None:
        return np.full(total, np.nan, np.float32), np.ones(total, np.bool_)
    part = _combined(column.slice(at, total))
    null = part.is_null().to_numpy(zero_copy_only=False)
    if not part.null_count:
        return part.to_numpy(), null
    values = np.frombuffer(part.buffers()[1], np.float32, total, part.offset * 4).copy()
    values[null] = np.nan
    return values, null


def _combined(column: Any) -> Any:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
