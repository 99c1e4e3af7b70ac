"""Effective configuration of both sides: do the two numbers mean the same quantity of the same function?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from logdiff.case.batch import PairMeta
from logdiff.measure.facts import RunFacts
from logdiff.measure.gates.gate import Gate
from logdiff.model_keys import flat

_SIDES = ("rollout", "train")
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
_BYPASS_KEYS = ("bypass_mode", "bypass_old_logprob_for_rollout")


@dataclass(slots=True)
class _Findings:
    checked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


def config_gate(meta: PairMeta, facts: RunFacts) -> Gate:
    """Compare what both sides really ran with.

    Fails where the two log-probabilities are of different quantities (temperature, truncation, raw against
    processed, logits) or of different functions (vocabulary, model configuration). Differences that are
    legitimate but move numbers (dtype, end-of-sequence ids, chat template) are notes.
    """
    found = _Findings()
    effective = {side: _effective(meta, facts, side) for side in _SIDES}
    _check_quantity(effective["rollout"], effective["train"], found)
    _check_plain(effective, found)
    _check_model(facts, found)
    data = {key: value for key, value in (("different", found.faults), ("notes", found.notes)) if value}
    if found.faults:
        return Gate("config", False, "; ".join(found.faults + found.notes), data)
    if found.open:
        return Gate("config", None, "; ".join(found.open + found.notes), data)
    if not found.checked:
        return Gate("config", None, "not measured: nothing is known about the configuration of both sides")
    text = f"equal where it must be: {', '.join(found.checked)}"
    return Gate("config", True, "; ".join([text, *found.notes]), data)


def bypass_gate(meta: PairMeta, facts: RunFacts, tokens: int, mismatched: int) -> Gate:
    """Were the two columns computed separately?

    verl's bypass mode copies the rollout's log-probabilities over the trainer's, so that d is 0 and proves
    nothing. Where every token is bit-equal and nothing is known of either side, the gate stays undecided.
    """
    key = _find_true(meta.facts, _BYPASS_KEYS)
    if key is not None:
        text = f"{key} is on: the trainer's column is a copy of the rollout's, so that d measures nothing"
        return Gate("bypass", False, text, {"key": key})
    if tokens and not mismatched and not all(side in facts.fingerprints for side in _SIDES):
        text = "every token is bit-equal, and nothing in the input says that the two columns were computed separately"
        return Gate("bypass", None, text)
    return Gate("bypass", True, "no sign of a copied column")


def _effective(meta: PairMeta, facts: RunFacts, side: str) -> dict[str, Any]:
    """What is known of a side, the most reliable last: header, the side's own config there, fingerprint."""
    known: dict[str, Any] = {}
    shared = ("temperature", "top_p", "top_k", "logprobs_mode", *_PENALTIES) if side == "rollout" else ()
    for key in (*shared, "dtype"):
        if meta.get(key) is not None:
            known[key] = meta.get(key)
    own = meta.get(side)
    if isinstance(own, dict) and isinstance(own.get("config"), dict):
        known.update({k: v for k, v in own["config"].items() if v is not None})
    fingerprint = facts.fingerprints.get(side, {})
    known.update({k: v for k, v in (fingerprint.get("effective") or {}).items() if v is not None})
    if "dtype" not in (fingerprint.get("effective") or {}) and isinstance(
        dtype := (fingerprint.get("config") or {}).get("dtype"), str
    ):
        known["dtype"] = dtype
    for key in ("vocab_size", "eos_token_ids", "chat_template", "tokenizer_size"):
        if fingerprint.get(key) is not None:
            known[key] = fingerprint[key]
    return known


def _number(known: dict[str, Any], key: str) -> float | None:
    value = known.get(key)
    return _as_float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # JSON has integers of any size
        return math.inf if value > 0 else -math.inf


def _check_quantity(rollout: dict[str, Any], train: dict[str, Any], found: _Findings) -> None:
    mode = rollout.get("logprobs_mode")
    mode = mode.lower() if isinstance(mode, str) else None
    sampled_at = _number(rollout, "temperature")
    if sampled_at == 0:
        sampled_at = 1.0  # greedy: both sides score at T = 1
    trained_at = _scored_at(train)
    if mode is not None and mode.endswith("logits"):
        found.faults.append(f"logprobs_mode {mode}: the rollout reports logits, not log-probabilities")
    _check_temperature(mode, sampled_at, trained_at, found)
    _check_truncation(mode, rollout, found)


def _scored_at(known: dict[str, Any]) -> float | None:
    """Temperature of the trainer's log-probabilities; greedy sampling is scored at 1."""
    scored = _number(known, "scored_temperature")
    if scored is None:
        scored = _number(known, "temperature")
    return 1.0 if scored == 0 else scored


def _check_temperature(mode: str | None, sampled: float | None, trained: float | None, found: _Findings) -> None:
    if sampled is None:
        return
    if mode is None and sampled != 1:
        if trained is not None and trained != sampled:
            found.faults.append(f"temperature {sampled} on rollout, {trained} on train")
        else:
            found.open.append(
                f"temperature {sampled}, and it is unknown whether the rollout's values are raw or processed"
            )
        return
    raw = mode is not None and mode.startswith("raw")
    scored = 1.0 if raw else sampled
    expected = sampled if trained is None else trained
    if scored != expected:
        assumed = " (as trainers divide by the sampling temperature)" if trained is None else ""
        what = f"raw log-probabilities at temperature {sampled}" if raw else f"temperature {scored}"
        way_out = "; logprobs_mode processed_logprobs makes the rollout score at its temperature" if raw else ""
        found.faults.append(f"{what} on rollout, temperature {expected} on train{assumed}{way_out}")
    else:
        found.checked.append("temperature")
        if sampled != expected:
            found.notes.append(f"sampled at temperature {sampled}, both sides score at {expected}")


def _check_truncation(mode: str | None, rollout: dict[str, Any], found: _Findings) -> None:
    active = []
    top_p, top_k = _number(rollout, "top_p"), _number(rollout, "top_k")
    if top_p is not None and top_p < 1:
        active.append(f"top_p {top_p:g}")
    vocab = _number(rollout, "vocab_size")
    if top_k is not None and top_k > 0 and (vocab is None or top_k < vocab):
        active.append(f"top_k {top_k:g}")
    active += [
        f"{key} {value:g}"
        for key, neutral in _PENALTIES.items()
        if (value := _number(rollout, key)) is not None and value != neutral
    ]
    if not active:
        if top_p is not None or top_k is not None:
            found.checked.append("truncation")
        return
    names = ", ".join(active)
    if mode is None:
        found.open.append(f"{names}, and it is unknown whether the rollout's values are raw or processed")
    elif mode.startswith("processed"):
        found.faults.append(
            f"{names} with {mode}: the rollout normalises over what is left, the trainer over the full vocabulary"
        )
    else:
        found.notes.append(f"{names}: tokens were drawn from another law than the one scored (mean_exp_d is not 1)")


def _check_plain(effective: dict[str, dict[str, Any]], found: _Findings) -> None:
    rollout, train = effective["rollout"], effective["train"]
    for key, fatal in (("vocab_size", True), ("dtype", False), ("eos_token_ids", False), ("chat_template", False)):
        left, right = _canonical(key, rollout.get(key)), _canonical(key, train.get(key))
        if left is None or right is None:
            continue
        if left == right:
            found.checked.append(key)
        else:
            (found.faults if fatal else found.notes).append(
                f"{key} {_short(left)} on rollout, {_short(right)} on train"
            )


def _check_model(facts: RunFacts, found: _Findings) -> None:
    left, right = ((facts.fingerprints.get(side) or {}).get("model") for side in _SIDES)
    if not isinstance(left, dict) or not isinstance(right, dict):
        return
    flat_left, flat_right = (
        {key: _canonical(key.rsplit(".", 1)[-1], value) for key, value in flat(model).items()}
        for model in (left, right)
    )
    common = sorted(flat_left.keys() & flat_right.keys())
    different = [k for k in common if flat_left[k] != flat_right[k]]
    if different:
        found.faults.extend(
            f"model {k}: {_short(flat_left[k])} on rollout, {_short(flat_right[k])} on train" for k in different[:12]
        )
        if len(different) > 12:
            found.faults.append(f"{len(different) - 12} more keys of the model configuration differ")
    elif common:
        found.checked.append(f"{len(common)} keys of the model configuration")
    for side, keys in (
        ("rollout", flat_left.keys() - flat_right.keys()),
        ("train", flat_right.keys() - flat_left.keys()),
    ):
        if keys:
            rest = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
            found.notes.append(f"model keys known on {side} alone: {', '.join(sorted(keys)[:8])}{rest}")


def _canonical(key: str, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)) and key != "eos_token_ids":
        return _as_float(value)
    if key == "eos_token_ids":
        return sorted(value, key=str) if isinstance(value, (list, tuple)) else [value]
    if isinstance(value, str):
        return value.removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return [_canonical("", item) for item in value]
    return value


def _short(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _find_true(tree: Any, keys: tuple[str, ...], path: str = "") -> str | None:
    """Dotted path of the first of `keys` that is true anywhere in nested dictionaries."""
    if not isinstance(tree, dict):
        return None
    for key, value in tree.items():
        here = f"{path}{key}"
        if str(key).rsplit(".", 1)[-1] in keys and (value is True or str(value).lower() == "true"):
            return here
        found = _find_true(value, keys, f"{here}.")
        if found is not None:
            return found
    return None
