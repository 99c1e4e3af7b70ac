"""Which side's weights are not the checkpoint's, tensor by tensor."""

from __future__ import annotations

import re
from typing import Any

from logdiff.localize.finding import WEIGHTS, Finding
from logdiff.measure.gates.weights import tensor_differences
from logdiff.verdict.records import Evidence

NAMED = 6


def weight_findings(
    sides: dict[str, dict[str, Any]],
    checkpoint: dict[str, Any] | None,
    step: int,
    source: str,
    before: dict[str, Any] | None = None,
) -> list[Finding]:
    """Findings on weights.

    Args:
        sides: side -> `logdiff-weights/1` of this step.
        checkpoint: the same of the folder that both sides should hold; None where there is none: a difference of the
            sides is then a finding on an unknown side.
        step: policy step of the sums.
        source: where the sums lie.
        before: the trainer's sums of the step before: what its update changed should have reached the other side.
    """
    truth = checkpoint if checkpoint is not None else sides.get("train")
    updated = tensor_differences(before, truth) if before is not None and truth is not None else []
    if checkpoint is None:
        if len(sides) < 2:
            return []
        names = tensor_differences(sides["rollout"], sides["train"])
        total = len(sides["train"].get("tensors", {}))
        return [_finding("unknown", names, step, source, total, updated)] if names else []
    found = []
    for side, sums in sides.items():
        names = tensor_differences(checkpoint, sums)
        if names:
            found.append(_finding(side, names, step, source, len(checkpoint.get("tensors", {})), updated))
    return found


def _finding(side: str, names: list[str], step: int, source: str, total: int, updated: list[str]) -> Finding:
    cause, others = _cause(names, step, total, updated)
    some = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    whose = f"the {side} side holds" if side != "unknown" else "the two sides hold"
    statement = f"{whose} other weights than the checkpoint: {some}" if side != "unknown" else f"{whose} other: {some}"
    evidence = Evidence(f"{len(names)} of {total} tensors differ by checksum: {some}", len(names), 0, source)
    return Finding("weights", cause, side, component(names), 0.99, WEIGHTS, statement, (evidence,), others)


def component(names: list[str]) -> str:
    """One name for several tensors: layers that differ become `*`."""
    parts = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", re.sub(r"^model\.", "", n)) for n in names))
    if len(names) == 1:
        return re.sub(r"^model\.", "", names[0])
    return parts[0] if len(parts) == 1 else ", ".join(parts[:3])


def _cause(names: list[str], step: int, total: int, updated: list[str]) -> tuple[str, tuple[str, ...]]:
    if step > 0 and updated and set(updated) <= set(names):
        return "weights-stale", ("weights-partial-sync",)  # nothing that the update changed has arrived
    experts = [n for n in names if re.search(r"\.experts\.|expert", n)]
    biases = [n for n in names if re.search(r"e_score_correction_bias|expert_bias", n)]
    heads = [n for n in names if "lm_head" in n or "embed_tokens" in n]
    attention = [n for n in names if re.search(r"\.(q|k|v|qkv)_(proj|a_proj)", n)]
    if biases and len(biases) == len(names):
        return "expert-bias-stale", ("buffer-not-synced", "weights-partial-sync")
    if heads and len(heads) == len(names):
        return "head-tied-stale", ("cache-of-head-stale", "weights-partial-sync", "weights-changed")
    if step > 0:
        if len(names) >= 0.9 * max(total, 1):
            return "weights-stale", ("weights-partial-sync",)
        return "weights-partial-sync", ("weights-stale", "weights-changed")
    if experts and len(experts) == len(names):
        return "expert-weights-swapped", ("weights-changed", "weights-partial-sync")
    if attention and len(attention) == len(names):
        return "weights-changed", ("qkv-layout", "weights-partial-sync")
    return "weights-changed", ("weights-partial-sync", "weights-stale")
