from __future__ import annotations

import math

import numpy as np
import pytest
from logdiff.report.profile import POSITION_BINS, PositionGrid, profile
from report_cases import Sample, batch_of


def _samples(rng: np.random.Generator, count: int, length: int) -> list[Sample]:
    made = []
    for i in range(count):
        a = (-rng.gamma(0.5, 2.0, length)).astype(np.float32)
        b = (a + rng.normal(0, 0.05, length)).astype(np.float32)
        b[rng.random(length) < 0.2] = 0
        equal = rng.random(length) < 0.3
        b[equal] = a[equal]
        left, right = a.tolist(), b.tolist()
        right[0] = None
        mask = (rng.random(length) < 0.9).astype(int).tolist()
        made.append(Sample(rng.integers(0, 99, length).tolist(), {"rollout": left, "train": right}, mask, step=i % 3))
    return made


def _differences(samples: list[Sample]) -> list[float]:
    """d of every token that counts, in plain Python."""
    found = []
    for s in samples:
        for a, b, m in zip(s.logprobs["rollout"], s.logprobs["train"], s.mask or [], strict=True):
            if m and a is not None and b is not None:
                found.append(b - a)
    return found


def test_counts_and_moments_agree_with_a_loop_over_the_tokens() -> None:
    samples = _samples(np.random.default_rng(1), 20, 50)
    d = _differences(samples)
    found = profile([batch_of(samples[:7]), batch_of(samples[7:])])
    pair = found.pairs["decode_train"]
    assert found.main == "decode_train"
    assert (pair.tokens, pair.finite, pair.missing) == (len(d), len(d), sum((s.mask or [])[0] for s in samples))
    assert pair.differing == pair.finite - pair.zero == sum(x != 0 for x in d)
    assert pair.max_abs == max(abs(x) for x in d)
    assert pair.sum_abs == pytest.approx(math.fsum(abs(x) for x in d), rel=1e-12)
    assert pair.sum_exp == pytest.approx(math.fsum(math.exp(x) for x in d), rel=1e-12)
    assert pair.sum_k3 == pytest.approx(math.fsum(math.exp(x) - 1 - x for x in d), rel=1e-9)
    assert int(pair.below.sum()) == sum(x < 0 for x in d)
    assert int(pair.above.sum()) == sum(x > 0 for x in d)
    assert int(pair.probability.sum()) == int(pair.logprobs.sum()) == len(d)
    assert {step: g.tokens for step, g in found.steps.items()} == {
        step: len(_differences([s for s in samples if s.step == step])) for step in range(3)
    }


def test_quantiles_lie_within_a_bin_of_the_sorted_values() -> None:
    samples = _samples(np.random.default_rng(2), 40, 100)
    size = sorted(abs(x) for x in _differences(samples))
    pair = profile([batch_of(samples)]).pairs["decode_train"]
    for share in (0.1, 0.5, 0.9, 0.99, 0.999):
        exact = size[math.ceil(share * len(size)) - 1]
        assert pair.quantile(share) == pytest.approx(exact, rel=0.025)
    assert pair.quantile(0.1) == 0.0  # a quarter of the tokens is exactly equal


def test_survival_is_the_share_of_tokens_at_least_that_far_apart() -> None:
    samples = _samples(np.random.default_rng(3), 10, 80)
    size = np.abs(_differences(samples))
    value, share = profile([batch_of(samples)]).pairs["decode_train"].survival()
    assert share[0] == pytest.approx(np.count_nonzero(size) / len(size))
    assert value[-1] == size.max()
    assert share[-1] == pytest.approx(1 / len(size))
    for at, expected in zip(value[:-1], share[:-1], strict=True):
        # Rounding may put a value that lies on an edge to either side of it.
        assert np.mean(size >= at * (1 + 1e-9)) - 1e-12 <= expected <= np.mean(size >= at * (1 - 1e-9)) + 1e-12


def test_position_bands_are_quantiles_of_each_bin_however_long_the_response() -> None:
    rng = np.random.default_rng(4)
    position = np.arange(5000)
    size = np.abs(rng.normal(0, 0.1, 5000)) * (position > 1000)
    grid = PositionGrid()
    for part in np.array_split(np.arange(5000), 7):  # the width has to grow on the way
        grid.add(position[part].astype(np.int64), size[part])
    assert grid.width == 128  # the smallest power of two with 64 bins of it over 5000 positions
    median, largest = grid.quantile(0.5), grid.largest
    for index in range(POSITION_BINS):
        inside = np.sort(size[position // 128 == index])
        if not len(inside):
            assert np.isnan(median[index])
            continue
        assert largest[index] == inside[-1]
        assert median[index] == pytest.approx(inside[math.ceil(len(inside) / 2) - 1], rel=0.025)


def test_values_that_are_not_finite_are_counted_and_drawn_nowhere() -> None:
    nan, inf = math.nan, math.inf
    sample = Sample([1, 2, 3, 4], {"rollout": [-1.0, nan, -1.0, -inf], "train": [-1.5, -1.0, inf, -inf]})
    pair = profile([batch_of([sample])]).pairs["decode_train"]
    assert (pair.tokens, pair.nonfinite, pair.finite) == (4, 3, 1)
    assert pair.sum_abs == 0.5
    assert int(pair.logprobs.sum()) == 1


def test_equal_values_with_other_bits_count_as_different() -> None:
    pair = profile([batch_of([Sample([1, 2], {"rollout": [0.0, -1.0], "train": [-0.0, -1.0]})])]).pairs["decode_train"]
    assert (pair.differing, pair.zero) == (1, 2)


def test_the_main_pair_is_the_first_with_a_token_and_its_groups_alone_are_kept() -> None:
    only_rescore = Sample([1], {"rollout": [-1.0], "rescore": [-2.0]}, step=5)
    with_train = Sample([1, 2], {"rollout": [-1.0, -1.0], "train": [-1.25, -1.0]}, step=6)
    found = profile([batch_of([only_rescore]), batch_of([with_train])])
    assert found.main == "decode_train"
    assert list(found.steps) == [6]
    assert [(w.step, w.d) for w in found.worst] == [(6, -0.25), (6, 0.0)]
    assert profile([batch_of([only_rescore])]).main == "decode_rescore"


def test_an_empty_stream_has_no_main_pair() -> None:
    found = profile([])
    assert found.main is None
    assert found.worst == found.strips == []


def test_the_result_does_not_depend_on_how_samples_are_cut_into_batches() -> None:
    samples = _samples(np.random.default_rng(5), 12, 30)
    whole = profile([batch_of(samples)])
    parts = profile([batch_of([s]) for s in samples])
    for name, pair in whole.pairs.items():
        other = parts.pairs[name]
        assert (pair.tokens, pair.differing, pair.max_abs) == (other.tokens, other.differing, other.max_abs)
        assert np.array_equal(pair.magnitudes, other.magnitudes)
    assert [(w.d, w.position, w.token_id) for w in whole.worst] == [(w.d, w.position, w.token_id) for w in parts.worst]
