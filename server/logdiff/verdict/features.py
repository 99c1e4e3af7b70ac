"""Everything that the rules ask of pair evidence, computed once, when it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairMeta
from logdiff.measure import Measurement
from logdiff.measure.gates import Gate
from logdiff.verdict import values
from logdiff.verdict.outliers import Outliers, outliers
from logdiff.verdict.places import Places, Split, places, split_samples
from logdiff.verdict.table import Table

Floats = npt.NDArray[np.float64]

ROUNDING = {"float32": 1e-4, "float16": 0.012, "bfloat16": 0.07}
"""Mean abs d, nats, that kernels of a dtype reach by rounding alone; models and entropies vary, so a generous bound."""


@dataclass
class Features:
    """Evidence of one comparison.

    Args:
        meta: header facts.
        measurement: gates and statistics over all tokens.
        table: token table; see `logdiff.verdict.table`.
        source: what evidence items name as where their number comes from.
        repeat: command that measures it again.
    """

    meta: PairMeta
    measurement: Measurement
    table: Table
    source: str = ""
    repeat: str = ""
    left_out: list[str] = field(default_factory=list)

    def of(self, table: Table, why: str) -> Features:
        """The same evidence with another token table: what is left once a fault is taken away."""
        return Features(self.meta, self.measurement, table, self.source, self.repeat, [*self.left_out, why])

    @property
    def whole(self) -> bool:
        """Whether the table still holds everything, so that the measurement's figures describe it."""
        return not self.left_out

    @cached_property
    def a(self) -> Floats:
        """[T] abs d."""
        return np.abs(self.table.d)

    @cached_property
    def mean_abs(self) -> float:
        """Mean abs d of the table, nats."""
        return float(self.a.mean()) if self.table.tokens else math.nan

    @cached_property
    def top1_share(self) -> float:
        """Share of the sum of abs d in the largest hundredth of tokens."""
        n = self.table.tokens
        if not n or not self.a.any():
            return 0.0
        return float(np.sort(self.a)[-math.ceil(n / 100) :].sum() / self.a.sum())

    @cached_property
    def correlation(self) -> float:
        """Of both columns of log-probabilities."""
        x, y = self.table.rollout, self.table.train
        return float(np.corrcoef(x, y)[0, 1]) if len(x) > 2 and x.std() > 0 and y.std() > 0 else math.nan

    @cached_property
    def bias(self) -> values.Estimate:
        """Mean d with its error."""
        return values.clustered(self.table.d, self.table.row)

    @cached_property
    def bias_ratio(self) -> float:
        """abs(mean d) / mean abs d."""
        return abs(self.bias.value) / self.mean_abs if self.mean_abs else 0.0

    @cached_property
    def law(self) -> dict[str, values.Estimate]:
        """See `values.law`."""
        return values.law(self.table)

    @cached_property
    def left_over(self) -> float:
        """Share of mean d^2 that no function of one column explains; 1 for noise, near 0 for a change of scale."""
        return min(_left_over(self.table.rollout, self.table.train), _left_over(self.table.train, self.table.rollout))

    @cached_property
    def places(self) -> Places:
        """Where abs d is large."""
        return places(self.table)

    @cached_property
    def split(self) -> Split | None:
        """Good and bad samples."""
        return split_samples(self.table)

    @cached_property
    def outliers(self) -> Outliers | None:
        """A few tokens far off."""
        return outliers(self.table)

    @cached_property
    def steps(self) -> list[tuple[int, float, int]]:
        """(step, mean abs d, tokens), by step."""
        step = self.table.step[self.table.row]
        return [(int(s), float(self.a[step == s].mean()), int(np.count_nonzero(step == s))) for s in np.unique(step)]

    def gate(self, name: str) -> Gate | None:
        """A gate of the measurement."""
        return next((g for g in self.measurement.gates if g.gate == name), None)

    def failed(self, name: str) -> bool:
        """Whether that gate does not hold."""
        gate = self.gate(name)
        return gate is not None and gate.ok is False

    def number(self, name: str) -> float | None:
        """A numeric header fact."""
        value = self.meta.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        try:
            return float(value)
        except OverflowError:
            return None

    @cached_property
    def moe(self) -> bool | None:
        """Whether the model has experts; None where nothing says."""
        if self.table.experts:
            return True
        known = self.meta.get("moe")
        return known if isinstance(known, bool) else None

    @cached_property
    def dtype(self) -> str | None:
        """float32, float16, bfloat16 or None."""
        named = str(self.meta.get("dtype") or "").removeprefix("torch.").lower()
        return {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}.get(
            named, named if named in ROUNDING else None
        )

    @cached_property
    def rounding(self) -> float:
        """Mean abs d that rounding may reach here: a measured floor where there is one, else the dtype's bound."""
        floor = self.measurement.floor.get("mean_abs")
        if floor is not None:
            return max(3 * float(floor), 1e-6)
        return ROUNDING[self.dtype or "bfloat16"]

    @cached_property
    def pair_abs(self) -> dict[str, float]:
        """Mean abs d of each pair of sides that was measured on at least one token."""
        return {
            name: float(block["mean_abs"])
            for name, block in self.measurement.pairs.items()
            if block is not None and block["tokens"] > 0
        }

    @cached_property
    def equal_share(self) -> float:
        """Share of tokens that are no certainty (log-probability below -0.1) and yet equal to the bit."""
        open_ = (self.table.rollout < -0.1) | (self.table.train < -0.1)
        return float(np.mean(self.a[open_] == 0)) if open_.any() else 0.0

    def config(self, side: str) -> dict[str, Any]:
        """What the header says of a side, its `config` and its own keys together, names in lower case."""
        known = self.meta.get(side)
        if not isinstance(known, dict):
            return {}
        flat = {str(k).lower(): v for k, v in known.items() if k != "config"}
        own = known.get("config")
        if isinstance(own, dict):
            flat.update({str(k).lower(): v for k, v in own.items()})
        return flat


def _left_over(x: Floats, y: Floats, bins: int = 25) -> float:
    """Variance of y around a line in each of `bins` stretches of x, as a share of mean (y - x)^2."""
    n = len(x)
    power = float(((y - x) ** 2).sum())
    if n < 8 * bins or power == 0:
        return 1.0
    order = np.argsort(x, kind="stable")
    rest = 0.0
    for part in np.array_split(order, bins):
        xs, ys = x[part] - x[part].mean(), y[part] - y[part].mean()
        spread = float((xs * xs).sum())
        slope = float((xs * ys).sum()) / spread if spread > 0 else 0.0
        rest += float(((ys - slope * xs) ** 2).sum())
    return rest * n / (n - 2 * bins) / power
