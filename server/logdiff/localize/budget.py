"""The budget: how much of a mismatch each operator brings, from measured d with operators replaced on both sides.

The whole is the mean of d squared over the tokens (nats squared): differences of independent sources add up in it, as
those of d itself do not. With S the set of operators that both sides run aligned, v(S) is that mean.

- unexplained: v(all) / v(none), what is left when every operator is replaced.
- first in: (v(none) - v(only this)) / v(none), what goes when this operator alone is replaced.
- last out: (v(all but this) - v(all)) / v(none), what comes back when this operator alone is stock.
- share: where every combination of the operators that matter was measured, the mean of what an operator takes away
  over all orders of replacing them (Shapley's value); else the middle of first in and last out. Shares below 0 count
  as 0, and the rest is scaled so that shares and unexplained are one.

Where differences only add up, first in and last out are the same. In deep bf16 models they are not: one stock operator
is enough to move most later roundings, so last out is larger. `interaction` is last out minus first in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Subset = frozenset[str]

UNEXPLAINED = "unexplained"
TOGETHER = "several operators together"
NOT_MEASURED = "not measured"

UNIT = 1 << 20
"""Shares are whole multiples of 1 / UNIT, so that sums of them are exact in any order."""

RESAMPLES = 400
MOST_PLAYERS = 4
"""Operators up to which every combination is asked for."""
_LOW, _HIGH = 0.05, 0.95
_SLACK = 1.1
"""What all operators leave may be this much more with fewer of them and still count as the same."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Both sides on the same tokens with some operators replaced.

    Args:
        squares: sum of d squared of each sample, nats squared [samples].
        tokens: compared tokens of each sample [samples].
        mismatched: tokens whose fp32 bits differ.
        mean_abs, max_abs: of d, nats.
        seconds: of the task on each side, by name; empty where unknown.
        bytes: of raw weights that the sides kept for the switch.
    """

    squares: Floats
    tokens: Floats
    mismatched: int
    mean_abs: float
    max_abs: float
    seconds: Mapping[str, float]
    bytes: int = 0

    @property
    def mean_square(self) -> float:
        """Mean of d squared over the tokens."""
        return float(self.squares.sum() / self.tokens.sum())

    def as_dict(self) -> dict[str, Any]:
        """Statistics as JSON values."""
        return {
            "mean_square": self.mean_square,
            "mean_abs": self.mean_abs,
            "max_abs": self.max_abs,
            "mismatched_tokens": self.mismatched,
            "seconds": dict(self.seconds),
        }


@dataclass(frozen=True, slots=True)
class Share:
    """One operator's part of the whole, or what is `UNEXPLAINED`.

    Args:
        component: operator of the contract, `UNEXPLAINED`, `TOGETHER` (what none takes away alone) or `NOT_MEASURED`.
        share: 0 to 1; all of them sum to one exactly.
        low, high: the smallest and largest of first in, last out and the share's own 90 % interval over samples.
        first_in, last_out: see the module; None where not measured.
        confidence: part of the resampled tokens (whole samples) that give it the same place in the order.
        how: "all orders", "first in and last out", "last out", "first in", "bound": where the share comes from.
    """

    component: str
    share: float
    low: float
    high: float
    first_in: float | None = None
    last_out: float | None = None
    confidence: float = 0.0
    how: str = "bound"

    @property
    def interaction(self) -> float | None:
        """Last out minus first in: 0 where differences add up, above 0 where others' stock operators hide it."""
        return None if self.first_in is None or self.last_out is None else self.last_out - self.first_in

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {
            "component": self.component,
            "share": self.share,
            "low": self.low,
            "high": self.high,
            "first_in": self.first_in,
            "last_out": self.last_out,
            "interaction": self.interaction,
            "confidence": self.confidence,
            "how": self.how,
        }


def enough(one: Pass, everything: Pass | None, floor: Mapping[str, Any] | None = None) -> bool:
    """Whether replacing these operators does all that can be done.

    Args:
        one: the pass in question.
        everything: the pass with every operator replaced.
        floor: `max_abs` and `mean_abs` of a side against itself, where known.

    Returns:
        True where no bit differs, or |d| is within the floor, or everything replaced leaves as much.
    """
    if one.mismatched == 0 or within(one, floor):
        return True
    if everything is None or everything.mismatched == 0 or within(everything, floor):
        return False
    return one.mean_square <= _SLACK * everything.mean_square


def within(one: Pass, floor: Mapping[str, Any] | None) -> bool:
    """Whether |d| of a pass is at most the floor's, in mean and maximum; False without a floor."""
    limits = [(floor or {}).get(key) for key in ("mean_abs", "max_abs")]
    values = (one.mean_abs, one.max_abs)
    return all(isinstance(limit, (int, float)) and value <= limit for limit, value in zip(limits, values, strict=True))


def smallest(
    operators: Sequence[str], seen: Mapping[Subset, Pass], floor: Mapping[str, Any] | None = None
) -> Subset | None:
    """The smallest measured set of operators that is `enough`; None where not even all of them were measured."""
    everything = seen.get(frozenset(operators))
    if everything is None:
        return None
    found = [s for s, one in seen.items() if enough(one, everything, floor)]
    order = {op: number for number, op in enumerate(operators)}
    return min(found, key=lambda s: (len(s), sorted(order[op] for op in s)), default=None)


def split(
    operators: Sequence[str],
    seen: Mapping[Subset, Pass],
    floor: Mapping[str, Any] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Share]:
    """Shares of the operators, the largest first, and what is unexplained last.

    Args:
        operators: every operator that the models have.
        seen: passes by the set of operators that were replaced; the empty set must be among them.
        floor: as `enough` takes it.
        resamples: draws of whole samples with replacement.
        seed: of the draws.

    Returns:
        Shares that sum to one exactly; empty where nothing differs (v(none) = 0). Without a pass with all operators
        everything not taken away is `NOT_MEASURED` or unexplained, and all shares are bounds.

    Raises:
        KeyError: no pass without replaced operators.
    """
    import numpy as np

    stock = seen[frozenset()]
    if stock.mean_square == 0:
        return []
    names = list(operators)
    players = sorted(smallest(names, seen, floor) or (), key=names.index)
    quiet = _quiet(names, seen, floor)
    keys = list(seen)
    squares = np.stack([seen[key].squares for key in keys])
    point = _values(keys, squares.sum(axis=1) / stock.tokens.sum())
    best = _Estimate.of(names, players, quiet, point)
    count = len(stock.tokens)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)
    trials = []
    for draw in draws:
        weight = float(draw @ stock.tokens)
        values = _values(keys, squares @ draw / weight)
        if values[frozenset()] > 0:
            trials.append(_Estimate.of(names, players, quiet, values))
    return _shares(names, best, trials)


def _quiet(names: Sequence[str], seen: Mapping[Subset, Pass], floor: Mapping[str, Any] | None) -> Subset:
    """Operators that were left stock together while all others were replaced, and nothing came back."""
    full = frozenset(names)
    everything = seen.get(full)
    if everything is None:
        return frozenset()
    groups = [full - s for s, one in seen.items() if enough(one, everything, floor)]
    return frozenset().union(*groups)


def _values(keys: Sequence[Subset], means: Any) -> dict[Subset, float]:
    return {key: float(mean) for key, mean in zip(keys, means, strict=True)}


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Parts of one set of values; `rest` has what no operator takes away alone, or what was not measured."""

    parts: dict[str, float]
    rest: tuple[str, float] | None
    unexplained: float
    first_in: dict[str, float]
    last_out: dict[str, float]
    how: dict[str, str]

    @property
    def rows(self) -> dict[str, float]:
        """Everything that the whole is made of."""
        more = {} if self.rest is None else {self.rest[0]: self.rest[1]}
        return {**self.parts, **more, UNEXPLAINED: self.unexplained}

    @classmethod
    def of(
        cls, names: Sequence[str], players: Sequence[str], quiet: Subset, values: Mapping[Subset, float]
    ) -> _Estimate:
        none, full = frozenset[str](), frozenset(names)
        whole = values[none]
        left = values.get(full)
        unexplained = min(1.0, (0.0 if left is None else left) / whole)
        first_in = {op: 1 - values[one] / whole for op in names if (one := frozenset([op])) in values}
        last_out = {}
        if left is not None:
            last_out = {op: (values[s] - left) / whole for op in names if (s := full - {op}) in values}
            last_out |= {op: 0.0 for op in quiet if op not in last_out}
        exact = _orders(players, values) if players else {}
        parts: dict[str, float] = {}
        how: dict[str, str] = {}
        for op in names:
            if op in exact:
                parts[op], how[op] = exact[op] / whole, "all orders"
            elif op in quiet and left is not None:
                parts[op], how[op] = max(0.0, last_out[op]), "last out"
            else:
                known = [side[op] for side in (first_in, last_out) if op in side]
                if known:
                    parts[op] = sum(known) / len(known)
                    how[op] = (
                        "first in and last out" if len(known) == 2 else "last out" if op in last_out else "first in"
                    )
        parts = {op: max(0.0, part) for op, part in parts.items()}
        return cls(*_fitted(names, parts, 1 - unexplained), unexplained, first_in, last_out, how)


def _fitted(
    names: Sequence[str], parts: dict[str, float], room: float
) -> tuple[dict[str, float], tuple[str, float] | None]:
    """Parts that sum to `room`; where some operators were not measured, these have what the others leave."""
    total = sum(parts.values())
    if len(parts) < len(names):
        scale = min(1.0, room / total) if total else 1.0
        return {op: part * scale for op, part in parts.items()}, (NOT_MEASURED, max(0.0, room - total))
    if total == 0:
        return parts, (TOGETHER, room)
    return {op: part * room / total for op, part in parts.items()}, None


def _orders(players: Sequence[str], values: Mapping[Subset, float]) -> dict[str, float]:
    """Shapley's value of each player in v(none) - v(players); empty where a combination is missing."""
    count = len(players)
    if count > MOST_PLAYERS and 2**count > len(values):
        return {}
    subsets = [frozenset(c) for size in range(count + 1) for c in itertools.combinations(players, size)]
    if any(s not in values for s in subsets):
        return {}
    found = dict.fromkeys(players, 0.0)
    for s in subsets:
        for op in players:
            if op not in s:
                weight = math.factorial(len(s)) * math.factorial(count - len(s) - 1) / math.factorial(count)
                found[op] += weight * (values[s] - values[s | {op}])
    return found


def _shares(names: Sequence[str], best: _Estimate, trials: list[_Estimate]) -> list[Share]:
    exact = dict(zip(best.rows, _whole_units(list(best.rows.values())), strict=True))
    shares = []
    for component, share in exact.items():
        ends = [share, *_interval([trial.rows.get(component, 0.0) for trial in trials])]
        ends += [side[component] for side in (best.first_in, best.last_out) if component in side]
        how = "what all of them leave" if component == UNEXPLAINED else best.how.get(component, "bound")
        if how in ("last out", "bound") and share:
            ends.append(0.0)
        if how in ("first in", "bound"):
            ends.append(1 - best.unexplained)
        low, high = (min(1.0, max(0.0, end)) for end in (min(ends), max(ends)))
        confidence = _stable(component, best, trials)
        marginals = best.first_in.get(component), best.last_out.get(component)
        shares.append(Share(component, share, low, high, *marginals, confidence, how))
    order = {name: number for number, name in enumerate(names)}
    shares.sort(key=lambda s: (s.component == UNEXPLAINED, -s.share, order.get(s.component, len(order))))
    return shares


def _whole_units(parts: Sequence[float]) -> list[float]:
    """The parts of one as multiples of 1 / UNIT that sum to one; the largest remainders are rounded up."""
    total = sum(parts)
    exact = [part / total * UNIT for part in parts]
    units = [math.floor(value) for value in exact]
    for index in sorted(range(len(parts)), key=lambda i: units[i] - exact[i])[: UNIT - sum(units)]:
        units[index] += 1
    return [unit / UNIT for unit in units]


def _interval(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[round(q * last)] for q in (_LOW, _HIGH)]


def _stable(component: str, best: _Estimate, trials: list[_Estimate]) -> float:
    """Part of the trials in which as many others are larger."""
    if not trials:
        return 0.0
    place = _place(component, best)
    return sum(_place(component, trial) == place for trial in trials) / len(trials)


def _place(component: str, estimate: _Estimate) -> int:
    own = estimate.rows.get(component, 0.0)
    return sum(value > own + 1e-9 for value in estimate.rows.values())
