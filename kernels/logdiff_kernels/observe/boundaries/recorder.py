"""Puts what hooks see, pass by pass, together into one boundary file; shared by the engines.

An adapter's use:

    recorder = Recorder(sample_ids, prompts, responses, Keep.parse(task), folder=output.parent)
    for each forward pass:
        recorder.begin(Rows(sample, position, input_id, position_id))       # who the n rows of the flat batch are
        recorder.give("layers.0.q", rows, where="model.layers.0.self_attn.q_proj", inputs=[given], facts={...})
        ...                                                                  # in execution order
        recorder.end()
    recorder.logprobs(values, present)                                       # of the whole task, from its columns
    data = recorder.write(path, engine=..., side=..., phase=..., model=..., dtype=..., unmapped=[...], notes=[...])
    recorder.close()

Rows are logical: `Rows.sample` is -1 for padding, warm-up and anything else that is no token of a sample; samples that
the task doesn't keep are dropped here too. Row order inside a pass is free. A row that several passes compute keeps
the last one's values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries import files, names
from logdiff_kernels.observe.boundaries.held import Chosen, Columns, Held, Kind, Pass
from logdiff_kernels.observe.boundaries.keep import MAX_BYTES, Keep
from logdiff_kernels.observe.boundaries.rowhash import row_hash
from logdiff_kernels.observe.boundaries.spool import Spool

__all__ = ["CACHED", "MAX_BYTES", "Keep", "Recorder", "Rows"]

CACHED = ("k_rope", "v")
"""Boundaries that attention of later tokens reads: rows of every position are kept."""

_SCORED = ("logits", "logprob")
_RECENT = 8
"""Tensors of a pass whose hashes are remembered: one tensor is the input of several operators."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Who the n rows of one pass's flat batch are; every field int64 [n] (numpy or torch).

    Args:
        sample: index into the task's samples; -1: nobody (padding).
        position: place in prompt + response.
        input_id: the token id that the model received.
        position_id: the position that the model received; None where unknown.
    """

    sample: Any
    position: Any
    input_id: Any
    position_id: Any = None


class Recorder:
    """Takes the boundaries of one task.

    Args:
        sample_ids: of the task's input, in its order; `Rows.sample` counts them.
        prompts, responses: token ids of each.
        keep: what is kept.
        folder: where the temporary file lies; rows are spooled there, so memory doesn't grow with the capture.

    Raises:
        InputError: `keep.samples` names a sample that isn't there.
    """

    def __init__(
        self,
        sample_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        keep: Keep,
        folder: str | os.PathLike[str],
    ) -> None:
        unknown = sorted(set(keep.samples or ()) - set(sample_ids))
        if unknown:
            raise InputError(f"the input has no sample {unknown[0]!r}", value=unknown[0])
        self._keep = keep
        self._chosen = [i for i, name in enumerate(sample_ids) if keep.samples is None or name in keep.samples]
        self._sample_ids = [sample_ids[i] for i in self._chosen]
        self._prompt = np.array([len(p) for p in prompts], dtype=np.int64)
        lengths = self._prompt + np.array([len(r) for r in responses], dtype=np.int64)
        self._file_index = np.full(len(sample_ids) + 1, -1, dtype=np.int64)  # the last place answers sample -1
        self._first = np.zeros(len(sample_ids) + 1, dtype=np.int64)
        self._length = np.append(lengths, 0)
        total = 0
        for place, i in enumerate(self._chosen):
            self._file_index[i], self._first[i] = place, total
            total += int(lengths[i])
        self._total = total
        sample = np.repeat(np.array(self._chosen, dtype=np.int64), lengths[self._chosen])
        position = np.arange(total) - self._first[sample]
        scored = (position >= self._prompt[sample] - 1) & (position < lengths[sample] - 1)
        last = np.ones(total, dtype=bool)
        if keep.last is not None:
            last = position >= lengths[sample] - 1 - keep.last
        self._kinds = {"every": Kind(np.ones(total, np.bool_)), "last": Kind(last), "scored": Kind(last & scored)}
        self._sample, self._position = self._file_index[sample], position
        self._input_id, self._position_id = np.zeros((2, total), dtype=np.int64)
        self._pass_of = np.full(total, -1, dtype=np.int32)
        self._positions_known = True
        self._spool = Spool(folder)
        self._used = 0
        self._left_out: dict[str, int] = {}
        self._held: dict[str, Held] = {}
        self._recent: list[tuple[torch.Tensor, Any, npt.NDArray[np.int64]]] = []
        self._pass: Pass | None = None
        self._again = 0
        self._notes: list[str] = []
        self.passes = 0

    def wants(self, name: str) -> bool:
        """Whether a boundary is kept: named by the task, and not found too large."""
        patterns = self._keep.boundaries
        if name in self._left_out:
            return False
        return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)

    def kept(self, sample: Any) -> npt.NDArray[np.int64]:
        """Which rows of a flat batch are of samples that are kept; `sample` as `Rows.sample`."""
        return np.flatnonzero(self._file_index[_numpy(sample)] >= 0)

    @property
    def kept_rows(self) -> npt.NDArray[np.int64]:
        """`kept` of the pass that runs."""
        return np.zeros(0, dtype=np.int64) if self._pass is None else self._pass.index

    def begin(self, rows: Rows) -> bool:
        """A forward pass begins. Returns whether any of its rows is kept; if not, `give` may be left out.

        Raises:
            ValueError: rows beyond a sample's length, or fields of different lengths.
        """
        sample, position, ids = (_numpy(v) for v in (rows.sample, rows.position, rows.input_id))
        if not len(sample) == len(position) == len(ids):
            raise ValueError(f"rows of {len(sample)} samples, {len(position)} positions, {len(ids)} ids")
        index = self.kept(sample)
        owner, place = sample[index], position[index]
        if bool(((place < 0) | (place >= self._length[owner])).any()):
            raise ValueError("a row lies beyond the end of its sample")
        slots = self._first[owner] + place
        self._again += int((self._pass_of[slots] >= 0).sum())
        self._input_id[slots], self._pass_of[slots] = ids[index], self.passes
        if rows.position_id is not None:
            self._position_id[slots] = _numpy(rows.position_id)[index]
        elif len(index):
            self._positions_known = False
        self._pass = Pass(self.passes, len(sample), index, slots)
        self.passes += 1
        return len(index) > 0

    def give(
        self,
        name: str,
        values: torch.Tensor,
        *,
        where: str = "",
        inputs: Sequence[torch.Tensor | None] = (),
        facts: Mapping[str, Any] | None = None,
        at: Any = None,
        every: bool | None = None,
    ) -> None:
        """A boundary of the pass that runs; in execution order, so that inputs find the boundaries they come from.

        Args:
            name: as in `names`; one that isn't wanted is dropped.
            values: [m, ...] rows of the flat batch on any device, made [m, F]; copied before this returns.
            where: the module or function.
            inputs: the operator's arguments, each [m, ...] of the same rows; None for one that isn't rows.
            facts: plain values.
            at: int64 [m] which rows of the flat batch `values` holds; None: all of them.
            every: keep rows of every position whatever `Keep.last` says; None: as `CACHED` says.

        Raises:
            ValueError: a name that is no boundary, rows that don't fit the pass, a width or dtype that changed.
        """
        part = names.parse(name)[1]
        now = self._pass
        if now is None or not len(now.index) or not self.wants(name):
            return
        place = None if at is None else _numpy(at)
        expected = now.count if place is None else len(place)
        if len(values) != expected:
            raise ValueError(f"{name} has {len(values)} rows, its pass {expected}")
        every = part in CACHED if every is None else every
        known = self._held.get(name)
        kind = known.kind if known else self._kinds["every" if every else "scored" if part in _SCORED else "last"]
        chosen = now.chosen(kind, place)
        if not len(chosen.source):
            return
        rows, hashes = self._taken(values, chosen)
        held = known or self._hold(name, kind, rows, where, facts)
        if held is None:
            return
        self._put(held.columns, chosen, rows, hashes, name)
        for number, given in enumerate(inputs):
            if given is not None:
                if len(given) != expected:
                    raise ValueError(f"argument {number} of {name} has {len(given)} rows, its result {expected}")
                self._input(held, number, given, chosen, now)
        now.saw(name, chosen.local, hashes)

    def end(self) -> None:
        """The pass is over."""
        self._pass = None
        self._recent.clear()

    def cached(self, sample: int, source: int, count: int) -> None:
        """The first `count` rows of a sample were not computed but read from another sample's cache: keep its keys and
        values (boundaries of every position) for them too; call after the last pass.

        Args:
            sample, source: indices into the task's samples; a sample that isn't kept is left as it is.
        """
        if self._file_index[sample] < 0 or self._file_index[source] < 0:
            return
        mine, theirs = (self._first[i] + np.arange(count) for i in (sample, source))
        missing = (self._pass_of[mine] < 0) & (self._pass_of[theirs] >= 0)
        mine, theirs = mine[missing], theirs[missing]
        own = self._pass_of[self._first[sample] : self._first[sample] + self._length[sample]]
        if not len(mine) or not (own >= 0).any():
            return
        self._input_id[mine], self._position_id[mine] = self._input_id[theirs], self._position_id[theirs]
        self._pass_of[mine] = own[own >= 0].min()
        for held in self._held.values():
            if held.kind is self._kinds["every"]:
                there = held.columns.written[held.kind.place[theirs]]
                held.columns.copy(held.kind.place[mine[there]], held.columns, held.kind.place[theirs[there]])

    def logprobs(self, values: Any, null: Any = None) -> None:
        """What the engine reported of every response token of the task; call after the last pass.

        Args:
            values: float32 [T], samples one after the other in the order of the task's input.
            null: [T], nonzero where there is no value; None: all are there.
        """
        if not self.wants("logprob"):
            return
        counts = np.maximum(self._length[:-1] - self._prompt, 0)
        sample = np.repeat(np.arange(len(counts)), counts)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        position = self._prompt[sample] + np.arange(len(sample)) - offsets[sample] - 1
        there = (self._file_index[sample] >= 0) & (position >= 0)
        if null is not None:
            there &= ~np.asarray(null).astype(np.bool_)
        kind = self._kinds["scored"]
        slots = kind.place[(self._first[sample] + position)[there]]
        rows = torch.from_numpy(np.asarray(values, dtype=np.float32)[there][slots >= 0]).unsqueeze(-1)
        slots = slots[slots >= 0]
        held = self._held.get("logprob") or self._hold("logprob", kind, rows, "", None)
        if held is not None and len(slots):
            held.columns.put(slots, rows, row_hash(rows).numpy())
            held.sources[0] = "logits" if "logits" in self._held else None

    def note(self, text: str) -> None:
        """Something that a reader of the file must know; once."""
        if text not in self._notes:
            self._notes.append(text)

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        engine: str,
        side: str,
        phase: str,
        model: str,
        dtype: str,
        unmapped: Sequence[Mapping[str, str]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write the file. Returns `rows`, `values`, `bytes`, `boundaries`, `unmapped`, `notes`, `passes`; once."""
        fed = np.flatnonzero(self._pass_of >= 0)
        number = np.full(self._total, -1, dtype=np.int64)
        number[fed] = np.arange(len(fed))
        tensors = {
            "rows.sample": torch.from_numpy(self._sample[fed].astype(np.int32)),
            "rows.position": torch.from_numpy(self._position[fed].astype(np.int32)),
            "rows.input_id": torch.from_numpy(self._input_id[fed]),
            "rows.pass": torch.from_numpy(self._pass_of[fed]),
        }
        if self._positions_known:
            tensors["rows.position_id"] = torch.from_numpy(self._position_id[fed])
        entries, values = [], 0
        for name in sorted(self._held, key=names.order):
            held = self._held[name]
            written = number[held.kind.rows[held.columns.written]]
            if (written < 0).any():
                raise ValueError(f"{name} has rows that no pass computed")
            tensors |= held.columns.tensors(name)
            if len(written) != len(fed):
                tensors[f"{name}@rows"] = torch.from_numpy(written.astype(np.int32))
            values += len(written) * held.columns.width
            inputs = tuple(held.sources.get(i) or "" for i in range(max(held.sources, default=-1) + 1))
            for i, columns in held.given.items():
                key, theirs = files.given(name, i), number[held.kind.rows[columns.written]]
                tensors |= columns.tensors(key)
                if not np.array_equal(theirs, written):
                    tensors[f"{key}@rows"] = torch.from_numpy(theirs.astype(np.int32))
                values += int(columns.written.sum()) * columns.width
            entries.append(files.Entry(name, held.where, inputs, held.facts))
        if self._again:
            self.note(f"{self._again} rows were computed by several passes; the last one's stand")
        for name, size in self._left_out.items():
            self.note(f"{name} was left out: its {size} bytes don't fit into max_bytes {self._keep.max_bytes}")
        header = files.Header(
            engine, side, phase, model, dtype, self._sample_ids, entries,
            [dict(one) for one in unmapped], list(self._notes),
            {"level": self._keep.level, "last": self._keep.last, "passes": self.passes, **(extra or {})},
        )  # fmt: skip
        target = files.write(path, header, tensors)
        return {
            "rows": len(fed), "values": values, "bytes": target.stat().st_size, "boundaries": len(entries),
            "unmapped": header.unmapped, "notes": header.notes, "passes": self.passes,
        }  # fmt: skip

    def close(self) -> None:
        """Give the temporary space back; may be called twice."""
        self._spool.close()

    def _taken(self, values: torch.Tensor, chosen: Chosen) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """(kept rows [n, F], their hashes); a tensor that was just taken with the same rows isn't hashed again."""
        same = values.detach().reshape(len(values), -1)
        mark = (same.data_ptr(), same.shape, same.stride(), same.dtype, _version(values), chosen.source.tobytes())
        for _, known, hashes in self._recent:
            if known == mark and mark[4] is not None:
                return same[torch.from_numpy(chosen.source).to(same.device)], hashes
        rows = same[torch.from_numpy(chosen.source).to(same.device)]
        hashes = row_hash(rows).cpu().numpy()
        self._recent = [(same, mark, hashes), *self._recent[: _RECENT - 1]]
        return rows, hashes

    def _hold(
        self, name: str, kind: Kind, rows: torch.Tensor, where: str, facts: Mapping[str, Any] | None
    ) -> Held | None:
        columns = self._columns(name, kind, rows)
        if columns is None:
            return None
        self._held[name] = Held(name, kind, columns, where, dict(facts or {}))
        return self._held[name]

    def _columns(self, name: str, kind: Kind, rows: torch.Tensor) -> Columns | None:
        """Room for rows like these; None where it would be more than `max_bytes`, and `name` is left out then."""
        sketch = self._keep.level == "sketch"
        size = Columns.size(kind.count, rows.shape[1], rows.dtype, sketch=sketch)
        if self._used + size > self._keep.max_bytes:
            self._left_out[name] = size
            self._held.pop(name, None)
            return None
        self._used += size
        return Columns(self._spool, kind.count, rows.shape[1], rows.dtype, sketch=sketch)

    def _put(self, columns: Columns, chosen: Chosen, rows: torch.Tensor, hashes: Any, name: str) -> None:
        if (rows.shape[1], rows.dtype) != (columns.width, columns.dtype):
            raise ValueError(
                f"{name} was {columns.dtype} [n, {columns.width}], now it is {rows.dtype} {list(rows.shape)}"
            )
        columns.put(chosen.slots, rows, hashes)

    def _input(self, held: Held, number: int, given: torch.Tensor, chosen: Chosen, now: Pass) -> None:
        """Find the boundary that an argument is; where it is none, or not always the same one, keep its rows.

        Rows that are kept for the cache alone are left out: what fed them isn't kept.
        """
        inside = self._kinds["last"].place[held.kind.rows[chosen.slots]] >= 0
        if not inside.all():
            chosen = Chosen(chosen.source[inside], chosen.local[inside], chosen.slots[inside])
        if not len(chosen.source):
            return
        rows, hashes = self._taken(given, chosen)
        first = number not in held.sources
        before = held.sources.get(number)
        if number not in held.given:
            found = now.source_of(chosen.local, hashes, before)
            if found is not None and (first or found == before):
                held.sources[number] = found
                return
            columns = self._columns(held.name, held.kind, rows)
            if columns is None:
                return
            if before is not None:
                self._copy_source(held, columns, self._held[before], chosen.slots)
            held.sources[number], held.given[number] = None, columns
        self._put(held.given[number], chosen, rows, hashes, held.name)

    def _copy_source(self, held: Held, columns: Columns, source: Held, but: npt.NDArray[np.int64]) -> None:
        """Rows of earlier passes, whose argument was a boundary."""
        earlier = held.columns.written.copy()
        earlier[but] = False
        mine = np.flatnonzero(earlier)
        theirs = source.kind.place[held.kind.rows[mine]]
        there = (theirs >= 0) & source.columns.written[np.maximum(theirs, 0)]
        columns.copy(mine[there], source.columns, theirs[there])


def _numpy(values: Any) -> npt.NDArray[np.int64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.int64)


def _version(values: torch.Tensor) -> int | None:
    """How often a tensor was written to; None where torch doesn't count."""
    return None if values.is_inference() else values._version
