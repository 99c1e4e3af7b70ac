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

    Contract and provider have to be reported. On CPUs every instruction set has the same bits, so the binary counts
    only where the instruction set is the same. On NPUs binary, architecture, chip and kind of exp have to be reported.
    """
    needed, others = ["contract", "provider"], ["source", "rope"]
    if not str(rollout.get("provider")).endswith("-cpu"):
        needed += ["binary_hash", "arch", "chip", "exact_exp"]
    elif _fact(rollout, "isa") == _fact(train, "isa"):
        others.append("binary_hash")
    faults = []
    for key in [*needed, *others]:
        left, right = _fact(rollout, key), _fact(train, key)
        name = key.replace("_", " ")
        absent = [side for side, value in (("rollout", left), ("train", right)) if value in (None, "")]
        if key in needed and absent:
            faults.append(f"{name} is not reported by {' and '.join(absent)}")
        elif left != right and (key in needed or (left and right)):  # a table without entries is of no use there
            faults.append(f"{name} {left} on rollout, {right} on train")
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
    isa = _fact(block, "isa") or _fact(block, "chip")
    count = len(block.get("ops") or [])
    return f"{count} operators to {block.get('contract')} by {block.get('provider')}{f' ({isa})' if isa else ''}"
