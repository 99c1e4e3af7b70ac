"""One boundary file of the files of tensor-parallel ranks: features side by side, partial sums added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.engines.vllm.boundaries.calls import WHOLE, Shard
from logdiff_kernels.errors import EngineError
from logdiff_kernels.observe.boundaries import files, names
from logdiff_kernels.observe.boundaries.rowhash import row_hash, row_sketch


def join(paths: Sequence[Path], target: str, level: str) -> dict[str, Any]:
    """Put ranks' files (whole rows, level "full") together.

    Args:
        paths: in rank order.
        target: the file to write.
        level: "full" or "sketch", of the result.

    Returns:
        What `Recorder.write` returns.

    Raises:
        EngineError: ranks that saw other rows, or boundaries of which a part is missing.
    """
    ranks = [_Rank(files.BoundaryFile(path)) for path in paths]
    first = ranks[0].file
    tensors = {key: first.tensor(key) for key in files.ROWS if key in first}
    for rank in ranks[1:]:
        if any(key not in rank.file or not torch.equal(rank.file.tensor(key), rows) for key, rows in tensors.items()):
            raise EngineError("ranks computed different rows", value=str(rank.file.path), hint="report this as a bug")
    entries, values = [], 0
    for name in sorted({name for rank in ranks for name in rank.entries}, key=names.order):
        holders = [rank for rank in ranks if name in rank.entries]
        entry = holders[0].entries[name]
        rows = holders[0].file.rows(name)
        joined = {name: _joined(name, [(rank.shard(name), rank.file.tensor(name)) for rank in holders], len(ranks))}
        inputs = []
        for number, source in enumerate(entry.inputs):
            if source and all(rank.entries[name].inputs[number : number + 1] == (source,) for rank in holders):
                inputs.append(source)
                continue
            inputs.append("")
            parts = [(rank.given_shard(name, number), rank.given(name, number)) for rank in holders]
            if all(part is not None for _, part in parts):
                joined[files.given(name, number)] = _joined(name, parts, len(ranks))
        partial = {"partial_sums": len(ranks)} if holders[0].shard(name).mode == "sum" else {}
        entries.append(replace(entry, inputs=tuple(inputs), facts={**entry.facts, **partial}))
        for key, value in joined.items():
            values += value.numel()
            if level == "sketch":
                tensors |= {f"{key}#hash": row_hash(value), f"{key}#sketch": row_sketch(value)}
            else:
                tensors[key] = value
        if len(rows) != len(tensors["rows.sample"]):
            tensors[f"{name}@rows"] = rows.to(torch.int32)
    extra = {key: value for key, value in first.header.extra.items() if key != "shards"}
    notes = list(dict.fromkeys(note for rank in ranks for note in rank.file.header.notes))
    header = replace(first.header, entries=entries, notes=notes, extra={**extra, "level": level})
    path = files.write(target, header, tensors)
    return {
        "rows": len(tensors["rows.sample"]), "values": values, "bytes": path.stat().st_size,
        "boundaries": len(entries), "unmapped": header.unmapped, "notes": notes, "passes": extra.get("passes", 0),
    }  # fmt: skip


class _Rank:
    def __init__(self, file: files.BoundaryFile) -> None:
        self.file = file
        self.entries = {entry.name: entry for entry in file.entries()}
        self._shards: dict[str, list[list[Any]]] = file.header.extra.get("shards", {})

    def shard(self, name: str) -> Shard:
        found = self._shards.get(name)
        return Shard(*found[0]) if found else WHOLE

    def given_shard(self, name: str, number: int) -> Shard:
        found = self._shards.get(name) or []
        return Shard(*found[number + 1]) if number + 1 < len(found) else WHOLE

    def given(self, name: str, number: int) -> torch.Tensor | None:
        """This rank's rows of an argument, which may be a boundary here and none on another rank."""
        key = files.given(name, number)
        if key in self.file:
            return self.file.tensor(key)
        source = self.entries[name].inputs[number] if number < len(self.entries[name].inputs) else ""
        if not source or source not in self.entries:
            return None
        have, wanted = self.file.rows(source), self.file.rows(name)
        return files.picked(self.file.tensor(source), have, wanted) if torch.isin(wanted, have).all() else None


def _joined(name: str, parts: Sequence[tuple[Shard, Any]], ranks: int) -> torch.Tensor:
    shard, rows = parts[0]
    if shard.mode == "whole":
        found: torch.Tensor = rows
        return found
    if len(parts) != ranks:
        raise EngineError(f"{len(parts)} of {ranks} ranks have their part of {name}", value=name)
    if shard.mode == "sum":
        return torch.stack([part.float() for _, part in parts]).sum(0).to(rows.dtype)
    whole = torch.empty(len(rows), shard.total, dtype=rows.dtype)
    covered = torch.zeros(shard.total, dtype=torch.bool)
    for one, part in parts:
        whole[:, one.start : one.start + part.shape[1]] = part
        covered[one.start : one.start + part.shape[1]] = True
    if not bool(covered.all()):
        raise EngineError(f"{name}: ranks hold {int(covered.sum())} of {shard.total} features", value=name)
    return whole
