"""Dispatch of two tensor-parallel workers: every rank answers for itself, and the one that was patched is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from logdiff.actions import dispatch

pytestmark = [
    pytest.mark.slow(seconds=80),
    pytest.mark.timeout(3000),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]

RUN = """
format: logdiff-run/1
model: builtin:qwen3
dtype: bfloat16
prompts: {random: {count: 2, lengths: [7], seed: 1}}
rollout:
  engine: vllm
  args: {enforce_eager: true, block_size: 128, max_model_len: 256, tensor_parallel_size: 2}
  modules: [patch.py]
train: {engine: transformers}
"""
PATCH = """
import multiprocessing

if multiprocessing.current_process().name.endswith("-1"):
    import torch

    stock = torch.nn.functional.gelu
    torch.nn.functional.gelu = lambda x, approximate="none": stock(x, approximate=approximate)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    (folder / "run.yaml").write_text(RUN)
    (folder / "patch.py").write_text(PATCH)
    return dispatch(run_file=folder / "run.yaml", side="rollout", phases=["prefill", "decode"]).data


def test_both_workers_answer_with_the_communicator_that_they_resolved(data: dict[str, Any]) -> None:
    facts = data["sides"]["rollout"]
    assert len(facts["ranks"]) == 2
    assert facts["resolved"]["communicator"]["world_size"] == 2
    assert facts["resolved"]["communicator"]["class"].endswith("Communicator")


def test_the_workers_agree_in_all_but_the_patched_function(data: dict[str, Any]) -> None:
    odd = [f for f in data["findings"] if f["kind"] == "rank"]
    assert [f["detail"].split(" ")[0] for f in odd] == ["patched"]
    first, second = data["sides"]["rollout"]["ranks"]
    assert {part for part in first if first[part] != second[part]} == {"patched"}


def test_the_patched_function_is_named_with_its_rank(data: dict[str, Any]) -> None:
    found = [f for f in data["findings"] if f.get("rank") == 1]
    assert [f["what"] for f in found] == ["torch.nn.functional.gelu"]
    assert "patch.py" in found[0]["where"]
    assert not [f for f in data["findings"] if f["kind"] not in ("rank",) and f.get("rank") != 1]
