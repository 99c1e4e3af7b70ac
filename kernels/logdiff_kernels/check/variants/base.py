"""A hypothesis about an operator, and what it may look at to predict the operator's output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from logdiff_kernels.check.given import Given, Parameters
from logdiff_kernels.check.kinds import KINDS

NAMED, FITTED, GENERIC, LOOSE = 0, 1, 2, 3
"""How much a hypothesis may adapt to what was measured: nothing, one number, a few, many. Fewer lead at equal fit."""


REDUCED = ("attn_out", "mlp_out", "shared_out", "experts_out", "moe_out")
"""Parts that are summed over ranks."""


@dataclass(frozen=True)
class Scene:
    """One operator with rows to explain.

    Attributes:
        name: boundary.
        part: last part of its name.
        kind: of `KINDS`.
        given: inputs in fp64.
        p: parameters in fp64.
        ref: fp64 [n, F].
        out: what was captured, fp64 [n, F].
        tolerance: fp64 [n, F]; inf for features that don't count.
        dtype: the run's.
        everywhere: inputs of all captured rows in their own dtype, for hypotheses about neighbours.
        index: int64 [n], which of `everywhere`'s rows these are.
        others: (boundary, parameters) of operators of the same kind and shapes elsewhere in the model.
        facts: numbers of the model and of the run that a hypothesis may be made of (`windows`, `thetas`,
            `temperature`, `top_k`, `top_p`, `prompt_lengths` by sample, ...).
        heads: heads that lie side by side in a row of the output; None: none.
    """

    name: str
    part: str
    kind: str
    given: Given
    p: Parameters
    ref: torch.Tensor
    out: torch.Tensor
    tolerance: torch.Tensor
    dtype: torch.dtype
    everywhere: Given
    index: torch.Tensor
    others: Callable[[], Iterator[tuple[str, Parameters]]]
    facts: dict[str, Any] = field(default_factory=dict)
    heads: int | None = None
    subtle: bool = False

    def evaluate(self, given: Given | None = None, **changed: Any) -> torch.Tensor:
        """The formula with changed parameters, or on other inputs."""
        return KINDS[self.kind].formula(given or self.given, {**self.p, **changed})

    def misfit(self, predicted: torch.Tensor) -> float:
        """Rms of what a prediction leaves, in units of the tolerance, robust against a few rows."""
        rest = ((self.out - predicted) / self.tolerance).square().mean(-1) / self.judged
        value = float(rest.sort().values[: max(1, int(0.9 * len(rest)))].mean().sqrt())
        return value if math.isfinite(value) else math.inf

    @property
    def judged(self) -> float:
        """Share of features that count: those without an infinite tolerance."""
        return max(float(self.tolerance.isfinite().double().mean()), 1e-12)

    def few(self, count: int) -> Scene:
        """The same for at most `count` rows, spread evenly."""
        if len(self.index) <= count:
            return self
        at = torch.linspace(0, len(self.index) - 1, count).long()
        return replace(
            self,
            given=self.given.take(at),
            ref=self.ref[at],
            out=self.out[at],
            tolerance=self.tolerance[at],
            index=self.index[at],
        )


@dataclass(frozen=True)
class Variant:
    """A hypothesis.

    Attributes:
        id: kebab-case, unique within a kind of operator.
        cause: id of the catalogue of causes, or None.
        statement: what the operator then does, a clause.
        predict: what the operator would have given on a scene's rows; raises `ValueError` where it can't say.
        parameters: its numbers, plain.
        rank: `NAMED` to `LOOSE`.
        honest: another precision or order of roundings, no other function.
        subtle: worth a look where the operator is within rounding.
    """

    id: str
    cause: str | None
    statement: str
    predict: Callable[[Scene], torch.Tensor]
    parameters: dict[str, Any] = field(default_factory=dict)
    rank: int = NAMED
    honest: bool = False
    subtle: bool = False


def changed(
    id: str, cause: str | None, statement: str, *, subtle: bool = False, shown: dict[str, Any] | None = None, **p: Any
) -> Variant:
    """A variant that changes parameters; `shown` are the numbers to report, those changed if None."""
    plain = {k: v for k, v in p.items() if isinstance(v, (int, float, str, bool, list)) or v is None}
    return Variant(
        id, cause, statement, lambda s: s.evaluate(**p), shown if shown is not None else plain, subtle=subtle
    )


def minimise(cost: Callable[[float], float], start: Sequence[float], steps: int = 24) -> tuple[float, float]:
    """The best of `start` (ascending), refined between its neighbours by golden sections. Returns (place, cost)."""
    costs = [cost(x) for x in start]
    best = min(range(len(start)), key=lambda i: costs[i])
    low, high = start[max(best - 1, 0)], start[min(best + 1, len(start) - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = cost(a), cost(b)
    for _ in range(steps):
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = cost(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = cost(b)
    found = min(((fa, a), (fb, b), (costs[best], start[best])))
    return found[1], found[0]


def fitted(scene: Scene, predict: Callable[[Scene, float], torch.Tensor], start: Sequence[float]) -> float:
    """The number with which a prediction fits a scene best, to the precision that its rounding allows.

    Args:
        scene: a few of its rows are used.
        predict: output for a number.
        start: ascending; the best lies between two of them.

    Returns:
        With as few digits as fit equally well.
    """
    some = scene.few(48)
    at, _ = minimise(lambda x: some.misfit(predict(some, x)), start)
    for _ in range(4):  # Gauss-Newton from there
        step = 1e-4 * max(abs(at), 1e-3)
        base = predict(some, at)
        slope = ((predict(some, at + step) - base) / step) / some.tolerance
        rest = (some.out - base) / some.tolerance
        usable = slope.isfinite() & rest.isfinite()
        power = float(slope[usable].square().sum())
        moved = at + (float((slope * rest)[usable].sum()) / power if power > 0 else 0.0)
        if not math.isfinite(moved) or some.misfit(predict(some, moved)) > some.misfit(base):
            break
        at = moved
    return at


def shortest(scene: Scene, predict: Callable[[Scene, float], torch.Tensor], value: float) -> float:
    """A fitted number rounded to the fewest digits that fit as well."""
    some = scene.few(48)
    limit = 1.02 * some.misfit(predict(some, value)) + 1e-6
    for digits in range(1, 12):
        short = float(f"{value:.{digits}g}")
        if some.misfit(predict(some, short)) <= limit:
            return short
    return value
