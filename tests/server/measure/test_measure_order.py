"""Order statistics: exact in memory and from the temporary file alike."""

from __future__ import annotations

import math

import logdiff.measure.order as order
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff.errors import InputError
from logdiff.measure.order import OrderStatistics

PERCENTS = (0, 1, 50, 90, 99, 99.9, 100)


def fed(values: np.ndarray, cuts: list[int], in_memory: int) -> OrderStatistics:
    found = OrderStatistics(in_memory)
    for part in np.split(values, sorted(cuts)):
        found.add(part)
    return found


@pytest.fixture(autouse=True)
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_CHUNK", 97)
    monkeypatch.setattr(order, "_GATHER", 50)


@pytest.mark.parametrize("in_memory", [10**9, 100, 0])
@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).exponential(1, 3000),
        np.abs(np.random.default_rng(1).normal(0, 1e-6, 1001)),
        np.zeros(500),
        np.full(400, 0.125),
        np.concatenate([np.zeros(990), np.random.default_rng(2).exponential(1, 10)]),
        np.concatenate([np.repeat(np.random.default_rng(3).random(5), 300), [5e-324, 1e300, 0.0]]),
        0.5 + np.random.default_rng(4).integers(0, 2**40, 2000) * 2.0**-52,  # equal in the upper bits
        np.array([0.25]),
        np.array([0.25, 0.75]),
    ],
    ids=["exponential", "tiny", "zeros", "constant", "mostly zero", "ties", "close", "one", "two"],
)
def test_percentiles_have_the_bits_of_numpy(values: np.ndarray, in_memory: int) -> None:
    found = fed(values, [1, len(values) // 3], in_memory)
    assert found.percentiles(PERCENTS) == np.percentile(values, PERCENTS).tolist()
    assert found.count == len(values)
    found.close()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 1e308), min_size=1, max_size=60),
    st.integers(1, 60),
    st.sampled_from([0, 10, 10**9]),
)
def test_the_tail_sum_is_that_of_the_sorted_values(values: list[float], largest: int, in_memory: int) -> None:
    found = fed(np.array(values), [len(values) // 2], in_memory)
    ordered = sorted(values, reverse=True)[:largest]
    # scaled, since the plain sum of the largest doubles overflows
    expected = math.fsum(v * 2.0**-8 for v in ordered) * 2.0**8
    if math.isfinite(expected):
        assert found.tail_sum(largest) == pytest.approx(expected, rel=1e-12)
    found.close()


def test_values_may_come_after_a_first_answer() -> None:
    found = fed(np.array([3.0, 1.0, 2.0]), [], 2)
    assert found.percentiles((50,)) == [2.0]
    found.add(np.array([9.0, 8.0]))
    assert found.percentiles((50, 100)) == [3.0, 9.0]
    found.close()


def test_without_values_nothing_is_defined() -> None:
    assert all(math.isnan(v) for v in OrderStatistics().percentiles((50, 99)))
    assert OrderStatistics().tail_sum(3) == 0.0


def test_a_full_disk_is_named_with_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(order.tempfile, "TemporaryFile", full)
    with pytest.raises(InputError, match="No space left") as caught:
        fed(np.ones(10), [], 1)
    assert "TMPDIR" in caught.value.hint
