"""What a live run knows beside the tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts for the gates; all empty for an offline pair file.

    Args:
        fingerprints: side ("rollout", "train") -> `logdiff-fingerprint/1`.
        weights: step -> side -> `logdiff-weights/1`.
        unavailable: pair name ("decode_rescore", ...) -> why its numbers can't be had.
    """

    fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
