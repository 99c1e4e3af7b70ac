"""The token table that features are taken from: whole samples of a stream, in columns, in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch, TopK

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_TOKENS = 1 << 18
"""Tokens kept; of a longer stream whole groups of samples stand for all, chosen by a hash of their prompt or pack."""
PREFIX = 16
"""Prompt ids that decide whether samples share a prefix: the common block size of prefix caches."""
_TOPK = 20


@dataclass(frozen=True, slots=True)
class Table:
    """T compared tokens of S samples; a token is compared where the mask is 1 and both values are finite.

    `row` gives the sample of a token. `place` is the position in the whole sequence: prompt length + `position`.
    """

    rollout: Floats  # [T] nats
    train: Floats  # [T]
    rescore: Floats  # [T], NaN where absent
    position: Ints  # [T] in the response
    place: Ints  # [T] in the sequence
    row: Ints  # [T]
    token_id: Ints  # [T]
    repeated: Bools  # [T] the id occurred before in its sequence
    entropy: dict[str, Floats]  # side -> [T], NaN where unknown
    topk: dict[str, TopK]  # side -> [T, k], at most 20 entries
    experts: dict[str, Floats]  # agreement of expert lists, see `_experts`; [T], NaN where unknown
    sample_id: list[str]
    step: Ints  # [S]
    rank: Ints  # [S]
    version: Ints  # [S], -1 unknown
    pack: Ints  # [S], -1 unknown
    order: Ints  # [S] place in its pack, -1 unknown
    left_pad: Ints  # [S], -1 unknown
    prompt: Ints  # [S] tokens
    response: Ints  # [S] tokens, masked ones included
    shared: Ints  # [S] samples seen so far, this one included, that begin with the same PREFIX ids
    sharing: Ints  # [S] samples in all that do
    same_prompt: Ints  # [S] number of the prompt among distinct ones
    other_ids: Bools  # [S] the trainer scored other ids
    seen: int  # samples in the stream
    kept_share: float  # share of the groups that were kept

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.rollout)

    @property
    def samples(self) -> int:
        """S."""
        return len(self.sample_id)

    @property
    def d(self) -> Floats:
        """[T] train - rollout."""
        return self.train - self.rollout

    @property
    def starts(self) -> Ints:
        """[S] index of each sample's first token; tokens of a sample stand together."""
        return np.searchsorted(self.row, np.arange(self.samples))

    def select(self, keep: Bools) -> Table:
        """The same samples with the tokens in `keep` [T] alone."""
        return _with_tokens(self, keep, {})

    def replaced(self, keep: Bools, **columns: Floats) -> Table:
        """As `select`, with other values of `rollout` or `train` [T], given before the cut."""
        return _with_tokens(self, keep, columns)


@dataclass(slots=True)
class _Row:
    group: float
    tokens: dict[str, Any]
    facts: dict[str, Any]


@dataclass(slots=True)
class Collector:
    """Takes batches one by one; `table()` afterwards."""

    max_tokens: int = MAX_TOKENS
    _rows: list[_Row] = field(default_factory=list)
    _kept: int = 0
    _limit: float = 1.0
    _seen: int = 0
    _packs: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _prefixes: dict[bytes, int] = field(default_factory=dict)

    def add(self, batch: PairBatch) -> None:
        """Take a batch."""
        for row in range(batch.samples):
            self._seen += 1
            self._add(batch, row)
        if self._kept > self.max_tokens:
            self._thin()

    def watch(self, batches: Iterable[PairBatch]) -> Iterator[PairBatch]:
        """The same batches, each taken on its way."""
        for batch in batches:
            self.add(batch)
            yield batch

    def _add(self, batch: PairBatch, row: int) -> None:
        cut = slice(int(batch.offsets[row]), int(batch.offsets[row + 1]))
        prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
        ids = batch.token_ids[cut]
        pack = int(batch.pack[row])
        pack_key = (int(batch.step[row]), int(batch.rank[row]), pack)
        prefix = _digest(prompt[:PREFIX])
        group = _unit(_digest(np.array(pack_key)) if pack >= 0 else prefix)
        if group >= self._limit:
            return
        order = -1
        if pack >= 0:
            order = self._packs.get(pack_key, 0)
            self._packs[pack_key] = order + 1
        self._prefixes[prefix] = self._prefixes.get(prefix, 0) + 1
        scored = batch.train_ids[row]
        facts = {
            "sample_id": batch.sample_id[row],
            "step": int(batch.step[row]),
            "rank": int(batch.rank[row]),
            "version": int(batch.policy_version[row]),
            "pack": pack,
            "order": order,
            "left_pad": int(batch.left_pad[row]),
            "prompt": len(prompt),
            "response": len(ids),
            "shared": self._prefixes[prefix],
            "prefix": prefix,
            "whole": _digest(prompt),
            "other_ids": scored is not None and not np.array_equal(np.concatenate([prompt, ids]), scored),
        }
        tokens = _tokens(batch, cut, prompt, ids)
        self._rows.append(_Row(group, tokens, facts))
        self._kept += len(tokens["rollout"])

    def _thin(self) -> None:
        while self._kept > self.max_tokens and len(self._rows) > 1:
            self._limit /= 2
            self._rows = [r for r in self._rows if r.group < self._limit] or self._rows[:1]
            self._kept = sum(len(r.tokens["rollout"]) for r in self._rows)
            if self._limit < 2.0**-40:
                return

    def table(self) -> Table:
        """What was kept, in columns."""
        rows = self._rows
        sizes = [len(r.tokens["rollout"]) for r in rows]

        def column(name: str, kind: Any) -> Any:
            return np.concatenate([r.tokens[name] for r in rows] or [np.zeros(0)]).astype(kind)

        def fact(name: str) -> Ints:
            return np.array([r.facts[name] for r in rows], dtype=np.int64)

        sharing: dict[bytes, int] = {}
        for r in rows:
            sharing[r.facts["prefix"]] = sharing.get(r.facts["prefix"], 0) + 1
        numbers = {w: i for i, w in enumerate(dict.fromkeys(r.facts["whole"] for r in rows))}
        return Table(
            rollout=column("rollout", np.float64),
            train=column("train", np.float64),
            rescore=column("rescore", np.float64),
            position=column("position", np.int64),
            place=column("place", np.int64),
            row=np.repeat(np.arange(len(rows)), sizes),
            token_id=column("token_id", np.int64),
            repeated=column("repeated", np.bool_),
            entropy={side: column(f"entropy {side}", np.float64) for side in _sides(rows, "entropy ")},
            topk={side: _join_topk(rows, side) for side in _sides(rows, "topk ")},
            experts={name: column(f"experts {name}", np.float64) for name in _sides(rows, "experts ")},
            sample_id=[r.facts["sample_id"] for r in rows],
            step=fact("step"),
            rank=fact("rank"),
            version=fact("version"),
            pack=fact("pack"),
            order=fact("order"),
            left_pad=fact("left_pad"),
            prompt=fact("prompt"),
            response=fact("response"),
            shared=fact("shared"),
            sharing=np.array([sharing[r.facts["prefix"]] for r in rows], dtype=np.int64),
            same_prompt=np.array([numbers[r.facts["whole"]] for r in rows], dtype=np.int64),
            other_ids=np.array([r.facts["other_ids"] for r in rows], dtype=bool),
            seen=self._seen,
            kept_share=self._limit,
        )


def collect(batches: Iterable[PairBatch], max_tokens: int = MAX_TOKENS) -> Table:
    """The table of a stream of batches."""
    collector = Collector(max_tokens)
    for batch in batches:
        collector.add(batch)
    return collector.table()


def _digest(ids: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(ids, np.int64).tobytes(), digest_size=16).digest()


def _unit(digest: bytes) -> float:
    return int.from_bytes(digest[:7], "little") / 2**56


def _tokens(batch: PairBatch, cut: slice, prompt: Ints, ids: Ints) -> dict[str, Any]:
    x, y = batch.logprob["rollout"][cut], batch.logprob["train"][cut]
    keep = np.flatnonzero(
        batch.mask[cut] & ~batch.null["rollout"][cut] & ~batch.null["train"][cut] & np.isfinite(x) & np.isfinite(y)
    )
    rescore = np.where(batch.null["rescore"][cut], np.nan, batch.logprob["rescore"][cut])
    tokens: dict[str, Any] = {
        "rollout": x[keep],
        "train": y[keep],
        "rescore": rescore[keep],
        "position": keep,
        "place": keep + len(prompt),
        "token_id": ids[keep],
        "repeated": _repeated(prompt, ids)[keep],
    }
    for side, entropy in batch.entropy.items():
        tokens[f"entropy {side}"] = entropy[cut][keep]
    for side, top in batch.topk.items():
        tokens[f"topk {side}"] = TopK(top.ids[cut][keep, :_TOPK], top.logprobs[cut][keep, :_TOPK])
    for name, values in _experts(batch, cut).items():
        tokens[f"experts {name}"] = values[keep]
    return tokens


def _repeated(prompt: Ints, ids: Ints) -> Bools:
    whole = np.concatenate([prompt, ids])
    first = np.zeros(len(whole), dtype=bool)
    first[np.unique(whole, return_index=True)[1]] = True
    return ~first[len(prompt) :]


def _experts(batch: PairBatch, cut: slice) -> dict[str, Floats]:
    """Agreement of both sides' expert lists, one number per token.

    `set`: share of layers with the same experts; `list`: in the same order too; `before`, `after`: share of layers
    whose experts are those that the other side has one token before or after; `first`: layers that agree from the
    first one on.
    """
    if "rollout" not in batch.experts or "train" not in batch.experts:
        return {}
    a, b = batch.experts["rollout"][cut], batch.experts["train"][cut]
    layers = min(a.shape[1], b.shape[1])
    if not layers or not len(a):
        return {}
    width = max(a.shape[2], b.shape[2])
    a, b = (np.pad(v[:, :layers], ((0, 0), (0, 0), (0, width - v.shape[2])), constant_values=-1) for v in (a, b))
    known = ((a >= 0).any((1, 2))) & ((b >= 0).any((1, 2)))
    left, right = np.sort(a, axis=2), np.sort(b, axis=2)
    same = (left == right).all(2)

    def share(equal: Bools) -> Floats:
        return np.where(known, equal.mean(1), np.nan)

    before, after = np.zeros_like(same), np.zeros_like(same)
    before[1:], after[:-1] = (left[1:] == right[:-1]).all(2), (left[:-1] == right[1:]).all(2)
    return {
        "set": share(same),
        "list": share((a == b).all(2)),
        "before": share(before),
        "after": share(after),
        "first": np.where(known, np.cumprod(same, axis=1).sum(1), np.nan),
        "layers": np.where(known, float(layers), np.nan),
    }


def _sides(rows: list[_Row], prefix: str) -> list[str]:
    """Names after `prefix` that every kept row has."""
    if not rows:
        return []
    common = set.intersection(*({k for k in r.tokens if k.startswith(prefix)} for r in rows))
    return sorted(k.removeprefix(prefix) for k in common)


def _join_topk(rows: list[_Row], side: str) -> TopK:
    tops = [r.tokens[f"topk {side}"] for r in rows]
    k = max(t.ids.shape[1] for t in tops)
    ids = np.full((sum(len(t.ids) for t in tops), k), -1, np.int64)
    logprobs = np.full(ids.shape, np.nan, np.float32)
    at = 0
    for top in tops:
        ids[at : at + len(top.ids), : top.ids.shape[1]] = top.ids
        logprobs[at : at + len(top.ids), : top.ids.shape[1]] = top.logprobs
        at += len(top.ids)
    return TopK(ids, logprobs)


def _with_tokens(table: Table, keep: Bools, columns: dict[str, Floats]) -> Table:
    changes: dict[str, Any] = {name: getattr(table, name) for name in table.__slots__}
    changes.update(columns)
    for name in ("rollout", "train", "rescore", "position", "place", "row", "token_id", "repeated"):
        changes[name] = changes[name][keep]
    for name in ("entropy", "experts"):
        changes[name] = {key: values[keep] for key, values in changes[name].items()}
    changes["topk"] = {side: TopK(top.ids[keep], top.logprobs[keep]) for side, top in table.topk.items()}
    return Table(**changes)
