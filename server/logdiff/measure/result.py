"""The outcome of a measurement, its exit code, and limits on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from logdiff.errors import InputError
from logdiff.jsonio import plain
from logdiff.measure.gates import Gate

LIMITABLE = (
    *("mismatched_tokens", "mismatched_share", "missing", "max_abs", "mean_abs", "mean", "std", "rms"),
    *("p50", "p90", "p99", "p999", "k1_kl", "k3_kl", "clip_share", "top1_share", "bias_ratio"),
    *("log_ppl_diff", "log_ppl_abs_diff", "chi2", "chi2_seq", "token_mult_prob_error"),
    *("rollout_probs_diff_mean", "rollout_probs_diff_max", "rollout_probs_diff_std"),
)
"""Numbers of the block for which more is worse; signed ones are limited by their size."""
_ALIASES = {"mismatched": "mismatched_tokens"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """`logdiff-measure/1` as an object.

    Args:
        gates: identity gates in the order in which they are to be read.
        measure: statistics of train - rollout.
        pairs: the triangle, None where a side is absent.
        unavailable: pair name -> why it is None.
        samples: total, compared, excluded, empty, masked.
        floor: see `floor_summary`; empty where no floor was measured.
    """

    gates: list[Gate]
    measure: dict[str, Any]
    pairs: dict[str, dict[str, Any] | None]
    unavailable: dict[str, str]
    samples: dict[str, int]
    floor: dict[str, Any] = field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        """Whether at least one token of decode_train was compared."""
        return bool(self.measure["tokens"] > 0)

    @property
    def failed_gates(self) -> list[Gate]:
        """Gates that do not hold."""
        return [gate for gate in self.gates if gate.ok is False]

    def with_floor(self, floor: dict[str, Any]) -> Measurement:
        """The same measurement with a floor beside it."""
        return replace(self, floor=floor)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready `logdiff-measure/1` without `case`; non-finite numbers are strings."""
        result: dict[str, Any] = plain(
            {
                "format": "logdiff-measure/1",
                "gates": [gate.as_dict() for gate in self.gates],
                "measure": self.measure,
                "pairs": self.pairs,
                "floor": self.floor,
                "samples": self.samples,
                "unavailable": self.unavailable,
            }
        )
        return result

    def exceeded(self, limits: dict[str, float]) -> dict[str, float]:
        """The limits that are exceeded, with the value found; an undefined (NaN) value exceeds every limit."""
        found = {}
        for name, limit in limits.items():
            value = abs(float(self.measure[name]))
            if not value <= limit:
                found[name] = value
        return found

    def exit_code(self, fail_above: dict[str, float] | None = None) -> int:
        """0 equal, 1 a difference or a failed gate, 2 nothing comparable.

        With `fail_above` (see `parse_fail_above`) a difference alone is no failure: 1 means that a limit is
        exceeded or a gate failed, since a number behind a failed gate is no evidence of health.
        """
        if not self.comparable:
            return 2
        if self.failed_gates:
            return 1
        if fail_above is not None:
            return 1 if self.exceeded(fail_above) else 0
        return 1 if self.measure["mismatched_tokens"] else 0


def parse_fail_above(text: str) -> dict[str, float]:
    """Read `mean_abs=0.01,mismatched=0`.

    Raises:
        InputError: an unknown name, a missing, negative or NaN limit, a repeated name, or no limit at all.
    """
    limits: dict[str, float] = {}
    for part in (p.strip() for p in text.split(",")):
        if not part:
            continue
        name, equals, number = (piece.strip() for piece in part.partition("="))
        name = _ALIASES.get(name, name)
        if name not in LIMITABLE:
            names = ", ".join(sorted([*LIMITABLE, *_ALIASES]))
            raise InputError(f"no limit can be set on {name!r}", value=part, hint=f"one of: {names}")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not equals or not limit >= 0:
            raise InputError(f"the limit of {name} is not a number of 0 or more", value=part, hint=f"{name}=0.01")
        if name in limits:
            raise InputError(f"{name} is limited twice", value=text, hint="give each name once")
        limits[name] = limit
    if not limits:
        raise InputError("no limit given", value=text, hint="mean_abs=0.01,mismatched=0")
    return limits
