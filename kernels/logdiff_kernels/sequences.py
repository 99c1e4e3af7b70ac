"""Sequence files (`logdiff-sequences/1`, docs/architecture.md): token sequences and what was measured on them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff_kernels.errors import InputError

FORMAT = "logdiff-sequences/1"

_COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    "logprobs": (np.float32, 1),
    "logprobs_null": (np.uint8, 1),
    "topk_ids": (np.int64, 2),
    "topk_logprobs": (np.float32, 2),
    "entropy": (np.float32, 1),
    "experts": (np.int32, 3),
}
"""Per-token columns: dtype and number of dimensions."""


@dataclass(slots=True)
class Sequences:
    """S samples: prompts of P tokens in all, responses of T tokens in all (None in a file of prompts only).

    `columns` holds per-token facts of the response tokens, first dimension T: `logprobs` float32, `logprobs_null`
    uint8, `topk_ids` int64 [T, k], `topk_logprobs` float32 [T, k], `entropy` float32, `experts` int32
    [T, layers, k]. `metadata` holds everything else of the header, JSON-decoded where it is JSON.
    """

    sample_ids: list[str]
    prompt_ids: npt.NDArray[np.int64]
    prompt_offsets: npt.NDArray[np.int64]
    response_ids: npt.NDArray[np.int64] | None = None
    response_offsets: npt.NDArray[np.int64] | None = None
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def prompts(self) -> list[list[int]]:
        """Prompt token ids per sample."""
        return _pieces(self.prompt_ids, self.prompt_offsets)

    @property
    def responses(self) -> list[list[int]]:
        """Response token ids per sample; empty lists where the file has prompts only."""
        if self.response_ids is None or self.response_offsets is None:
            return [[] for _ in self.sample_ids]
        return _pieces(self.response_ids, self.response_offsets)

    @property
    def tokens(self) -> int:
        """Response tokens in all."""
        return 0 if self.response_ids is None else len(self.response_ids)


def build(
    sample_ids: Sequence[str],
    prompts: Iterable[Sequence[int]],
    responses: Iterable[Sequence[int]] | None = None,
    *,
    columns: dict[str, npt.NDArray[Any]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Sequences:
    """Sequences from lists of ids; `columns` as in `Sequences.columns` (None entries are left out)."""
    prompt_ids, prompt_offsets = _joined(prompts)
    result = Sequences(list(sample_ids), prompt_ids, prompt_offsets, metadata=dict(metadata or {}))
    if responses is not None:
        result.response_ids, result.response_offsets = _joined(responses)
    for name, values in (columns or {}).items():
        if values is not None:
            result.columns[name] = np.ascontiguousarray(values, dtype=_COLUMNS[name][0])
    _check(result, "<memory>")
    return result


def write(path: str | os.PathLike[str], sequences: Sequences) -> Path:
    """Write a sequence file atomically (temporary file, fsync, rename); makes the folder. Returns the path."""
    from safetensors.numpy import save

    target = Path(path)
    _check(sequences, str(target))
    arrays: dict[str, npt.NDArray[Any]] = {
        "prompt_ids": sequences.prompt_ids,
        "prompt_offsets": sequences.prompt_offsets,
    }
    if sequences.response_ids is not None and sequences.response_offsets is not None:
        arrays |= {"response_ids": sequences.response_ids, "response_offsets": sequences.response_offsets}
    arrays |= sequences.columns
    header = {"format": FORMAT, "sample_ids": json.dumps(sequences.sample_ids, ensure_ascii=False)}
    header |= {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in sequences.metadata.items()
        if key not in header
    }
    data = save({key: np.ascontiguousarray(value) for key, value in arrays.items()}, metadata=header)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def read(path: str | os.PathLike[str]) -> Sequences:
    """Read and check a sequence file.

    Raises:
        InputError: unreadable, another format, a missing or misshapen array, offsets that do not fit.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as stream:
            header = dict(stream.metadata() or {})
            if header.get("format") != FORMAT:
                raise InputError(f"not a {FORMAT} file", value=str(path), hint="a file that a runner wrote")
            arrays = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise InputError(f"can't read the sequence file: {error}", value=str(path)) from error
    try:
        sample_ids = json.loads(header.pop("sample_ids"))
    except (KeyError, ValueError) as error:
        raise InputError("the sequence file has no readable sample_ids", value=str(path)) from error
    header.pop("format")
    missing = {"prompt_ids", "prompt_offsets"} - set(arrays)
    if missing:
        raise InputError(f"the sequence file lacks {sorted(missing)}", value=str(path))
    result = Sequences(
        sample_ids=sample_ids,
        prompt_ids=arrays["prompt_ids"],
        prompt_offsets=arrays["prompt_offsets"],
        response_ids=arrays.get("response_ids"),
        response_offsets=arrays.get("response_offsets"),
        columns={key: value for key, value in arrays.items() if key in _COLUMNS},
        metadata={key: _decoded(value) for key, value in header.items()},
    )
    _check(result, str(path))
    return result


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pieces(values: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> list[list[int]]:
    return [values[a:b].tolist() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _joined(lists: Iterable[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    arrays = [np.asarray(ids, dtype=np.int64).reshape(-1) for ids in lists]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    return (np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)), offsets


def _check(sequences: Sequences, where: str) -> None:
    def fail(what: str) -> InputError:
        return InputError(f"bad sequence file: {what}", value=where)

    ids = sequences.sample_ids
    if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
        raise fail("sample_ids is no list of strings")
    pairs = [("prompt", sequences.prompt_ids, sequences.prompt_offsets)]
    if (sequences.response_ids is None) != (sequences.response_offsets is None):
        raise fail("response_ids and response_offsets must come together")
    if sequences.response_ids is not None and sequences.response_offsets is not None:
        pairs.append(("response", sequences.response_ids, sequences.response_offsets))
    for name, values, offsets in pairs:
        if values.dtype != np.int64 or offsets.dtype != np.int64 or values.ndim != 1 or offsets.ndim != 1:
            raise fail(f"{name} ids and offsets must be int64 vectors")
        if len(offsets) != len(ids) + 1:
            raise fail(f"{len(offsets)} {name} offsets for {len(ids)} samples")
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((np.diff(offsets) < 0).any()):
            raise fail(f"{name} offsets do not cover the {len(values)} ids in order")
    for name, values in sequences.columns.items():
        dtype, dimensions = _COLUMNS[name]
        if values.dtype != dtype or values.ndim != dimensions or len(values) != sequences.tokens:
            raise fail(
                f"{name} is {values.dtype}{list(values.shape)}, expected {np.dtype(dtype)} with {dimensions} "
                f"dimension(s) over {sequences.tokens} tokens"
            )
