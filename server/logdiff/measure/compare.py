"""Before and after: what changed between two measured cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from logdiff.jsonio import plain

_TABLES = ("by_position", "by_step", "by_rank", "by_sample", "max_abs_at")
_ABSENT = None


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """`logdiff-compare/1` of two cases.

    Args:
        before, after: each {"result": `logdiff-measure/1`, "fingerprints": {side: `logdiff-fingerprint/1`},
            "meta": header facts, "case": path or name}; everything but "result" may be missing.

    Returns:
        `before` and `after` (case and the measure block of each) and `changed`: {what, before, after} for
        every version, configuration key, environment variable, header fact, gate and number that differs;
        a number also has `relative` = (after - before) / |before|. Null stands for absent.
    """
    changed: list[dict[str, Any]] = []
    for side in sorted({*_sides(before), *_sides(after)}):
        old, new = _sides(before).get(side, {}), _sides(after).get(side, {})
        _facts(f"{side}.", old, new, changed)
    _facts("meta.", dict(before.get("meta") or {}), dict(after.get("meta") or {}), changed)
    old_result, new_result = before["result"], after["result"]
    _facts("gate.", _gates(old_result), _gates(new_result), changed)
    _numbers("measure.", old_result["measure"], new_result["measure"], changed)
    for pair in ("decode_rescore", "rescore_train"):
        old_pair, new_pair = (r.get("pairs", {}).get(pair) for r in (old_result, new_result))
        if (old_pair is None) != (new_pair is None):
            changed.append({"what": f"pairs.{pair}", "before": _state(old_pair), "after": _state(new_pair)})
        elif old_pair is not None and new_pair is not None:
            _numbers(f"pairs.{pair}.", old_pair, new_pair, changed)
    floors = [
        {k: v for k, v in (r.get("floor") or {}).items() if not isinstance(v, (dict, list))}
        for r in (old_result, new_result)
    ]
    _numbers("floor.", floors[0], floors[1], changed)
    result: dict[str, Any] = plain(
        {
            "format": "logdiff-compare/1",
            "before": {"case": before.get("case"), "measure": old_result["measure"]},
            "after": {"case": after.get("case"), "measure": new_result["measure"]},
            "changed": changed,
        }
    )
    return result


def _sides(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(case.get("fingerprints") or {})


def _gates(result: Mapping[str, Any]) -> dict[str, Any]:
    return {gate["gate"]: gate["ok"] for gate in result.get("gates", [])}


def _state(pair: Any) -> str:
    return "absent" if pair is None else "measured"


def _facts(prefix: str, before: dict[str, Any], after: dict[str, Any], changed: list[dict[str, Any]]) -> None:
    old, new = _flat(before), _flat(after)
    for key in sorted(old.keys() | new.keys()):
        left, right = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if plain(left) != plain(right):
            changed.append({"what": f"{prefix}{key}", "before": left, "after": right})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        elif key != "format":
            flat[f"{prefix}{key}"] = value
    return flat


def _numbers(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any], changed: list[dict[str, Any]]) -> None:
    old = _flat({k: v for k, v in before.items() if k not in _TABLES})
    new = _flat({k: v for k, v in after.items() if k not in _TABLES})
    for key in [*old, *(k for k in new if k not in old)]:
        left, right = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if plain(left) == plain(right):
            continue
        entry = {"what": f"{prefix}{key}", "before": left, "after": right}
        relative = _relative(left, right)
        if relative is not None:
            entry["relative"] = relative
        changed.append(entry)


def _relative(before: Any, after: Any) -> float | None:
    try:
        old, new = float(before), float(after)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(old) or not math.isfinite(new):
        return None
    return (new - old) / abs(old) if old else math.copysign(math.inf, new)
