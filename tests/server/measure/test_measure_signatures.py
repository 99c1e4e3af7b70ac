"""Known faults, injected into healthy evidence, leave the mark that the number is there for.

The distributions are small explicit softmaxes, so that temperature, truncation and shift are applied as an engine
would apply them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure_evidence import Sample, gate, measured

Block = dict[str, Any]

VOCAB = 64


def log_softmax(z: np.ndarray) -> np.ndarray:
    shifted = z - z.max(-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 2.0, (40, 200, VOCAB))


def drawn(logits: np.ndarray, temperature: float = 1.0, keep: float = 1.0) -> np.ndarray:
    """Tokens drawn at a temperature from the smallest set of probability `keep`."""
    rng = np.random.default_rng(1)
    logp = log_softmax(logits / temperature)
    if keep < 1:
        logp = np.where(kept(logp, keep), logp, -np.inf)
    found: np.ndarray = (logp + rng.gumbel(size=logp.shape)).argmax(-1)
    return found


def kept(logp: np.ndarray, keep: float) -> np.ndarray:
    order = np.argsort(-logp, axis=-1)
    p = np.take_along_axis(np.exp(logp), order, -1)
    inside = np.cumsum(p, -1) - p < keep
    found = np.zeros_like(inside)
    np.put_along_axis(found, order, inside, -1)
    return found


def of(logp: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.take_along_axis(logp, tokens[..., None], -1)[..., 0].astype(np.float32)


def block(rollout: np.ndarray, train: np.ndarray, **meta: Any) -> Block:
    samples = [Sample(x.tolist(), y.tolist()) for x, y in zip(rollout, train, strict=True)]
    return measured(samples, **meta).measure


def rounding(values: np.ndarray, scale: float = 0.02) -> np.ndarray:
    noise = np.random.default_rng(2).normal(0, scale, values.shape)
    return np.minimum(values + noise, -1e-6).astype(np.float32)


def test_rounding_noise_has_no_bias_a_light_tail_and_no_trend(logits: np.ndarray) -> None:
    # d as kernels make it: noise on the logits, normalised again
    tokens = drawn(logits)
    noisy = logits + np.random.default_rng(3).normal(0, 0.03, logits.shape)
    found = block(of(log_softmax(logits), tokens), of(log_softmax(noisy), tokens))
    assert found["bias_ratio"] < 0.1
    assert found["top1_share"] < 0.1
    assert found["pearson"] > 0.999
    assert abs(found["mean_exp_d"] - 1) < 4 * found["mean_exp_d_se"]
    assert 0.8 < found["early_late_ratio"] < 1.25


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_a_shift_peaks_at_its_lag(logits: np.ndarray, shift: int) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    found = block(rollout, np.roll(rounding(rollout), shift, axis=1))
    scan = {int(lag): value for lag, value in found["lag_scan"].items()}
    assert max(scan, key=lambda lag: scan[lag]) == shift
    assert scan[shift] > 0.99
    assert abs(scan[0]) < 0.1


def test_values_stored_in_bfloat16_lie_on_its_grid(logits: np.ndarray) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    bits = rollout.view(np.uint32).astype(np.uint64)
    stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    found = block(stored, rollout)
    assert found["bf16_grid_share"]["first"] == 1.0
    assert found["bf16_grid_share"]["second"] < 0.01
    assert found["corr_abs_neg_logprob"] > 0.5


def test_values_stored_in_float16_lie_on_its_grid(logits: np.ndarray) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    found = block(rollout, rollout.astype(np.float16).astype(np.float32))
    assert found["fp16_grid_share"]["second"] > 0.999  # all but subnormals of half precision
    assert found["fp16_grid_share"]["first"] < 0.01
    assert found["bf16_grid_share"]["second"] < 0.5


def test_a_trainer_without_the_temperature_keeps_the_ratio_at_one(logits: np.ndarray) -> None:
    tokens = drawn(logits, temperature=0.7)
    found = block(of(log_softmax(logits / 0.7), tokens), of(log_softmax(logits), tokens))
    assert found["mean"] < 0
    assert abs(found["mean_exp_d"] - 1) < 5 * found["mean_exp_d_se"]
    assert abs(found["corr_neg_logprob"]) > 0.5


def test_raw_values_at_a_temperature_break_the_ratio(logits: np.ndarray) -> None:
    tokens = drawn(logits, temperature=0.7)
    found = block(of(log_softmax(logits), tokens), of(log_softmax(logits / 0.7), tokens))
    assert found["mean"] > 0
    assert found["mean_exp_d"] - 1 > 5 * found["mean_exp_d_se"]


def test_truncation_on_one_side_gives_one_sign_within_its_bound(logits: np.ndarray) -> None:
    tokens = drawn(logits, keep=0.8)
    full = log_softmax(logits)
    survivors = log_softmax(np.where(kept(full, 0.8), logits, -np.inf))
    found = block(of(survivors, tokens), of(full, tokens))
    assert np.log(0.8) - 1e-6 <= found["min"]
    assert found["max"] <= 1e-6
    assert found["bias_ratio"] > 0.999
    mass = np.exp(full).sum(-1, where=kept(full, 0.8)).mean()
    assert found["mean_exp_d"] == pytest.approx(mass, abs=0.01)


def test_routing_flips_hold_the_sum_in_few_tokens(logits: np.ndarray) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    train = rounding(rollout, 1e-3)
    hit = np.random.default_rng(5).random(rollout.shape) < 0.008
    train[hit] -= 1.0
    found = block(rollout, train)
    assert found["top1_share"] > 0.25
    assert found["p50"] < 0.002


def test_a_window_off_by_one_shows_its_onset(logits: np.ndarray) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    train = rollout.copy()
    train[:, 127:] = rounding(rollout[:, 127:])
    runs = block(rollout, train)["zero_runs"]
    assert runs["onsets"][0] == {"position": 127, "samples": 40}
    assert runs["leading_share"] == 1.0
    assert runs["longest"] == 127


def test_a_stale_prefix_shows_in_the_early_tokens(logits: np.ndarray) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    decay = 0.3 * np.exp(-np.arange(200) / 30)
    noise = np.random.default_rng(6).normal(0, 1, rollout.shape) * decay
    found = block(rollout, np.minimum(rollout + noise, -1e-6).astype(np.float32))
    assert found["early_late_ratio"] > 5
    assert found["by_position"][1]["mean_abs"] > 5 * found["by_position"][-1]["mean_abs"]


def test_one_broken_sample_leads_the_list_of_the_worst(logits: np.ndarray) -> None:
    rollout = of(log_softmax(logits), drawn(logits))
    train = rounding(rollout)
    train[17] = -8.0
    assert block(rollout, train)["by_sample"][0]["sample_id"] == "s17"


def test_a_placeholder_side_fails_instead_of_being_measured_as_equal(logits: np.ndarray) -> None:
    zeros = np.zeros((3, 5), dtype=np.float32)
    result = measured([Sample(z.tolist(), z.tolist()) for z in zeros])
    assert gate(result, "range").ok is False
    assert result.measure["mismatched_tokens"] == 0
    assert result.exit_code() == 1
