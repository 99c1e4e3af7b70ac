"""Does the difference that a hypothesis predicts show in the measured one? A matched filter with honest errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from logdiff_kernels.check.given import distinct
from logdiff_kernels.check.judgement import rms


@dataclass(frozen=True, slots=True)
class Fit:
    """beta of `measured = beta * predicted + rest`, all in units of the rounding tolerance.

    Attributes:
        beta: 1 where the hypothesis holds, 0 where it has nothing to say.
        z: beta over its standard error; rows and features may each be wrong as one, so the larger error counts.
        rest: rms of what is left over with beta = 1.
        before: rms of what was measured.
        size: rms of what is predicted.
    """

    beta: float
    z: float
    rest: float
    before: float
    size: float

    @property
    def explained(self) -> float:
        """Share of the measured variance that the hypothesis as it stands takes away."""
        return 1 - (self.rest / self.before) ** 2 if self.before > 0 and math.isfinite(self.before) else 0.0


def regress(measured: torch.Tensor, predicted: torch.Tensor, groups: torch.Tensor | None = None) -> Fit:
    """Fit one number over all elements.

    Args:
        measured: (out - ref) / tolerance, [n, F].
        predicted: (variant - ref) / tolerance, [n, F].
        groups: int64 [n]; rows whose errors may be alike (same position, say); None: each row is its own.
    """
    usable = measured.isfinite() & predicted.isfinite()
    e, d = torch.where(usable, measured, 0.0), torch.where(usable, predicted, 0.0)
    power = float(d.square().sum())
    size = rms(d)
    if not power > 0:
        return Fit(0.0, 0.0, rms(measured), rms(measured), 0.0)
    beta = float((e * d).sum()) / power
    pull = d * (e - beta * d)
    rows = pull.sum(-1)
    if groups is not None:
        places = {group: i for i, group in enumerate(distinct(groups))}
        index = torch.tensor([places[group] for group in groups.tolist()])
        rows = torch.zeros(len(places), dtype=pull.dtype).index_add_(0, index, rows)
    errors = [float(pull.square().sum())]
    if len(rows) > 3:
        errors.append(float(rows.square().sum()) * len(rows) / (len(rows) - 1))
    if pull.shape[1] > 3:
        errors.append(float(pull.sum(0).square().sum()))
    error = math.sqrt(max(errors)) / power
    rest = rms(torch.where(usable, e - d, math.inf)) if bool(usable.all()) else math.inf
    before = rms(measured)
    return Fit(beta, beta / error if error > 0 else math.copysign(math.inf, beta), rest, before, size)
