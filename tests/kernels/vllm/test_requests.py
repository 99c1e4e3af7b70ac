"""Log-probabilities are read by token id, and every sample has a random stream of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from logdiff_kernels.engines.vllm.requests import Job, TokenColumns, run_jobs, sample_seed, starts
from logdiff_kernels.engines.vllm.routing import aligned_experts, received_experts


@dataclass
class Entry:
    logprob: float
    rank: int | None


def test_the_value_is_the_one_under_the_tokens_own_id_not_the_first() -> None:
    columns = TokenColumns.empty(2, 0)
    columns.fill(0, [7, 8], [{3: Entry(-0.1, 1), 7: Entry(-2.5, 4)}, {8: Entry(-0.25, 1)}])
    assert columns.logprobs.tolist() == [-2.5, -0.25]
    assert columns.null.tolist() == [0, 0]
    assert "logprobs_null" not in columns.as_columns()


def test_an_id_that_the_engine_left_out_is_null_and_minus_infinity_stays() -> None:
    columns = TokenColumns.empty(3, 0)
    columns.fill(0, [1, 2, 3], [{9: Entry(-0.5, 1)}, {2: Entry(-math.inf, 80)}, None])
    assert columns.null.tolist() == [1, 0, 1]
    assert math.isnan(columns.logprobs[0])
    assert columns.logprobs[1] == -math.inf
    assert columns.as_columns()["logprobs_null"].tolist() == [1, 0, 1]


def test_the_top_is_sorted_by_rank_and_leaves_out_a_sampled_token_below_it() -> None:
    columns = TokenColumns.empty(1, 2)
    columns.fill(0, [5], [{5: Entry(-9.0, 40), 8: Entry(-1.0, 2), 6: Entry(-0.5, 1)}])
    assert columns.topk_ids is not None
    assert columns.topk_logprobs is not None
    assert columns.topk_ids.tolist() == [[6, 8]]
    assert columns.topk_logprobs.tolist() == [[-0.5, -1.0]]


def test_a_float32_survives_the_way_through_python_floats() -> None:
    value = np.nextafter(np.float32(-1.3), np.float32(0))
    columns = TokenColumns.empty(1, 0)
    columns.fill(0, [1], [{1: Entry(float(value), 1)}])
    assert columns.logprobs.tobytes() == value.tobytes()


def test_seeds_differ_by_sample_and_by_run_and_fit_31_bits() -> None:
    seeds = {sample_seed(seed, index) for seed in range(40) for index in range(40)}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert sample_seed(5, 1) == sample_seed(5, 1)


def test_starts_are_the_running_sums_of_the_lengths() -> None:
    assert starts([[1, 2], [], [3]]) == [0, 2, 2]


@dataclass
class Output:
    request_id: str
    finished: bool


class Engine:
    """Finishes one request per step, the last one added first, and remembers how many ran at a time."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.running: list[str] = []
        self.most = 0
        self.aborted: list[str] = []
        self.fail_at = fail_at
        self.steps = 0

    def add_request(self, name: str, prompt: Any, params: Any) -> str:
        self.running.append(name)
        self.most = max(self.most, len(self.running))
        return f"{name}-suffix"

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> list[Output]:
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError("stopped")
        return [Output(self.running.pop(), True)]

    def abort_request(self, names: list[str], internal: bool) -> None:
        assert internal
        self.aborted = names


class Llm:
    def __init__(self, engine: Engine) -> None:
        self.llm_engine = engine


@pytest.mark.parametrize(("batch", "most"), [(None, 5), (2, 2), (1, 1), (9, 5)])
def test_no_more_than_a_batch_runs_at_a_time(batch: int | None, most: int) -> None:
    pytest.importorskip("vllm")
    engine, seen = Engine(), []
    run_jobs(
        Llm(engine), [Job(i, [1], None) for i in (4, 0, 2, 1, 3)], batch=batch, finished=lambda i, _: seen.append(i)
    )
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert engine.most == most


def test_requests_are_aborted_when_a_step_fails() -> None:
    pytest.importorskip("vllm")
    engine = Engine(fail_at=2)
    with pytest.raises(RuntimeError, match="stopped"):
        run_jobs(Llm(engine), [Job(i, [1], None) for i in range(3)], batch=None, finished=lambda *_: None)
    assert engine.aborted == ["0-suffix", "1-suffix", "2-suffix"]


def test_experts_of_a_response_token_are_those_of_the_position_before_it() -> None:
    positions = np.arange(5 * 2 * 1, dtype=np.int16).reshape(
        5, 2, 1
    )  # prompt of 3, response of 3: the last is no input
    index = {"0-ab12": [0, 5, 2, 1]}
    found = received_experts([(index, positions.tobytes()), ({}, b"")])
    aligned = aligned_experts(found, [[1, 1, 1], [1]], [[7, 8, 9], [4]])
    assert aligned[:3].reshape(3, 2).tolist() == [[4, 5], [6, 7], [8, 9]]
    assert aligned[3].reshape(-1).tolist() == [-1, -1]
