"""R64, T(L), the leaves of linear_row and the exponential, each against a second way to get the same value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from logdiff_kernels.contract import linear, reductions
from logdiff_kernels.contract.exp import OVERFLOW, UNDERFLOW, exp1, sigmoid1, tanh1
from logdiff_kernels.errors import UnsupportedError


def _r64_by_elements(values: list[np.float32]) -> np.float32:
    lanes: list[np.float32] = [np.float32(0)] * 64
    for i, value in enumerate(values + [np.float32(0)] * (-len(values) % 64)):
        lanes[i % 64] = value if i < 64 else np.float32(lanes[i % 64] + value)
    while len(lanes) > 8:
        half = len(lanes) // 2
        lanes = [np.float32(lanes[i] + lanes[i + half]) for i in range(half)]
    while len(lanes) > 1:
        lanes = [np.float32(lanes[i] + lanes[i + 1]) for i in range(0, len(lanes), 2)]
    return lanes[0]


@pytest.mark.parametrize("n", [0, 1, 7, 63, 64, 65, 128, 129, 512, 1000])
def test_r64_adds_in_the_contracts_order(n: int) -> None:
    x = (np.random.default_rng(n).standard_normal(n) * 100).astype(np.float32)
    expected = _r64_by_elements(list(x)) if n else np.float32(0)
    assert reductions.r64(x).tobytes() == expected.tobytes()


def test_r64_of_negative_zeros_is_positive_zero_once_padding_is_added() -> None:
    full = np.full(64, -0.0, np.float32)
    assert math.copysign(1, reductions.r64(full)) == -1  # the first chunk is copied, not added to zero
    assert math.copysign(1, reductions.r64(full[:63])) == 1


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_tree_over_ranks_is_the_tree_over_leaves(ranks: int) -> None:
    parts = np.random.default_rng(ranks).standard_normal((8, 50)).astype(np.float32)
    per_rank = [reductions.tree(block) for block in np.split(parts, ranks)]
    assert reductions.tree(per_rank).tobytes() == reductions.tree(parts).tobytes()


def test_tree_refuses_other_lengths() -> None:
    for length in (0, 3, 6):
        with pytest.raises(ValueError, match="power of two"):
            reductions.tree(np.zeros((length, 2), np.float32))


@pytest.mark.parametrize(
    ("k", "leaves"),
    [(128, 8), (256, 8), (64, 4), (32, 2), (96, 2), (16, 1), (48, 1), (15, 1), (576, 4), (1536, 8), (4096, 8)],
)
def test_row_leaves_are_whole_sixteens(k: int, leaves: int) -> None:
    assert linear.row_leaves(k) == leaves
    ranges = linear.leaf_ranges(k)
    assert [b for b, _ in ranges] == [0, *[e for _, e in ranges[:-1]]]
    assert ranges[-1][1] == k


def test_ranks_that_do_not_divide_the_leaves_are_refused() -> None:
    assert linear.rank_leaves(576, 2) == 2
    with pytest.raises(UnsupportedError, match="4 leaves"):
        linear.rank_leaves(576, 8)


def test_a_tensor_parallel_plan_decides_before_the_name_does() -> None:
    plan = {"layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.w9": "rowwise_rep", "layers.*.mlp.c_proj": "colwise"}
    assert linear.is_row_parallel("model.layers.12.self_attn.o_proj", plan)
    assert linear.is_row_parallel("model.layers.0.mlp.w9", plan)
    assert not linear.is_row_parallel("model.layers.0.mlp.c_proj", plan)
    assert linear.is_row_parallel("transformer.h.0.mlp.c_proj")
    assert not linear.is_row_parallel("model.layers.0.mlp.gate_proj")
    assert not linear.is_row_parallel("model.layers.x.self_attn.w9", plan)


def test_exponential_and_its_kin_stay_near_the_true_functions() -> None:
    x = np.linspace(-87, 88, 20_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.all(np.abs(exp1(x) - exact) <= np.spacing(exact.astype(np.float32)))
    small = x / 8
    assert np.allclose(sigmoid1(small), 1 / (1 + np.exp(-small.astype(np.float64))), rtol=4e-7, atol=0)
    assert np.allclose(tanh1(small), np.tanh(small.astype(np.float64)), rtol=2e-6, atol=1e-7)


def test_exponential_at_its_edges() -> None:
    edge = np.array(
        [OVERFLOW, np.nextafter(OVERFLOW, np.float32(np.inf)), UNDERFLOW, -88, 0.0, -0.0, np.nan], np.float32
    )
    got = exp1(edge)
    assert np.isfinite(got[0])
    assert got[1] == np.inf
    assert got[2] > 0
    assert got[3] == 0
    assert list(got[4:6]) == [1, 1]
    assert np.isnan(got[6])
