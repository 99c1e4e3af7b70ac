"""Boundary files (`logdiff-boundaries/1`, safetensors): rows of a model's boundaries as one side passed them.

R rows, one per token that the model was fed of the kept samples, sorted by (sample, position).

| key | dtype, shape | |
| --- | --- | --- |
| `rows.sample` | int32 [R] | index in the header's `sample_ids` |
| `rows.position` | int32 [R] | place in prompt + response |
| `rows.input_id` | int64 [R] | the token id that the model received there |
| `rows.position_id` | int64 [R] | the position that the model received there; absent where unknown |
| `rows.pass` | int32 [R] | number of the forward pass (of this task) that computed the row |
| NAME | any float or int [r, F] | the boundary's rows in the dtype that the engine left |
| `NAME@rows` | int32 [r] | which of the R rows they are; absent where r = R (`NAME<in@rows`: where NAME's aren't) |
| `NAME<in` | [r, F'] | the operator's first argument, where that is no other boundary's rows to the bit |
| `NAME<in.1`, ... | [r, F'] | its second argument likewise, and so on |
| `NAME#hash` | int64 [r] | 64-bit hash of each row's bits (level "sketch") |
| `NAME#sketch` | float32 [r, 8] | eight fixed random projections of each row (level "sketch") |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.errors import InputError

FORMAT = "logdiff-boundaries/1"
PHASES = ("decode", "prefill", "score")
ROWS = ("rows.sample", "rows.position", "rows.input_id", "rows.position_id", "rows.pass")
"""Keys of who the rows are."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One boundary of a file.

    Args:
        name: as in `names`.
        where: the module or function of the engine that made it.
        inputs: boundaries whose rows the operator received, to the bit, in the order of its arguments; "" for an
            argument that is none of them (it lies under `given(name, number)`).
        facts: what the engine's own object says of the operator (eps, scale, window, ...), plain values.
    """

    name: str
    where: str
    inputs: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Header:
    """What a file says of itself; everything is plain JSON.

    `unmapped`: [{"where", "why"}] of modules with weights, or of operators, that no boundary stands for. `notes`: what
    a reader must know (compiled parts, boundaries left out for size).
    """

    engine: str
    side: str
    phase: str
    model: str
    dtype: str
    sample_ids: list[str]
    entries: list[Entry]
    unmapped: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


def given(name: str, number: int = 0) -> str:
    """The key of an operator's argument that is no boundary."""
    return f"{name}<in" if number == 0 else f"{name}<in.{number}"


def picked(values: torch.Tensor, have: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Of values for the rows `have` of a file those for the rows `wanted`, all of which must be there."""
    order = have.argsort()
    return values[order[torch.searchsorted(have[order].contiguous(), wanted.contiguous())]]


def write(path: str | os.PathLike[str], header: Header, tensors: dict[str, torch.Tensor]) -> Path:
    """Write a boundary file atomically; makes the folder. Returns the path."""
    from safetensors.torch import save_file

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    fields = {
        "engine": header.engine, "side": header.side, "phase": header.phase, "model": header.model,
        "dtype": header.dtype, "sample_ids": header.sample_ids, "unmapped": header.unmapped, "notes": header.notes,
        "extra": header.extra,
        "entries": [
            {"name": e.name, "where": e.where, "inputs": list(e.inputs), "facts": e.facts} for e in header.entries
        ],
    }  # fmt: skip
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    metadata = {"format": FORMAT, "header": json.dumps(fields, ensure_ascii=False)}
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, temporary, metadata)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


class BoundaryFile:
    """A boundary file whose tensors are read when they are asked for.

    Raises:
        InputError: unreadable, or another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = Path(path)
        try:
            self._stream = safe_open(str(path), framework="pt")
            metadata = dict(self._stream.metadata() or {})  # type: ignore[no-untyped-call]
            if metadata.get("format") != FORMAT:
                raise InputError(f"not a {FORMAT} file", value=str(path), hint="a file of the task 'capture'")
            fields = json.loads(metadata["header"])
            entries = [Entry(e["name"], e["where"], tuple(e["inputs"]), e["facts"]) for e in fields.pop("entries")]
            self.header = Header(**fields, entries=entries)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"can't read the boundary file: {error}", value=str(path)) from error
        self._keys = frozenset(self._stream.keys())  # type: ignore[no-untyped-call]

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def tensor(self, key: str) -> torch.Tensor:
        """A tensor by its key. Raises `KeyError`."""
        if key not in self._keys:
            raise KeyError(key)
        value: torch.Tensor = self._stream.get_tensor(key)  # type: ignore[no-untyped-call]
        return value

    def rows(self, name: str) -> torch.Tensor:
        """int64 [r]: which rows of the file a boundary has."""
        if f"{name}@rows" in self._keys:
            return self.tensor(f"{name}@rows").long()
        return torch.arange(len(self.tensor("rows.sample")))

    def given_rows(self, name: str, number: int) -> torch.Tensor:
        """int64 [r]: which rows of the file lie under `given(name, number)`."""
        key = f"{given(name, number)}@rows"
        return self.tensor(key).long() if key in self._keys else self.rows(name)

    def entries(self) -> Iterable[Entry]:
        """The boundaries of the file."""
        return self.header.entries
