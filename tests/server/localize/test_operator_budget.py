"""Shares of planted differences: additive, hidden behind each other, redundant, left over, and cut short."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff.localize.budget import NOT_MEASURED, TOGETHER, UNEXPLAINED, Pass, Share, Subset, enough, smallest, split
from logdiff.localize.budget_plan import next_design

OPERATORS = ("linear", "linear_row", "rms_norm", "add_rms_norm", "rope", "swiglu", "attention", "embedding", "logprob")
SAMPLES, TOKENS = 6, 20.0


def passed(value: float, spread: float = 0.0, seed: int = 0) -> Pass:
    """A pass of mean d squared `value`; samples vary by `spread` around it, their mean does not."""
    noise = np.random.default_rng(seed).normal(size=SAMPLES)
    noise = 1 + spread * (noise - noise.mean())
    root = math.sqrt(value)
    return Pass(value * TOKENS * noise, np.full(SAMPLES, TOKENS), int(value > 0), root, 3 * root, {"rollout": 1.0})


def measured(value: Callable[[Subset], float], most: int = 100) -> tuple[dict[Subset, Pass], list[str]]:
    """Passes that the plan asks for, until it has no more question or `most` are made."""
    seen: dict[Subset, Pass] = {}
    kinds = []
    while len(seen) < most and (design := next_design(OPERATORS, seen)) is not None:
        kind, subset = design
        assert subset not in seen
        seen[subset] = passed(value(subset))
        kinds.append(kind)
    return seen, kinds


def additive(sources: Mapping[str, float], left: float = 0.0) -> Callable[[Subset], float]:
    return lambda s: left + sum(variance for op, variance in sources.items() if op not in s)


def by_name(shares: list[Share]) -> dict[str, Share]:
    return {share.component: share for share in shares}


def total(shares: list[Share]) -> float:
    """Summed in the given order and in reverse, which must not matter."""
    assert sum(s.share for s in shares) == sum(s.share for s in reversed(shares))
    return sum(s.share for s in shares)


variances = st.dictionaries(st.sampled_from(OPERATORS), st.floats(1e-6, 1.0), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(variances, st.floats(0, 1))
def test_independent_sources_get_their_variance_and_the_rest_is_unexplained(
    sources: dict[str, float], left: float
) -> None:
    seen, _ = measured(additive(sources, left))
    shares = split(OPERATORS, seen, resamples=5)
    whole = sum(sources.values()) + left
    assert total(shares) == 1.0
    found = by_name(shares)
    visible = {op: v for op, v in sources.items() if left == 0 or v > 0.1 * left}
    lost = sum(sources.values()) - sum(visible.values())  # too small against what is left to be told from nothing
    for op in OPERATORS:
        assert found[op].share == pytest.approx(
            sources.get(op, 0.0) / whole, abs=2e-6 + 2 * lost / whole + 0.1 * left / whole
        )
    assert found[UNEXPLAINED].share == pytest.approx(left / whole, abs=2e-6)
    assert shares[-1].component == UNEXPLAINED


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.frozensets(st.sampled_from(OPERATORS)), st.floats(0, 2), max_size=40), st.floats(1e-6, 2))
def test_shares_of_any_numbers_sum_to_one_and_lie_in_their_intervals(values: dict[Subset, float], stock: float) -> None:
    seen = {subset: passed(value, 0.3, number) for number, (subset, value) in enumerate(values.items())}
    seen[frozenset()] = passed(stock)
    shares = split(OPERATORS, seen, resamples=20)
    assert total(shares) == 1.0
    for share in shares:
        assert 0 <= share.low <= share.share + 1e-6
        assert share.share <= share.high + 1e-6 <= 1 + 2e-6
        assert 0 <= share.confidence <= 1
    assert {s.component for s in shares} - {UNEXPLAINED, TOGETHER, NOT_MEASURED} <= set(OPERATORS)


def test_shares_of_saturated_differences_are_the_mean_over_all_orders() -> None:
    """Any one stock operator of three brings most back: the value by a brute-force walk over the six orders."""
    back = {"attention": 0.40, "rope": 0.46, "add_rms_norm": 0.54}

    def value(s: Subset) -> float:
        rest = [v for op, v in back.items() if op not in s]
        return 0.0 if not rest else 1 - math.prod(1 - v for v in rest)

    seen, kinds = measured(value)
    orders = list(itertools.permutations(back))
    expected = dict.fromkeys(back, 0.0)
    for order in orders:
        for place, op in enumerate(order):
            before = frozenset(order[:place])
            expected[op] += (value(before) - value(before | {op})) / len(orders) / value(frozenset())
    found = by_name(split(OPERATORS, seen))
    for op, share in expected.items():
        assert found[op].share == pytest.approx(share, abs=2e-6)
        assert found[op].how == "all orders"
        assert found[op].last_out == pytest.approx(back[op] / value(frozenset()))
        assert found[op].interaction is not None
        assert found[op].interaction > 0.2
        assert found[op].low == pytest.approx(found[op].first_in)
        assert found[op].high == pytest.approx(found[op].last_out)
    assert found["linear"].share == found["swiglu"].share == 0
    assert smallest(OPERATORS, seen) == frozenset(back)
    # none, all, the six others stock together, one of three stock, one of three replaced, two of three replaced
    assert len(kinds) == 1 + 1 + 1 + 3 + 3 + 3


def test_either_of_two_replacements_is_enough_and_one_of_them_is_found() -> None:
    """Two operators that cancel only when both are stock: leaving out either one alone shows nothing."""
    seen, _ = measured(lambda s: 0.0 if {"linear", "swiglu"} & s else 1.0)
    chosen = smallest(OPERATORS, seen)
    assert chosen is not None
    assert len(chosen) == 1
    assert chosen <= {"linear", "swiglu"}
    shares = split(OPERATORS, seen)
    assert total(shares) == 1.0
    assert by_name(shares)[next(iter(chosen))].share == 1.0


def test_what_only_three_together_take_away_is_no_ones_share() -> None:
    seen = {frozenset[str](): passed(1.0), frozenset(OPERATORS): passed(0.0)}
    seen |= {frozenset([op]): passed(1.0) for op in OPERATORS}
    seen |= {frozenset(OPERATORS) - {op}: passed(0.0) for op in OPERATORS}
    seen |= {frozenset(OPERATORS) - {"rope", "linear"}: passed(0.0)}
    shares = split(OPERATORS, seen)
    assert total(shares) == 1.0
    assert all(share.share == 0 for share in shares if share.component in OPERATORS if share.how != "all orders")


@pytest.mark.parametrize("most", range(1, 12))
def test_a_budget_that_is_cut_short_has_bounds_that_hold(most: int) -> None:
    sources = {"attention": 0.5, "rope": 0.2, "linear": 0.3}
    whole = sum(sources.values())
    seen, _ = measured(additive(sources), most)
    shares = split(OPERATORS, seen)
    assert total(shares) == 1.0
    found = by_name(shares)
    for op, variance in sources.items():
        if op in found:
            assert found[op].low - 1e-6 <= variance / whole <= found[op].high + 1e-6, (op, found[op])
    if NOT_MEASURED in found:
        assert found[NOT_MEASURED].low == 0
        hidden = sum(v for op, v in sources.items() if op not in found) / whole
        assert found[NOT_MEASURED].share == pytest.approx(hidden, abs=1e-5)


def test_nothing_to_explain_is_no_budget() -> None:
    seen, kinds = measured(lambda _: 0.0)
    assert kinds == ["none"]
    assert split(OPERATORS, seen) == []


def test_replacing_that_makes_it_worse_leaves_everything_unexplained() -> None:
    seen, _ = measured(lambda s: 1.0 + 0.2 * len(s))
    found = by_name(split(OPERATORS, seen))
    assert found[UNEXPLAINED].share == 1.0
    assert all(share.share == 0 for name, share in found.items() if name != UNEXPLAINED)


def test_the_confidence_tells_a_clear_order_from_a_doubtful_one() -> None:
    def seen(one: float, other: float) -> dict[Subset, Pass]:
        value = additive({"rope": one, "attention": other})
        found, _ = measured(value)
        return {s: passed(p.mean_square, 0.5, number) for number, (s, p) in enumerate(found.items())}

    clear, doubtful = by_name(split(OPERATORS, seen(0.9, 0.1))), by_name(split(OPERATORS, seen(0.5, 0.49)))
    assert clear["rope"].confidence > 0.95
    assert doubtful["rope"].confidence < 0.9
    assert clear["rope"].low < clear["rope"].share < clear["rope"].high


def test_within_the_floor_is_enough_and_more_is_not() -> None:
    floor = {"mean_abs": 0.1, "max_abs": 0.34}
    assert enough(passed(0.0), None)
    assert enough(passed(0.1**2), None, floor)
    assert not enough(passed(0.11**2), None, floor)
    assert not enough(passed(0.1**2), passed(0.0))
    assert enough(passed(1.05), passed(1.0))  # all of them leave as much
    assert not enough(passed(1.2), passed(1.0))
    assert not enough(passed(0.105**2), passed(0.1**2), floor)  # all of them reach the floor, these do not


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(OPERATORS), min_size=1))
def test_the_plan_finds_exactly_the_operators_that_matter(needed: set[str]) -> None:
    """Each needed operator left stock brings something back; the others never do."""
    seen, kinds = measured(lambda s: len(needed - s) / len(needed))
    assert smallest(OPERATORS, seen) == frozenset(needed)
    assert kinds[:2] == ["none", "all"]
    bound = 2 + 4 + 2 * 7 + 1 + len(needed) + (2 ** len(needed) if len(needed) <= 4 else 0)
    assert len(kinds) <= bound
