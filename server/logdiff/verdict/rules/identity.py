"""Gates: what must hold before a number means anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence


def broken(f: Features) -> str | None:
    """Why the evidence proves nothing at all, or None."""
    bypass = f.gate("bypass")
    if bypass is not None and bypass.ok is False:
        return bypass.detail
    coverage = f.gate("coverage")
    if coverage is not None and coverage.ok is False and not _named(f):
        parts = [coverage.detail]
        parts += [g.detail for g in (f.gate("masks"), f.gate("finite"), f.gate("vocabulary")) if g and g.ok is False]
        return "; ".join(dict.fromkeys(parts))
    if f.failed("finite"):
        gate = f.gate("finite")
        assert gate is not None
        return gate.detail
    zeros = f.gate("range")
    if zeros is not None and zeros.ok is False and "placeholder" in zeros.detail:
        return zeros.detail
    return None


def _named(f: Features) -> bool:
    """Whether ids or lengths that differ are why nothing could be compared; an absent side is another matter."""
    lengths = f.gate("lengths")
    wrong = f.failed("ids") or bool(lengths is not None and (lengths.data or {}).get("wrong"))
    coverage = f.gate("coverage")
    return wrong and not (coverage is not None and coverage.detail.startswith("no log-probability"))


def identity(f: Features, board: Board) -> None:
    """Ids, lengths, masks, vocabulary, weights: a gate that fails is the finding."""
    _ids(f, board)
    for name, cause, what in (
        ("lengths", "ids-differ", "lists of log-probabilities and of ids have unequal lengths"),
        ("vocabulary", "padded-vocabulary-id", "ids lie outside the vocabulary or the tokenizer"),
    ):
        gate = f.gate(name)
        if gate is not None and gate.ok is False:
            outside = name == "vocabulary" and not (gate.data or {}).get("padded_sampled")
            chosen = "ids-differ" if outside else cause
            board.add(Finding(chosen, 0.93, 1.0, (evidence(f, f"{what}: {gate.detail}"),)))
    masks = f.gate("masks")
    if masks is not None and masks.ok is False and (masks.data or {}).get("wrong_length"):
        board.add(Finding("mask-misaligned", 0.9, 1.0, (evidence(f, masks.detail),), side="train"))
    weights = f.gate("weights")
    if weights is not None and weights.ok is False:
        board.add(Finding("weights-changed", 0.93, 1.0, (evidence(f, f"checksums of the weights: {weights.detail}"),)))
    elif weights is not None and weights.ok:
        board.exclude(f"weights are equal by checksum ({weights.detail})", *_WEIGHTS)
    _positive(f, board)


_WEIGHTS = (
    "weights-stale", "weights-partial-sync", "weights-changed", "qkv-layout", "buffer-not-synced", "head-tied-stale",
)  # fmt: skip


def _ids(f: Features, board: Board) -> None:
    gate = f.gate("ids")
    if gate is None:
        return
    if gate.ok:
        board.exclude(
            "the trainer's ids are those of the rollout, id by id", "ids-differ", "retokenised", "template-differs"
        )
        return
    if gate.ok is None:
        return
    data = gate.data or {}
    share = data.get("different", 0) / max(data.get("given", 1), 1)
    said = (evidence(f, f"the trainer scored other ids: {gate.detail}", share, 0.0),)
    cause = "template-differs" if share > 0.95 and _one_place(data) else "retokenised"
    board.add(Finding(cause, 0.9, 1.0, said, side="train"))
    board.add(Finding("ids-differ", 0.6, 1.0, said, side="train"))


def _one_place(data: dict[str, Any]) -> bool:
    """Whether every prompt departs at one place, seen from start or end, and by as many ids, as a template does."""
    spans = {name: data.get(name) for name in ("first_at", "before_response", "length_change")}
    if not all(isinstance(span, list) and len(span) == 2 for span in spans.values()):
        return False
    constant = {name: span[0] == span[1] for name, span in spans.items() if span is not None}
    in_prompt = bool(spans["before_response"] and spans["before_response"][0] >= 0)
    return in_prompt and constant["length_change"] and (constant["first_at"] or constant["before_response"])


def _positive(f: Features, board: Board) -> None:
    """Log-probabilities above 0: logits, a part of the vocabulary, or logits in low precision."""
    gate = f.gate("range")
    if gate is None or gate.ok is not False:
        return
    for side in ("rollout", "train"):
        facts = (gate.data or {}).get(side) or {}
        if not facts.get("positive"):
            continue
        own = f.table.rollout if side == "rollout" else f.table.train
        largest = float(own.max()) if len(own) else 0.0
        said = (evidence(f, f"{facts['positive']} log-probabilities of the {side} side are above 0", largest, 0.0),)
        if largest < 1e-4:
            continue  # the last bit of a sum of exponentials
        share = float(np.mean(own > 0))
        held = float(f.a[own > 0].sum() / f.a.sum()) if f.a.any() else 0.0
        if share > 0.2 and largest > 0.5:
            board.add(Finding("logprob-not-normalised", 0.9, 1.0, said, side=side))
        elif largest > 0.5:
            board.add(Finding("logprob-not-normalised", 0.45, held, said, side=side))
        else:
            board.add(Finding("head-dtype", 0.6, max(held, 0.3), said, side=side))
