"""Whether an operator's output is its reference up to rounding.

The measure is the error in units of the rounding that the formula allows per element (`kinds.tolerance`). One rounding
to nearest has a root mean square of about 0.4 of its unit roundoff and never more than 1; the coarsest honest path
sums a few of them, so that over all elements the measure stays near 1. The bounds leave some room to that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

RMS_BOUND = 1.5
"""Over all elements."""

PEAK_BOUND = 6.0
"""Over single elements: several roundings of one sign."""


@dataclass(slots=True)
class Judgement:
    """Errors of one operator, put together from blocks of rows.

    Attributes:
        features: elements of a row.
        error: per row the mean square of out - ref.
        power: per row the mean square of ref.
        normal: per row the mean square of the error in units of its tolerance.
        peak: per row the largest of those units.
    """

    features: int = 0
    error: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    power: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    normal: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    peak: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def add(self, out: torch.Tensor, ref: torch.Tensor, tolerance: torch.Tensor) -> None:
        """Take further rows, fp64 [n, F] each; what isn't finite where the reference is counts as infinitely far."""
        difference = torch.where(out == ref, 0.0, out - ref)
        units = torch.where(out == ref, 0.0, difference / tolerance)
        self.features = out.shape[-1]
        blocks = (difference.square().mean(-1), ref.square().mean(-1), units.square().mean(-1), units.abs().amax(-1))
        for name, values in zip(("error", "power", "normal", "peak"), blocks, strict=True):
            setattr(self, name, torch.cat((getattr(self, name), values.nan_to_num(math.inf, math.inf))))

    @property
    def size(self) -> float:
        """Rms of the error in units of its tolerance."""
        return math.sqrt(float(self.normal.mean())) if len(self.normal) else 0.0

    @property
    def relative(self) -> float:
        """rms(out - ref) / rms(ref)."""
        return math.sqrt(float(self.error.mean()) / max(float(self.power.mean()), 1e-300)) if len(self.error) else 0.0

    def row_error(self) -> torch.Tensor:
        """Error of each row over the rms of all reference rows, [n]."""
        return (self.error / max(float(self.power.mean()), 1e-300)).sqrt()

    def off(self, allowance: float = 1.0) -> torch.Tensor:
        """bool [n]: rows beyond the bound, which `allowance` widens."""
        bound = allowance * RMS_BOUND * (1 + 3 / math.sqrt(max(self.features, 1)))
        return (self.normal.sqrt() > bound) | (self.peak > allowance * PEAK_BOUND)

    def ok(self, allowance: float = 1.0) -> bool:
        """Whether every row and all of them together are within rounding."""
        return not bool(self.off(allowance).any()) and self.size <= allowance * RMS_BOUND


def rms(x: torch.Tensor) -> float:
    """Root mean square; NaN and inf count as inf."""
    value = float(x.square().mean().sqrt()) if x.numel() else 0.0
    return value if math.isfinite(value) else math.inf
