"""A side that computes something else is further from the checkpoint than the checkpoint's own dtype costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from logdiff.case.sequences import build_sequences, write_sequences
from logdiff.localize.distance import distances

TOKENS, SAMPLES = 400, 8


def _file(path: Path, values: np.ndarray, null: np.ndarray | None = None) -> Path:
    per = TOKENS // SAMPLES
    names = [f"s{i}" for i in range(SAMPLES)]
    prompts = [[1, 2]] * SAMPLES
    responses = [list(range(10, 10 + per))] * SAMPLES
    columns = {"logprobs": values.astype(np.float32)}
    if null is not None:
        columns["logprobs_null"] = null.astype(np.uint8)
    write_sequences(path, build_sequences(names, prompts, responses, columns=columns))
    return path


@pytest.fixture
def noise() -> np.random.Generator:
    return np.random.default_rng(5)


def test_rounding_of_the_same_size_is_not_far(tmp_path: Path, noise: np.random.Generator) -> None:
    truth = -np.abs(noise.normal(2, 1, TOKENS))
    wide = _file(tmp_path / "wide", truth)
    own = _file(tmp_path / "own", truth + noise.normal(0, 0.03, TOKENS))
    side = _file(tmp_path / "side", truth + noise.normal(0, 0.035, TOKENS))
    found = distances({"decode": side}, wide, own)["decode"]
    assert not found.far
    assert found.ratio == pytest.approx(0.035 / 0.03, rel=0.15)


@pytest.mark.parametrize("shift", [0.1, 0.5])
def test_a_bias_beyond_the_dtype_is_far(tmp_path: Path, noise: np.random.Generator, shift: float) -> None:
    truth = -np.abs(noise.normal(2, 1, TOKENS))
    wide = _file(tmp_path / "wide", truth)
    own = _file(tmp_path / "own", truth + noise.normal(0, 0.03, TOKENS))
    side = _file(tmp_path / "side", truth + noise.normal(0, 0.03, TOKENS) + shift)
    found = distances({"train": side}, wide, own)["train"]
    assert found.far
    assert found.mean == pytest.approx(shift, abs=0.01)


def test_one_bad_sample_is_named_and_leaves_the_median_alone(tmp_path: Path, noise: np.random.Generator) -> None:
    truth = -np.abs(noise.normal(2, 1, TOKENS))
    wide = _file(tmp_path / "wide", truth)
    own = _file(tmp_path / "own", truth + noise.normal(0, 0.03, TOKENS))
    values = truth + noise.normal(0, 0.03, TOKENS)
    values[100:150] += 3.0  # the third sample
    found = distances({"decode": _file(tmp_path / "side", values)}, wide, own)["decode"]
    assert found.far
    assert found.median_ratio < 2
    assert found.worst[0][0] == "s2"
    assert found.worst[0][1] > 0.9


def test_tokens_without_a_value_are_left_out(tmp_path: Path, noise: np.random.Generator) -> None:
    truth = -np.abs(noise.normal(2, 1, TOKENS))
    values, null = truth.copy(), np.zeros(TOKENS)
    values[:10], null[:10] = np.nan, 1
    found = distances({"decode": _file(tmp_path / "side", values, null)}, _file(tmp_path / "wide", truth), None)
    assert found["decode"].tokens == TOKENS - 10
    assert found["decode"].rms < 1e-6
    assert not found["decode"].far


def test_in_fp32_the_smallest_scale_is_rounding_of_fp32(tmp_path: Path, noise: np.random.Generator) -> None:
    truth = -np.abs(noise.normal(2, 1, TOKENS))
    wide = _file(tmp_path / "wide", truth)
    close = _file(tmp_path / "close", truth + noise.normal(0, 5e-6, TOKENS))
    off = _file(tmp_path / "off", truth + noise.normal(0, 1e-3, TOKENS))
    found = distances({"decode": close, "train": off}, wide, None)
    assert not found["decode"].far
    assert found["train"].far
