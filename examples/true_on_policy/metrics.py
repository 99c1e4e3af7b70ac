"""What is measured each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def difference(train: Sequence[Floats], rollout: Sequence[Floats]) -> dict[str, Any]:
    """d = logp_train - logp_rollout over all response tokens of a step.

    Returns:
        `tokens`, `mismatched` (tokens whose fp32 bits differ), `max_abs` and `mean_abs` of d in nats, and the k3
        estimate mean(exp d - 1 - d) of KL(rollout, train), computed in fp64.

    Raises:
        ValueError: no token, unequal lengths, or a value that is not finite: nothing is equal by absence.
    """
    if [len(a) for a in train] != [len(b) for b in rollout]:
        raise ValueError("the two sides scored another number of tokens")
    a = np.concatenate([*train, np.zeros(0, np.float32)]).astype(np.float32, copy=False)
    b = np.concatenate([*rollout, np.zeros(0, np.float32)]).astype(np.float32, copy=False)
    if not len(a):
        raise ValueError("no response token to compare")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a log-probability is not finite")
    d = a.astype(np.float64) - b.astype(np.float64)
    return {
        "tokens": len(d),
        "mismatched": int((a.view(np.int32) != b.view(np.int32)).sum()),
        "max_abs": float(np.abs(d).max()),
        "mean_abs": float(np.abs(d).mean()),
        "k3": float((np.expm1(d) - d).mean()),
    }


def ratios(values: Floats, clip: float) -> dict[str, Any]:
    """Importance ratios of one update: `mean`, `min`, `max`, `not_one` (tokens off exactly 1), `clipped` (share)."""
    return {
        "mean": math.fsum(values.tolist()) / len(values),
        "min": float(values.min()),
        "max": float(values.max()),
        "not_one": int((values != 1.0).sum()),
        "clipped": float((np.abs(values - np.float32(1.0)) > clip).mean()),
    }


def unequal_weights(train: dict[str, Any], rollout: dict[str, Any]) -> list[str]:
    """Names of tensors whose checksums differ between two `logdiff-weights/1`, or that only one side has."""

    def sums(document: dict[str, Any]) -> dict[str, str]:
        own = {name: str(entry["sum"]) for name, entry in document["tensors"].items()}
        return own | {name: own[target] for name, target in document["tied"].items() if target in own}

    ours, theirs = sums(train), sums(rollout)
    tied = {*train["tied"], *rollout["tied"]}  # one side may list a tied name that the other does not have at all
    names = {name for name in (*ours, *theirs) if (name in ours and name in theirs) or name not in tied}
    if not names:
        return ["no tensor on either side"]
    return sorted(name for name in names if ours.get(name) != theirs.get(name))
