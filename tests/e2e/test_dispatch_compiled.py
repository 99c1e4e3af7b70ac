"""Dispatch truth of a compiled vLLM: told from eager by the generated code that runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from logdiff.actions import dispatch

pytestmark = [
    pytest.mark.slow(seconds=115),  # of each test: the fixture took 338 s on two busy cores, Inductor's cache empty
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]

RUN = """
format: logdiff-run/1
model: builtin:qwen3
dtype: bfloat16
prompts: {random: {count: 2, lengths: [7], seed: 1}}
rollout: {engine: vllm, args: {enforce_eager: true, block_size: 128, max_model_len: 256}}
train: {engine: transformers}
"""
SWITCH = "rollout:args:enforce_eager=false"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("compiled")
    (folder / "run.yaml").write_text(RUN)
    return dispatch(run_file=folder / "run.yaml", side="rollout", phases=["decode"], toggles=[SWITCH]).data


def test_eager_runs_no_generated_code(data: dict[str, Any]) -> None:
    phase = data["sides"]["rollout"]["phases"]["decode"]
    assert phase["compiled"] is None
    assert phase["generated"] == []


def test_compiled_is_told_from_eager_by_the_generated_code_that_runs(data: dict[str, Any]) -> None:
    (proof,) = data["toggles"]
    assert (proof["result"], proof["changed"]) == ("changed", True)
    generated = proof["sides"]["rollout"]["executed"]["generated"]
    assert generated["gone"] == []
    assert generated["new"]
    assert any("cpp_fused" in line for line in generated["new"])


def test_the_resolved_mode_moves_with_it(data: dict[str, Any]) -> None:
    before, after = data["toggles"][0]["sides"]["rollout"]["settings"]["resolved.compile"]
    assert before != after
    assert "NONE" in before or before == "0"
