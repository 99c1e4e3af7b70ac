"""Aligned operators on both sides: do they follow one definition?"""

from __future__ import annotations

from typing import Any

from logdiff.measure.facts import RunFacts
from logdiff.measure.gates.gate import Gate

_SIDES = ("rollout", "train")


def aligned_gate(facts: RunFacts) -> Gate | None:
    """Compare the `aligned` blocks of both fingerprints; None where no side is aligned.

    Fails where both are aligned to different things (contract, provider, binary, RoPE table). One aligned side is
    no fault: the gate then says which.
    """
    blocks = {side: (facts.fingerprints.get(side) or {}).get("aligned") for side in _SIDES}
    known = {side: block for side, block in blocks.items() if isinstance(block, dict)}
    if not known:
        return None
    if len(known) == 1:
        ((side, block),) = known.items()
        other = "train" if side == "rollout" else "rollout"
        return Gate("aligned", None, f"{_words(block)} on {side} alone; {other} is native", {"sides": [side]})
    rollout, train = known["rollout"], known["train"]
    faults = aligned_differences(rollout, train)
    if faults:
        return Gate("aligned", False, "both sides are aligned, but not to the same thing: " + "; ".join(faults))
    text = f"{_words(rollout)} on both sides"
    only = sorted(set(rollout.get("ops") or []) ^ set(train.get("ops") or []))
    if only:
        text += f"; on one side alone: {', '.join(only)}"
    return Gate("aligned", True, text, {"sides": list(_SIDES)})


def aligned_differences(rollout: dict[str, Any], train: dict[str, Any]) -> list[str]:
    """Why two `aligned` blocks of fingerprints do not promise the same bits, one sentence each; empty when they do.

    On CPUs every instruction set has the same bits, so the binary counts only where the instruction set is the same.
    """
    keys = ["contract", "provider", "source", "rope"]
    same_isa = _fact(rollout, "isa") == _fact(train, "isa")
    if same_isa or not str(rollout.get("provider")).endswith("-cpu"):
        keys.append("binary_hash")
    faults = []
    for key in keys:
        left, right = _fact(rollout, key), _fact(train, key)
        if left and right and left != right:  # empty or absent: that operator is not aligned there
            faults.append(f"{key.replace('_', ' ')} {left} on rollout, {right} on train")
    return faults


def _fact(block: dict[str, Any], key: str) -> Any:
    """A fact of the block, or of the provider that it names."""
    if block.get(key) is not None:
        return block[key]
    providers = block.get("providers")
    for provider in providers if isinstance(providers, list) else []:
        if isinstance(provider, dict) and provider.get("name") == block.get("provider"):
            return provider.get(key)
    return None


def _words(block: dict[str, Any]) -> str:
    isa = _fact(block, "isa")
    count = len(block.get("ops") or [])
    return f"{count} operators to {block.get('contract')} by {block.get('provider')}{f' ({isa})' if isa else ''}"
