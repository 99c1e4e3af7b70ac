"""Sequence files (`logdiff-sequences/1`): what runners read and write, and the pairs that one step of them makes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from logdiff.case.batch import SIDES, PairBatch, TopK
from logdiff.case.batching import MAX_TOKENS
from logdiff.case.files import write_atomic
from logdiff.errors import InputError

FORMAT = "logdiff-sequences/1"

_COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    "logprobs": (np.float32, 1),
    "logprobs_null": (np.uint8, 1),
    "topk_ids": (np.int64, 2),
    "topk_logprobs": (np.float32, 2),
    "entropy": (np.float32, 1),
    "experts": (np.int32, 3),
}
_OFFSETS = ("prompt_offsets", "response_offsets")
_HINT = "capture the step again; the file is damaged or another program's"


@dataclass(frozen=True, slots=True)
class Sequences:
    """S samples with P prompt and T response tokens; arrays as in docs/architecture.md, "Sequence files".

    `response_ids` and `response_offsets` are None in a file of prompts only. `columns` holds the per-token arrays
    (`logprobs` fp32 [T] in nats, `logprobs_null` uint8 [T], `topk_ids` int64 [T, k], `topk_logprobs` fp32 [T, k],
    `entropy` fp32 [T] in nats, `experts` int32 [T, layers, k]). `metadata` is the rest of the header.
    """

    sample_ids: list[str]
    prompt_ids: npt.NDArray[np.int64]
    prompt_offsets: npt.NDArray[np.int64]
    response_ids: npt.NDArray[np.int64] | None = None
    response_offsets: npt.NDArray[np.int64] | None = None
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """T, the number of response tokens (0 in a file of prompts only)."""
        return 0 if self.response_ids is None else len(self.response_ids)

    def prompt(self, i: int) -> npt.NDArray[np.int64]:
        """Prompt ids of sample `i`."""
        return self.prompt_ids[self.prompt_offsets[i] : self.prompt_offsets[i + 1]]

    def response(self, i: int) -> npt.NDArray[np.int64]:
        """Response ids of sample `i`; empty in a file of prompts only."""
        return self.prompt_ids[:0] if self.response_ids is None else self.response_ids[self.span(i)]

    def values(self) -> npt.NDArray[np.float64]:
        """Log-probabilities [T] in nats, NaN where there is none."""
        values = self.columns["logprobs"].astype(np.float64)
        null = self.columns.get("logprobs_null")
        return values if null is None else np.where(null != 0, np.nan, values)

    def span(self, i: int) -> slice:
        """Where sample `i` stands in the per-token arrays."""
        if self.response_offsets is None:
            return slice(0, 0)
        return slice(int(self.response_offsets[i]), int(self.response_offsets[i + 1]))


def build_sequences(
    sample_ids: Sequence[str],
    prompts: Iterable[Sequence[int]],
    responses: Iterable[Sequence[int]] | None = None,
    *,
    columns: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Sequences:
    """Sequences from lists of ids and per-token columns (see `Sequences.columns`), checked. Raises InputError."""
    prompt_ids, prompt_offsets = _joined(prompts)
    response_ids, response_offsets = (None, None) if responses is None else _joined(responses)
    arrays = {name: np.ascontiguousarray(v, dtype=_COLUMNS[name][0]) for name, v in (columns or {}).items()}
    result = Sequences(
        list(sample_ids), prompt_ids, prompt_offsets, response_ids, response_offsets, arrays, dict(metadata or {})
    )
    _check(result, "sequences")
    return result


def write_sequences(path: str | os.PathLike[str], sequences: Sequences) -> Path:
    """Write a sequence file in one step. Raises InputError when the arrays don't fit together."""
    target = Path(path)
    _check(sequences, str(target))
    arrays: dict[str, npt.NDArray[Any]] = {
        "prompt_ids": sequences.prompt_ids,
        "prompt_offsets": sequences.prompt_offsets,
        **sequences.columns,
    }
    if sequences.response_ids is not None and sequences.response_offsets is not None:
        arrays |= {"response_ids": sequences.response_ids, "response_offsets": sequences.response_offsets}
    header = {k: v if isinstance(v, str) else json.dumps(v) for k, v in sequences.metadata.items()}
    header |= {"format": FORMAT, "sample_ids": json.dumps(sequences.sample_ids)}
    # safetensors writes the buffer of a view as it lies, so every array must be whole and in C order.
    write_atomic(target, save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata=header))
    return target


def read_sequences(path: str | os.PathLike[str]) -> Sequences:
    """Read and check a sequence file.

    Raises:
        InputError: missing, cut off, another format, or arrays whose dtypes, shapes or offsets don't fit together.
    """
    where = str(path)
    if not Path(path).is_file():
        raise InputError("there is no sequence file here", value=where, hint="capture the step again")
    try:
        with safe_open(where, framework="numpy") as handle:
            header = dict(handle.metadata() or {})
            if header.get("format") != FORMAT:
                raise InputError(
                    f"{where} is not of format {FORMAT}", value=header.get("format"), hint="give a file of a runner"
                )
            names = set(handle.keys())
            known = {"prompt_ids", "response_ids", *_OFFSETS, *_COLUMNS}
            arrays = {name: handle.get_tensor(name) for name in sorted(names & known)}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise InputError(f"the sequence file can't be read: {error}", value=where, hint=_HINT) from None
    for name in ("prompt_ids", "prompt_offsets"):
        if name not in arrays:
            raise InputError(f"{where}: {name} is missing", value=sorted(names), hint=_HINT)
    try:
        sample_ids = json.loads(header.pop("sample_ids"))
    except (KeyError, ValueError, RecursionError):
        raise InputError(f"{where}: sample_ids is missing or no JSON", value=where, hint=_HINT) from None
    result = Sequences(
        sample_ids=sample_ids,
        prompt_ids=arrays["prompt_ids"],
        prompt_offsets=arrays["prompt_offsets"],
        response_ids=arrays.get("response_ids"),
        response_offsets=arrays.get("response_offsets"),
        columns={name: arrays[name] for name in _COLUMNS if name in arrays},
        metadata={name: _decoded(text) for name, text in header.items() if name != "format"},
    )
    _check(result, where)
    return result


def pair_batches(
    rollout: Sequences,
    train: Sequences | None = None,
    rescore: Sequences | None = None,
    *,
    step: int = 0,
    rank: int = 0,
    policy_version: int = -1,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[PairBatch]:
    """Pair the sequence files of one step by sample id, whatever the order of samples in each.

    The tokens are those of the rollout. A sample that the rollout lacks comes last, with the tokens of the side
    that has it and no rollout values; a sample that another side lacks has no values there. What the trainer scored
    (prompt + response) is kept in `train_ids`, so that the id gate can compare it.

    Raises:
        InputError: one file holds a sample id twice.
    """
    sides = {name: s for name, s in zip(SIDES, (rollout, train, rescore), strict=True) if s is not None}
    at = {name: _positions_by_id(name, s) for name, s in sides.items()}
    order = list(dict.fromkeys(sample for s in sides.values() for sample in s.sample_ids))
    pending: list[str] = []
    tokens = 0
    for sample in order:
        owner = next(name for name in sides if sample in at[name])
        count = len(sides[owner].response(at[owner][sample]))
        if pending and tokens + count > max_tokens:
            yield _pair(pending, sides, at, step, rank, policy_version)
            pending, tokens = [], 0
        pending.append(sample)
        tokens += count
    if pending:
        yield _pair(pending, sides, at, step, rank, policy_version)


def _pair(
    samples: list[str],
    sides: dict[str, Sequences],
    at: dict[str, dict[str, int]],
    step: int,
    rank: int,
    policy_version: int,
) -> PairBatch:
    owners = [next(name for name in sides if sample in at[name]) for sample in samples]
    places = list(zip(samples, owners, strict=True))
    prompt_ids, prompt_offsets = _joined(sides[owner].prompt(at[owner][s]) for s, owner in places)
    token_ids, offsets = _joined(sides[owner].response(at[owner][s]) for s, owner in places)
    count, total = len(samples), len(token_ids)
    lengths = np.full((count, 2 + len(SIDES)), -1, np.int64)
    lengths[:, 0] = np.diff(offsets)
    columns: dict[tuple[str, str], npt.NDArray[Any]] = {}
    for column, name in enumerate(SIDES, start=2):
        columns[name, "logprobs"] = np.full(total, np.nan, np.float32)
        columns[name, "null"] = np.ones(total, np.bool_)
        if name not in sides:
            continue
        source = sides[name]
        for key in ("entropy", "topk_ids", "topk_logprobs", "experts"):
            if key in source.columns:
                values = source.columns[key]
                fill = np.nan if values.dtype == np.float32 else -1
                columns[name, key] = np.full((total, *values.shape[1:]), fill, values.dtype)
        given = source.columns.get("logprobs_null")
        for i, sample in enumerate(samples):
            j = at[name].get(sample)
            if j is None:
                continue
            span = source.span(j)
            start = int(offsets[i])
            n = min(span.stop - span.start, int(offsets[i + 1]) - start)
            for key in ("logprobs", "entropy", "topk_ids", "topk_logprobs", "experts"):
                if key in source.columns:
                    columns[name, key][start : start + n] = source.columns[key][span][:n]
            if "logprobs" in source.columns:
                lengths[i, column] = span.stop - span.start
                columns[name, "null"][start : start + n] = False if given is None else given[span][:n] != 0
        columns[name, "logprobs"][columns[name, "null"]] = np.nan
    train = sides.get("train")
    return PairBatch(
        sample_id=samples,
        step=np.full(count, step, np.int32),
        rank=np.full(count, rank, np.int32),
        policy_version=np.full(count, policy_version, np.int64),
        pack=np.full(count, -1, np.int32),
        left_pad=np.full(count, -1, np.int32),
        prompt_offsets=prompt_offsets,
        prompt_ids=prompt_ids,
        offsets=offsets,
        token_ids=token_ids,
        mask=np.ones(total, np.bool_),
        logprob={name: columns[name, "logprobs"] for name in SIDES},
        null={name: columns[name, "null"] for name in SIDES},
        lengths=lengths,
        train_ids=[
            None
            if train is None or s not in at["train"]
            else np.concatenate([train.prompt(at["train"][s]), train.response(at["train"][s])])
            for s in samples
        ],
        topk={
            name: TopK(columns[name, "topk_ids"], columns[name, "topk_logprobs"])
            for name in SIDES
            if (name, "topk_ids") in columns
        },
        experts={name: columns[name, "experts"] for name in SIDES if (name, "experts") in columns},
        entropy={name: columns[name, "entropy"] for name in SIDES if (name, "entropy") in columns},
    )


def _positions_by_id(side: str, sequences: Sequences) -> dict[str, int]:
    at = {sample: i for i, sample in enumerate(sequences.sample_ids)}
    if len(at) < len(sequences.sample_ids):
        twice = next(s for i, s in enumerate(sequences.sample_ids) if at[s] != i)
        raise InputError(
            f"the {side} sequences hold a sample id twice", value=twice, hint="give each sample its own id"
        )
    return at


def _joined(lists: Iterable[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    arrays = [np.asarray(ids, dtype=np.int64).reshape(-1) for ids in lists]
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    return (np.concatenate(arrays) if arrays else np.zeros(0, np.int64)), offsets


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check(sequences: Sequences, where: str) -> None:
    def bad(what: str, value: Any) -> InputError:
        return InputError(f"{where}: {what}", value=value, hint=_HINT)

    ids = sequences.sample_ids
    if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
        raise bad("sample_ids must be a list of strings", str(ids)[:80])
    pieces = [("prompt", sequences.prompt_ids, sequences.prompt_offsets)]
    if sequences.response_ids is not None and sequences.response_offsets is not None:
        pieces.append(("response", sequences.response_ids, sequences.response_offsets))
    elif sequences.response_ids is not None or sequences.response_offsets is not None:
        raise bad("response_ids and response_offsets come together", "one of them")
    for name, values, offsets in pieces:
        for array in (values, offsets):
            if array.dtype != np.int64 or array.ndim != 1:
                raise bad(f"{name} ids and offsets must be int64 vectors", f"{array.dtype}{list(array.shape)}")
        if len(offsets) != len(ids) + 1:
            raise bad(f"{name}_offsets must have one entry more than there are samples ({len(ids)})", len(offsets))
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((offsets[1:] < offsets[:-1]).any()):
            raise bad(f"{name}_offsets must rise from 0 to {len(values)}", offsets[:8].tolist())
    for name, values in sequences.columns.items():
        dtype, dimensions = _COLUMNS[name]
        if values.dtype != dtype or values.ndim != dimensions or len(values) != sequences.tokens:
            shape = f"{np.dtype(dtype)} of {dimensions} dimensions, the first {sequences.tokens}"
            raise bad(f"{name} must be {shape}", f"{values.dtype}{list(values.shape)}")
    top = [sequences.columns.get(name) for name in ("topk_ids", "topk_logprobs")]
    if (top[0] is None) != (top[1] is None) or (
        top[0] is not None and top[1] is not None and top[0].shape != top[1].shape
    ):
        raise bad("topk_ids and topk_logprobs must have the same shape", [None if t is None else t.shape for t in top])
