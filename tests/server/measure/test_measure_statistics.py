"""Every number of a pair block against a token-by-token reference."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import measure_reference as reference
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logdiff.case.batch import PairBatch, PairMeta
from logdiff.measure import measure
from logdiff.measure.floor import self_stats
from measure_evidence import Sample, batch_of, batches_of, measured, noisy

# cancellation in E[x^2] - E[x]^2 costs digits that the token-by-token reference keeps
LOOSE = {"mean_se", "mean_exp_d_se", "mean_se_by_sample", "std", "rollout_probs_diff_std", "log_ppl_diff", "ess"}
CORRELATIONS = {"pearson", "pearson_logprob", "corr_abs_neg_logprob", "corr_neg_logprob"}


def agree(name: str, ours: float, expected: float, scale: float = 1.0) -> None:
    if math.isnan(expected):
        assert math.isnan(ours), name
    elif math.isinf(expected) or isinstance(expected, int):
        assert ours == expected, name
    else:
        rel = 1e-7 if name in LOOSE | CORRELATIONS else 1e-11
        absolute = 1e-9 if name in CORRELATIONS else 1e-14 * scale
        assert ours == pytest.approx(expected, rel=rel, abs=absolute), name


def check(samples: list[Sample], ours: dict[str, Any], first: str = "rollout", second: str = "train") -> None:
    expected = reference.statistics(samples, first, second)
    largest = max(abs(v) for rows in reference.compared(samples, first, second) for row in rows for v in row[1:])
    for name, value in expected.items():
        agree(name, ours[name], value, scale=max(1.0, largest))


def mixed(seed: int) -> list[Sample]:
    """Samples with outliers, negative zero, subnormals, nulls, masks, one-token and empty samples."""
    rng = np.random.default_rng(seed)
    samples = noisy(rng, rng.integers(1, 90, 40).tolist(), noise=float(rng.choice([1e-7, 1e-3, 0.1, 2.0])))
    for sample in samples:
        size = len(sample.ids)
        assert sample.rollout is not None
        assert sample.train is not None
        for values in (sample.rollout, sample.train):
            assert isinstance(values, list)
            for i in rng.integers(0, size, 3):
                values[i] = float(rng.choice([-0.0, 0.0, -1e-42, -3e-39, -17.25, -40.0, -1e-7]))
            if rng.random() < 0.3:
                values[int(rng.integers(0, size))] = None
        if rng.random() < 0.4:
            sample.mask = rng.integers(0, 2, size).tolist()
        if rng.random() < 0.3:
            sample.train = list(sample.rollout)
        if rng.random() < 0.5:
            sample.rescore = [None if v is None else float(np.float32(v * 1.01)) for v in sample.rollout]
    samples.insert(3, Sample([], [], response=[]))
    samples.append(Sample([-1.0], [-1.5], mask=[0]))
    return samples


@pytest.mark.parametrize("seed", range(12))
def test_every_number_equals_the_reference(seed: int) -> None:
    samples = mixed(seed)
    result = measured(samples, cuts=[5, 17])
    check(samples, result.measure)


@pytest.mark.parametrize(
    ("pair", "first", "second"), [("decode_rescore", "rollout", "rescore"), ("rescore_train", "rescore", "train")]
)
def test_the_other_sides_of_the_triangle_are_second_minus_first(pair: str, first: str, second: str) -> None:
    samples = mixed(3)
    ours = measured(samples).pairs[pair]
    assert ours is not None
    check(samples, ours, first, second)


def test_the_block_of_a_hand_made_case() -> None:
    # d = 0.5, -0.25, 0 (bits differ in the last: -0.0 against 0.0)
    result = measured([Sample([-1.0, -2.0, 0.0], [-0.5, -2.25, -0.0])]).measure
    assert result["tokens"] == 3
    assert result["mismatched_tokens"] == 3
    assert result["max_abs"] == 0.5
    assert result["mean_abs"] == 0.25
    assert result["mean"] == pytest.approx(0.25 / 3)
    assert result["p50"] == 0.25
    assert result["log_ppl_rollout"] == 1.0
    assert result["log_ppl_train"] == pytest.approx(2.75 / 3)
    assert result["mean_exp_d"] == pytest.approx((math.exp(0.5) + math.exp(-0.25) + 1) / 3)
    assert result["clip_share"] == pytest.approx(2 / 3)  # exp(0.5) = 1.65 and exp(-0.25) = 0.78
    assert result["max_abs_at"]["position"] == 0
    assert result["max_abs_at"]["sample_id"] == "s0"


@pytest.mark.parametrize("cuts", [[1], list(range(42)), [13, 14, 30], [41]])
def test_the_result_has_the_same_bits_however_batches_are_cut(cuts: list[int]) -> None:
    samples = mixed(7)
    assert measured(samples, cuts).as_dict() == measured(samples).as_dict()


def test_windows_inside_a_batch_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = mixed(11)
    whole = measured(samples).as_dict()
    monkeypatch.setattr("logdiff.measure.window._TOKENS", 64)
    assert measured(samples).as_dict() == whole


def test_blocks_of_samples_are_summed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdiff.measure.moments._BLOCK", 8)
    samples = mixed(5)
    result = measured(samples, cuts=[3, 20])
    check(samples, result.measure)
    assert result.as_dict() == measured(samples).as_dict()


finite32 = st.floats(min_value=-60, max_value=0, width=32)
values = st.one_of(st.none(), finite32)


@st.composite
def samples_strategy(draw: st.DrawFn) -> list[Sample]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.integers(1, 8))
        column = st.lists(values, min_size=size, max_size=size)
        mask = draw(st.none() | st.lists(st.integers(0, 1), min_size=size, max_size=size))
        found.append(Sample(draw(column), draw(column), mask=mask, response=list(range(5, 5 + size))))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(samples_strategy(), st.lists(st.integers(1, 5), max_size=3))
def test_any_small_evidence_agrees_with_the_reference(samples: list[Sample], cuts: list[int]) -> None:
    result = measured(samples, [c for c in cuts if c < len(samples)])
    tokens = sum(len(rows) for rows in reference.compared(samples, "rollout", "train"))
    wanted = sum(m for s in samples for m in (s.mask if s.mask is not None else [1] * len(s.ids)))
    assert result.measure["tokens"] == tokens
    assert result.measure["missing"] == wanted - tokens
    assert result.comparable == (tokens > 0)
    if tokens:
        expected = reference.statistics(samples)
        for name in ("mismatched_tokens", "max_abs", "p50", "p90", "p99", "p999", "max", "min"):
            assert result.measure[name] == expected[name], name
        for name in ("mean_abs", "mean", "k3_kl", "mean_exp_d", "chi2", "token_mult_prob_error", "log_ppl_train"):
            agree(name, result.measure[name], expected[name], scale=100.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(finite32, min_size=1, max_size=30))
def test_a_side_against_itself_is_exactly_zero(column: list[float]) -> None:
    result = measured([Sample(column, column)]).measure
    assert result["mismatched_tokens"] == 0
    for name in ("max_abs", "mean_abs", "mean", "p999", "k3_kl", "chi2", "rollout_probs_diff_max", "rms"):
        assert result[name] == 0.0, name
    assert result["mean_exp_d"] == 1.0
    assert result["token_mult_prob_error"] == 1.0
    assert result["ess"] == 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(finite32, finite32), min_size=2, max_size=30))
def test_exchanging_the_sides_turns_the_signs(pairs: list[tuple[float, float]]) -> None:
    x, y = [p[0] for p in pairs], [p[1] for p in pairs]
    there, back = measured([Sample(x, y)]).measure, measured([Sample(y, x)]).measure
    for name in ("mean", "k1_kl"):
        assert there[name] == -back[name]
    for name in ("mismatched_tokens", "max_abs", "mean_abs", "p99", "token_mult_prob_error", "rollout_probs_diff_mean"):
        assert there[name] == back[name], name
    assert there["log_ppl_rollout"] == back["log_ppl_train"]


def test_numbers_of_one_token_have_no_error_bar() -> None:
    result = measured([Sample([-1.0], [-1.25])])
    for name in ("mean_se", "mean_exp_d_se", "std", "rollout_probs_diff_std", "pearson"):
        assert math.isnan(result.measure[name]), name
        assert result.as_dict()["measure"][name] == "nan", name
    assert result.measure["mean_abs"] == 0.25


def test_an_overflowing_ratio_is_infinite_not_clamped() -> None:
    result = measured([Sample([-2000.0, -1.0], [-1.0, -1.0])])
    assert result.measure["mean_exp_d"] == math.inf
    assert result.measure["k3_kl"] == math.inf
    assert result.as_dict()["measure"]["mean_exp_d"] == "inf"
    assert result.as_dict()["measure"]["mean_exp_d_se"] == "inf"
    # verl clamps the log ratio to 20 before squaring
    assert result.measure["chi2"] == pytest.approx((math.exp(40.0) + 1) / 2 - 1)
    assert result.measure["mean_abs"] == 999.5


@pytest.mark.parametrize("power", [-24, -20, -12, -10, -9, -3])
def test_small_differences_keep_their_digits_in_k3(power: int) -> None:
    d = 2.0**power  # exact in fp32 beside -0.5
    expected = math.fsum(d**k / math.factorial(k) for k in range(2, 16))
    assert measured([Sample([-0.5], [-0.5 + d])]).measure["k3_kl"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "bf16", "fp16"),
    [
        (1 + 2.0**-7, 1, 1),  # bf16 keeps 7 bits behind the leading one, fp16 10
        (1 + 2.0**-8, 0, 1),
        (1 + 2.0**-10, 0, 1),
        (1 + 2.0**-11, 0, 0),
        (65504.0, 0, 1),  # largest of fp16
        (65536.0, 1, 0),
        (2.0**-14, 1, 1),  # smallest normal of fp16
        (2.0**-15, 1, 0),
    ],
)
def test_the_grids_end_where_the_formats_do(value: float, bf16: int, fp16: int) -> None:
    block = measured([Sample([-value, 0.0], [-0.1, 0.0])]).measure
    assert block["bf16_grid_share"] == {"first": bf16, "second": 0}
    assert block["fp16_grid_share"] == {"first": fp16, "second": 0}


def test_a_constant_difference_has_no_spread() -> None:
    x = [-1.0, -2.0, -3.0, -4.0]
    result = measured([Sample(x, [v - 0.5 for v in x])]).measure
    assert result["std"] == 0.0
    assert result["mean_se"] == 0.0
    assert result["bias_ratio"] == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_the_lag_scan_equals_the_reference(seed: int) -> None:
    samples = mixed(seed + 20)
    scan = measured(samples, cuts=[9]).measure["lag_scan"]
    for lag in range(-3, 4):
        agree("pearson", scan[str(lag)], reference.lag_correlation(samples, lag))


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_zeros_equal_the_reference(seed: int) -> None:
    samples = mixed(seed + 30)
    runs = measured(samples, cuts=[9]).measure["zero_runs"]
    assert (runs["tokens"], runs["runs"], runs["longest"]) == reference.zero_runs(samples)


def test_tables_by_position_step_rank_and_sample_add_up() -> None:
    rng = np.random.default_rng(0)
    samples = [s for step in (0, 1) for rank in (0, 3) for s in noisy(rng, [1, 7, 40, 130], step=step, rank=rank)]
    for i, sample in enumerate(samples):
        sample.sample_id = f"x{i}"
    block = measured(samples, cuts=[3, 10]).measure
    rows = [
        (sample, position, abs(y - x))
        for sample, found in zip(samples, reference.compared(samples, "rollout", "train"), strict=True)
        for position, x, y in found
    ]
    for bucket in block["by_position"]:
        inside = [a for _, position, a in rows if bucket["from"] <= position <= bucket["to"]]
        assert bucket["tokens"] == len(inside)
        assert bucket["mean_abs"] == pytest.approx(reference.mean(inside), rel=1e-12)
        assert bucket["max_abs"] == max(inside)
    assert sum(bucket["tokens"] for bucket in block["by_position"]) == block["tokens"]
    assert [(b["from"], b["to"]) for b in block["by_position"]][:4] == [(0, 0), (1, 1), (2, 3), (4, 7)]
    for name, key in (("by_step", "step"), ("by_rank", "rank")):
        assert list(block[name]) == sorted({str(getattr(s, key)) for s in samples})
        for value, group in block[name].items():
            inside = [a for s, _, a in rows if str(getattr(s, key)) == value]
            assert group["tokens"] == len(inside)
            assert group["mean_abs"] == pytest.approx(reference.mean(inside), rel=1e-12)
    mean = {s.sample_id: reference.mean([a for other, _, a in rows if other is s]) for s in samples}
    worst = sorted(mean, key=lambda name: -mean[name or ""])[:10]
    assert [row["sample_id"] for row in block["by_sample"]] == worst


def test_early_against_late_compares_the_first_and_last_quarter() -> None:
    x = [-1.0] * 12
    d = [0.5, 0.25, 0.375, *[9.0] * 6, 0.125, 0.125, 0.125]
    result = measured([Sample(x, [a - b for a, b in zip(x, d, strict=True)]), Sample([-1.0] * 3, [-7.0] * 3)])
    assert result.measure["early_late_ratio"] == 3.0


def test_entropy_is_correlated_where_it_is_known() -> None:
    rng = np.random.default_rng(1)
    samples = noisy(rng, [30, 30])
    samples[0].entropy = rng.exponential(1, 30).astype(np.float32).tolist()
    block = measured(samples).measure
    rows = reference.compared(samples[:1], "rollout", "train")[0]
    pairs = [(abs(y - x), h) for (_, x, y), h in zip(rows, samples[0].entropy, strict=True)]
    assert block["corr_abs_entropy"] == pytest.approx(reference.pearson(pairs), rel=1e-9)


def test_the_sink_receives_every_batch_once_and_in_order() -> None:
    batches = list(batches_of(mixed(1), [4, 9]))
    stored: list[Any] = []
    measure(PairMeta(), iter(batches), sink=stored.append)
    assert [id(b) for b in stored] == [id(b) for b in batches]


def test_a_side_against_itself_gets_the_same_statistics() -> None:
    samples = noisy(np.random.default_rng(2), [5, 9, 1])
    batch = batch_of(samples)
    ours = self_stats(batch.logprob["rollout"], batch.logprob["train"], batch.offsets)
    check(samples, ours)


def test_memory_does_not_grow_with_the_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdiff.measure.order.IN_MEMORY", 1 << 15)
    rng = np.random.default_rng(0)
    batch = batch_of(noisy(rng, [500] * 40))

    def stream(times: int) -> Iterator[PairBatch]:
        for i in range(times):
            yield replace(batch, sample_id=[f"{i}/{name}" for name in batch.sample_id])

    def peak(times: int) -> int:
        tracemalloc.start()
        try:
            assert measure(PairMeta(), stream(times)).measure["tokens"] == 20_000 * times
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(30), peak(150)
    # 2,400,000 further tokens are 19.2 MB of |d| alone
    assert long - short < 4_000_000
