"""What the thresholds of public trainers say about the same measured cases: a mismatch, yes or no, and no more.

- verl's FAQ: `rollout_probs_diff_mean` above 0.01 is suspect.
- NeMo-RL's guides: `token_mult_prob_error` (mean of exp |d|) above 1.05.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

RULES = {
    "verl": ("rollout_probs_diff_mean", 0.01),
    "nemo-rl": ("token_mult_prob_error", 1.05),
}


def flags(measure: dict[str, Any] | None) -> dict[str, bool | None]:
    """Which rules call a mismatch; None where the metric was not measured."""
    found: dict[str, bool | None] = {}
    for peer, (metric, bound) in RULES.items():
        value = (measure or {}).get(metric)
        # Non-finite numbers are strings in our results, and above every bound.
        found[peer] = None if value is None else value > bound if isinstance(value, (int, float)) else True
    return found


def table(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Per rule: the share of faults and of controls that it calls a mismatch. It names no class, cause or side."""
    rows = list(rows)
    result: dict[str, Any] = {}
    for peer, (metric, bound) in RULES.items():
        counts = {}
        for kind, control in (("faults", False), ("controls", True)):
            called = [
                row["peers"][peer] for row in rows if row["control"] is control and row["peers"][peer] is not None
            ]
            counts[kind] = {"called": sum(called), "of": len(called)}
        result[peer] = {"rule": f"{metric} > {bound}", "answers": "mismatch: yes or no", **counts}
    return result
