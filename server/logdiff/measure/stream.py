"""One pass over the evidence: gates and statistics together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from logdiff.case.batch import SIDES, PairBatch, PairMeta
from logdiff.measure.facts import RunFacts
from logdiff.measure.gates import (
    Duplicates,
    Exclusion,
    Finite,
    Gate,
    Ids,
    Lengths,
    Masks,
    Range,
    Vocabulary,
    aligned_gate,
    bypass_gate,
    config_gate,
    coverage_gate,
    update_gate,
    weights_gate,
)
from logdiff.measure.pair import PairStatistics
from logdiff.measure.result import Measurement

PAIRS = {
    "decode_train": ("rollout", "train"),
    "decode_rescore": ("rollout", "rescore"),
    "rescore_train": ("rescore", "train"),
}
"""Pair name -> (first, second); every number is of second - first."""


class _Pass:
    def __init__(self, meta: PairMeta, facts: RunFacts) -> None:
        self.ids, self.lengths, self.masks, self.duplicates = Ids(), Lengths(), Masks(), Duplicates()
        self.vocabulary = Vocabulary(_size(meta, facts, "vocab_size"), _size(meta, facts, "tokenizer_size"))
        self.finite, self.range = Finite(), Range()
        self.pairs = {name: PairStatistics(*sides) for name, sides in PAIRS.items()}
        self.given = dict.fromkeys(SIDES, False)
        self.samples = self.excluded = 0

    def take(self, batch: PairBatch) -> None:
        out = Exclusion.none(batch.samples)
        for gate in (self.ids, self.lengths, self.masks, self.duplicates, self.vocabulary, self.finite, self.range):
            gate.see(batch, out)
        given_here = {side: not bool(batch.null[side].all()) for side in SIDES}
        for name, (first, second) in PAIRS.items():
            excluded = out.of_pair(first, second)
            if name == "decode_train":
                self.excluded += int(np.count_nonzero(excluded))
            if given_here[first] and given_here[second]:
                self.pairs[name].update(batch, excluded)
            else:
                self.pairs[name].note_absent(batch, excluded)
        for side in SIDES:
            self.given[side] = self.given[side] or given_here[side]
        self.samples += batch.samples

    def close(self) -> None:
        for pair in self.pairs.values():
            pair.close()

    def gates(self, meta: PairMeta, facts: RunFacts, measured: dict[str, Any]) -> list[Gate]:
        update, aligned = update_gate(facts), aligned_gate(facts)
        return [
            *(g.result() for g in (self.ids, self.lengths, self.masks, self.duplicates, self.vocabulary)),
            weights_gate(facts),
            *([update] if update is not None else []),
            config_gate(meta, facts),
            *([aligned] if aligned is not None else []),
            self.finite.result(),
            self.range.result(),
            coverage_gate(measured["tokens"], measured["missing"], self.given, self.excluded),
            bypass_gate(meta, facts, measured["tokens"], measured["mismatched_tokens"]),
        ]


def measure(
    meta: PairMeta,
    batches: Iterable[PairBatch],
    facts: RunFacts | None = None,
    *,
    sink: Callable[[PairBatch], None] | None = None,
) -> Measurement:
    """Gates and statistics of both sides in one streaming pass with bounded memory.

    Args:
        meta: header facts of the evidence.
        batches: the evidence; a sample is never split over two batches. The result has the same bits
            however the samples are cut into batches.
        facts: what a live run knows beside the tokens.
        sink: called with each batch after it was taken, so that the caller can store it in the same pass.

    Raises:
        InputError: the temporary file for the order statistics can't be written.
        LogdiffError: whatever `batches` or `sink` raise.
    """
    facts = RunFacts() if facts is None else facts
    work = _Pass(meta, facts)
    try:
        for batch in batches:
            work.take(batch)
            if sink is not None:
                sink(batch)
        measured = work.pairs["decode_train"].as_dict()
        pairs: dict[str, dict[str, Any] | None] = {}
        unavailable: dict[str, str] = {}
        for name, (first, second) in PAIRS.items():
            absent = [side for side in (first, second) if not work.given[side]]
            if name in facts.unavailable or absent:
                pairs[name] = None
                unavailable[name] = facts.unavailable.get(
                    name, f"no log-probability on the {' and '.join(absent)} side"
                )
            else:
                pairs[name] = measured if name == "decode_train" else work.pairs[name].as_dict()
        return Measurement(
            gates=work.gates(meta, facts, measured),
            measure=measured,
            pairs=pairs,
            unavailable=unavailable,
            samples={
                "total": work.samples,
                "compared": measured["samples"],
                "excluded": work.excluded,
                "empty": work.masks.empty,
                "masked": work.masks.masked,
            },
        )
    finally:
        work.close()


def _size(meta: PairMeta, facts: RunFacts, key: str) -> int | None:
    """Vocabulary or tokenizer size: the header's, else the smaller one that a fingerprint names."""
    known = meta.get(key)
    if isinstance(known, int) and not isinstance(known, bool) and known > 0:
        return known
    named = [fingerprint.get(key) for fingerprint in facts.fingerprints.values()]
    sizes = [size for size in named if isinstance(size, int) and size > 0]
    return min(sizes) if sizes else None
