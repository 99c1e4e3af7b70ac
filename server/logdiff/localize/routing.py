"""How much of a mismatch lies on tokens whose experts differ between the sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Routing:
    """Expert choices of decode and train, compared token by token.

    Args:
        tokens: compared tokens.
        flipped: tokens with another set of experts in at least one layer.
        choices, other_choices: (token, layer) pairs, and those with another set.
        share: share of the sum of d squared that lies on flipped tokens.
        mean_abs_flipped, mean_abs_same: mean |d| of both kinds, nats.
        first_layer: the first layer with a flip, None without one.
    """

    tokens: int
    flipped: int
    choices: int
    other_choices: int
    share: float
    mean_abs_flipped: float
    mean_abs_same: float
    first_layer: int | None

    @property
    def leads(self) -> bool:
        """Whether flips, not rounding alone, carry most of the mismatch."""
        return self.share > 0.5 and self.mean_abs_flipped > 2 * self.mean_abs_same

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "tokens": self.tokens, "flipped_tokens": self.flipped, "choices": self.choices,
            "other_choices": self.other_choices, "share_of_d2": self.share,
            "mean_abs_flipped": self.mean_abs_flipped, "mean_abs_same": self.mean_abs_same,
            "first_layer": self.first_layer,
        }  # fmt: skip


def routing(rollout: Path, train: Path) -> Routing | None:
    """Compare the experts of two sequence files of the same tokens; None where one has none.

    A token's own routing is judged, at the position whose logits scored it.
    """
    import numpy as np

    from logdiff.case.sequences import read_sequences

    first, second = read_sequences(rollout), read_sequences(train)
    one, other = first.columns.get("experts"), second.columns.get("experts")
    if one is None or other is None or one.shape != other.shape:
        return None
    d = second.values() - first.values()
    known = (one >= 0).all(axis=(1, 2)) & (other >= 0).all(axis=(1, 2)) & np.isfinite(d)
    if not known.any():
        return None
    off = (np.sort(one, axis=2) != np.sort(other, axis=2)).any(axis=2)[known]
    d = d[known]
    flipped = off.any(axis=1)
    squares = d**2
    total = float(squares.sum())
    return Routing(
        tokens=len(d),
        flipped=int(flipped.sum()),
        choices=off.size,
        other_choices=int(off.sum()),
        share=float(squares[flipped].sum()) / total if total else 0.0,
        mean_abs_flipped=float(np.abs(d[flipped]).mean()) if flipped.any() else 0.0,
        mean_abs_same=float(np.abs(d[~flipped]).mean()) if (~flipped).any() else 0.0,
        first_layer=int(np.flatnonzero(off.any(axis=0))[0]) if off.any() else None,
    )
