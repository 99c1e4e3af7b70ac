"""Same weights as a measured fact: per-tensor checksums of both sides, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from logdiff.measure.facts import RunFacts
from logdiff.measure.gates.gate import Gate, counted

_NAMED = 8
_WIDTH = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}


@dataclass(slots=True)
class _Comparison:
    equal: int = 0
    different: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    incomparable: list[str] = field(default_factory=list)


def weights_gate(facts: RunFacts) -> Gate:
    """Compare `logdiff-weights/1` of both sides at every step.

    Equal sums of every tensor hold the gate; a different or missing tensor fails it and is named; sides that
    can't be compared (quantised, adapters, packed on one side only) leave it undecided, with the reason.
    """
    if not facts.weights:
        return Gate("weights", None, "not measured: checksums of the weights come from a live run only")
    total = _Comparison()
    reasons: list[str] = []
    for step in sorted(facts.weights):
        sides = facts.weights[step]
        absent = [side for side in ("rollout", "train") if side not in sides]
        if absent:
            reasons.append(f"step {step}: no checksums of {' and '.join(absent)}")
            continue
        special = _special(sides)
        if special:
            reasons.append(f"step {step}: {special}")
            continue
        _compare(f"step {step}: " if len(facts.weights) > 1 else "", sides["rollout"], sides["train"], total)
    return _judge(total, reasons)


def _judge(total: _Comparison, reasons: list[str]) -> Gate:
    data: dict[str, Any] = {"equal": total.equal}
    for key in ("different", "missing", "incomparable"):
        names = getattr(total, key)
        if names:
            data[key] = len(names)
            data[f"{key}_names"] = names[:_NAMED]
    faults = []
    if total.different:
        faults.append(f"{counted(len(total.different), 'tensor')} differ: {_some(total.different)}")
    if total.missing:
        faults.append(f"{counted(len(total.missing), 'tensor')} on one side only: {_some(total.missing)}")
    if faults:
        return Gate("weights", False, "; ".join([*faults, f"{total.equal} equal"]), data)
    reasons = list(dict.fromkeys(reasons))
    if total.incomparable:
        reasons.append(
            f"{counted(len(total.incomparable), 'tensor')} without a comparable sum: {_some(total.incomparable)}"
        )
    if reasons:
        equal = f"; {counted(total.equal, 'tensor')} equal" if total.equal else ""
        return Gate("weights", None, f"not comparable: {'; '.join(reasons)}{equal}", data)
    if not total.equal:
        return Gate("weights", False, "the checksums name no tensor", data)
    return Gate("weights", True, f"{counted(total.equal, 'tensor')} equal by checksum", data)


def update_gate(facts: RunFacts) -> Gate | None:
    """With several steps: did the trainer's weights change between them? None where there is nothing to ask."""
    steps = [s for s in sorted(facts.weights) if "train" in facts.weights[s]]
    if len(steps) < 2:
        return None
    idle = []
    for before, after in pairwise(steps):
        old, new = (facts.weights[s]["train"].get("tensors", {}) for s in (before, after))
        if {n: t.get("sum") for n, t in old.items()} == {n: t.get("sum") for n, t in new.items()}:
            idle.append(after)
    if idle:
        text = f"the update before step {', '.join(map(str, idle))} changed no tensor, so the sync was not tested there"
        return Gate("update", None, text, {"unchanged_steps": idle})
    return Gate("update", True, f"the trainer's weights changed in each of {len(steps) - 1} updates")


def _special(sides: dict[str, dict[str, Any]]) -> str:
    found = []
    for side in ("rollout", "train"):
        if sides[side].get("quantization"):
            found.append(f"{side} is quantised ({sides[side]['quantization']})")
        if sides[side].get("adapters"):
            found.append(f"{side} carries adapters ({', '.join(map(str, sides[side]['adapters']))})")
    return " and ".join(found)


def tensor_differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of tensors of two `logdiff-weights/1` whose checksums are known on both and differ."""
    total = _Comparison()
    _compare("", one, other, total)
    return total.different


def _compare(prefix: str, rollout: dict[str, Any], train: dict[str, Any], total: _Comparison) -> None:
    names = {**rollout.get("tensors", {}), **train.get("tensors", {})}
    for name in names:
        left, right = _find(rollout, name), _find(train, name)
        if left is None or right is None:
            side, other = ("rollout", rollout) if left is None else ("train", train)
            why = _why_not_covered(other, name)
            if why is None:
                total.missing.append(f"{prefix}{name} (not on {side})")
            else:
                total.incomparable.append(f"{prefix}{name} ({side}: {why})")
        else:
            _compare_tensor(f"{prefix}{name}", left, right, total)
    for side, sums in (("rollout", rollout), ("train", train)):
        for entry in sums.get("not_covered", []):
            if entry.get("name") not in names:
                total.incomparable.append(f"{prefix}{entry.get('name')} ({side}: {entry.get('why', 'not covered')})")


def _compare_tensor(name: str, left: dict[str, Any], right: dict[str, Any], total: _Comparison) -> None:
    if list(left.get("shape", [])) != list(right.get("shape", [])):
        total.different.append(f"{name} (shape {left.get('shape')} on rollout, {right.get('shape')} on train)")
        return
    if (left.get("how") == "probe") != (right.get("how") == "probe"):
        total.incomparable.append(f"{name} (a probed product on one side, the memory on the other)")
        return
    sums = _common_sums(left, right)
    if sums is None:
        total.incomparable.append(f"{name} ({left.get('dtype')} on rollout, {right.get('dtype')} on train)")
    elif sums[0] == sums[1]:
        total.equal += 1
    else:
        total.different.append(name)


def _common_sums(left: dict[str, Any], right: dict[str, Any]) -> tuple[Any, Any] | None:
    """Sums of both tensors at the narrower of their widths; None where no common one was taken."""
    a, b = str(left.get("dtype", "")).removeprefix("torch."), str(right.get("dtype", "")).removeprefix("torch.")
    if a == b:
        return left.get("sum"), right.get("sum")
    if _WIDTH.get(a, 0) > _WIDTH.get(b, 0):
        wide = left.get("as", {}).get(b)
        return None if wide is None else (wide, right.get("sum"))
    wide = right.get("as", {}).get(a)
    return None if wide is None else (left.get("sum"), wide)


def _find(sums: dict[str, Any], name: str) -> dict[str, Any] | None:
    tensors, tied = sums.get("tensors", {}), sums.get("tied", {})
    found = tensors.get(name) or tensors.get(tied.get(name))
    if found is None:
        found = next((tensors[a] for a, b in tied.items() if b == name and a in tensors), None)
    return found if found is None else dict(found)


def _why_not_covered(sums: dict[str, Any], name: str) -> str | None:
    return next((e.get("why", "not covered") for e in sums.get("not_covered", []) if e.get("name") == name), None)


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
