"""Does abs d stand out in one group of tokens? Rank statistics that don't care how noise grows with surprise.

Rounding noise is larger for unlikely tokens, so plain means of groups would compare how likely their tokens are. Here
abs d is first turned into its rank among tokens of like log-probability; a group is then held against the rest with an
error that takes the tokens of a sample as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STRATA = 12


@dataclass(frozen=True, slots=True)
class Contrast:
    """A group against the rest.

    Args:
        tokens, rest: their sizes.
        samples, rest_samples: samples with a token in it.
        shift: mean rank of the group minus that of the rest, -1 to 1; 0 for no difference.
        z: shift in standard errors, tokens of a sample taken as one.
        r2: share of the variance of ranks that the group explains.
        mean_abs, rest_abs: mean abs d, nats.
        share: share of the sum of abs d that lies in the group.
    """

    tokens: int
    rest: int
    samples: int
    rest_samples: int
    shift: float
    z: float
    r2: float
    mean_abs: float
    rest_abs: float
    share: float

    @property
    def ratio(self) -> float:
        """How many times larger abs d is in the group; infinite where the rest is exactly 0."""
        return self.mean_abs / self.rest_abs if self.rest_abs > 0 else (np.inf if self.mean_abs > 0 else 1.0)

    @property
    def holds(self) -> bool:
        """Stands out beyond doubt and by much."""
        enough = min(self.samples, self.rest_samples) >= 3 or min(self.tokens, self.rest) >= 200
        return bool(enough and self.z >= 5 and self.shift >= 0.12 and self.ratio >= 1.6)


def ranks(a: Floats, x: Floats) -> Floats:
    """[T] rank of a among tokens of like x, 0 to 1, equal values sharing their mean rank."""
    n = len(a)
    strata = max(1, min(STRATA, n // 40))
    shuffled = np.random.default_rng(0).permutation(n)  # equal values must not keep the order of samples
    order = shuffled[np.argsort(x[shuffled], kind="stable")]
    stratum = np.empty(n, dtype=np.int64)
    stratum[order] = np.arange(n) * strata // max(n, 1)
    out = np.empty(n)
    for s in range(strata):
        rows = np.flatnonzero(stratum == s)
        out[rows] = _mean_ranks(a[rows])
    return out


def _mean_ranks(values: Floats) -> Floats:
    n = len(values)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    first = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    group = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], n)
    out = np.empty(n)
    out[order] = ((starts + ends) / 2 / n)[group]
    return out


def contrast(u: Floats, a: Floats, row: Ints, group: Bools) -> Contrast | None:
    """`group` [T] against the rest; None where either is empty.

    Args:
        u: ranks [T].
        a: abs d [T].
        row: sample of each token [T], ascending.
        group: [T].
    """
    n, m = len(u), int(np.count_nonzero(group))
    if m in (0, n):
        return None
    p = m / n
    mean1, mean0 = float(u[group].mean()), float(u[~group].mean())
    shift = mean1 - mean0
    centred = group - p
    residual = u - np.where(group, mean1, mean0)
    cuts = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))
    per_sample = np.add.reduceat(centred * residual, cuts)
    spread = n * p * (1 - p)
    clusters = len(cuts)
    correction = clusters / (clusters - 1) if clusters > 1 else np.inf
    plain = float((centred * centred * residual * residual).sum())
    error = np.sqrt(max(float((per_sample**2).sum()) * correction, plain)) / spread
    total, variance = float(a.sum()), float(u.var())
    return Contrast(
        tokens=m,
        rest=n - m,
        samples=len(np.unique(row[group])),
        rest_samples=len(np.unique(row[~group])),
        shift=shift,
        z=float(shift / error) if error > 0 else float(np.sign(shift) * np.inf) if shift else 0.0,
        r2=float(shift * shift * p * (1 - p) / variance) if variance > 0 else 0.0,
        mean_abs=float(a[group].mean()),
        rest_abs=float(a[~group].mean()),
        share=float(a[group].sum() / total) if total > 0 else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Onset:
    """A threshold of an integer scale (place, step, length) from which on abs d is larger (or up to which it is).

    Args:
        at: the threshold; `late` is True where values of at least `at` stand out, False where those below do.
        contrast: the group that stands out against the rest.
        smooth_r2: what a straight line over the scale explains instead.
    """

    at: int
    late: bool
    contrast: Contrast
    smooth_r2: float

    @property
    def sharp(self) -> bool:
        """A step explains clearly more than a line does."""
        return self.contrast.r2 > 1.25 * self.smooth_r2


def scan(u: Floats, a: Floats, row: Ints, scale: Ints, fewest: int = 16) -> Onset | None:
    """The threshold of `scale` [T] that explains most, with at least `fewest` tokens on either side."""
    n = len(u)
    values, counts = np.unique(scale, return_counts=True)
    if len(values) < 2 or n < 2 * fewest:
        return None
    index = np.searchsorted(values, scale)
    sums = np.bincount(index, weights=u, minlength=len(values))
    below_n, below_sum = np.cumsum(counts)[:-1], np.cumsum(sums)[:-1]
    above_n, above_sum = n - below_n, sums.sum() - below_sum
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = above_sum / above_n - below_sum / below_n
        between = shift**2 * below_n * above_n
    between[(below_n < fewest) | (above_n < fewest)] = -1
    best = int(np.argmax(between))
    if between[best] <= 0:
        return None
    at, late = int(values[best + 1]), bool(shift[best] > 0)
    group = scale >= at if late else scale < at
    found = contrast(u, a, row, group)
    if found is None:
        return None
    place = _mean_ranks(scale.astype(np.float64))
    smooth = float(np.corrcoef(place, u)[0, 1] ** 2) if place.std() > 0 and u.std() > 0 else 0.0
    return Onset(at, late, found, smooth)
