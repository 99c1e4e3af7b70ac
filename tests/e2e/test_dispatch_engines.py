"""Dispatch truth on real engines: switches that do nothing, and implementations that are told apart."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from logdiff.actions import dispatch

pytestmark = [
    pytest.mark.slow(seconds=45),  # of each test: the two fixtures took 331 s and 177 s on two busy cores
    pytest.mark.timeout(3000),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]

RUN = """
format: logdiff-run/1
model: builtin:qwen3
dtype: bfloat16
prompts: {random: {count: 2, lengths: [7], seed: 1}}
sampling: {max_tokens: 4}
rollout: {engine: vllm, args: {enforce_eager: true, block_size: 128, max_model_len: 256}}
train: {engine: transformers, args: {attn_implementation: sdpa}}
"""
REGISTERED = {"aten::mean.dim", "aten::_log_softmax", "aten::softmax", "aten::_softmax", "aten::bmm", "aten::bmm.out"}
"""What `enable_batch_invariant_mode` of vLLM 0.32 registers for a device that is neither CUDA nor XPU."""

PATCH = """
import torch

stock = torch.nn.functional.silu
torch.nn.functional.silu = lambda x, inplace=False: stock(x, inplace)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dispatch")
    (path / "run.yaml").write_text(RUN)
    (path / "patch.py").write_text(PATCH)
    return path


@pytest.fixture(scope="module")
def rollout(folder: Path) -> dict[str, Any]:
    toggles = ["env:VLLM_BATCH_INVARIANT=1", "rollout:env:VLLM_ASCEND_ENABLE_NZ=0", "align=all"]
    return dispatch(run_file=folder / "run.yaml", side="rollout", toggles=toggles).data


@pytest.fixture(scope="module")
def train(folder: Path) -> dict[str, Any]:
    toggles = ["args:attn_implementation=eager", "align=all", "modules=patch.py"]
    return dispatch(run_file=folder / "run.yaml", side="train", toggles=toggles, case=folder / "case").data


def test_stock_vllm_has_no_finding_of_its_own(rollout: dict[str, Any]) -> None:
    assert [f for f in rollout["findings"] if f["kind"] != "toggle"] == []


def test_stock_transformers_has_no_finding_and_every_switch_of_it_changed_something(train: dict[str, Any]) -> None:
    assert train["findings"] == []
    assert [proof["result"] for proof in train["toggles"]] == ["changed"] * 3


def test_what_vllm_does_to_torch_is_named_as_its_own(rollout: dict[str, Any]) -> None:
    explained = {r["target"]: r for r in rollout["sides"]["rollout"]["patched"]["explained"]}
    assert "vllm" in explained["torch.Tensor.pin_memory"]["explained"]


def test_the_batch_invariant_switch_fails_and_the_proof_says_where_and_what_it_had_changed(
    rollout: dict[str, Any],
) -> None:
    """vLLM 0.32 gives torch Triton kernels on a CPU too; RMSNorm's mean is the first call that runs one."""
    proof = rollout["toggles"][0]
    assert (proof["result"], proof["changed"]) == ("failed with the switch", None)
    failed = proof["sides"]["rollout"]["failed"]
    assert (failed["phase"], failed["pass"]) == ("prefill", "watched")
    assert failed["error"] == "TypeError: 'function' object is not subscriptable"
    file, _, function = failed["where"][0].partition(" in ")
    path, _, line = file.rpartition(":")
    assert path == "vllm/model_executor/determinism/batch_invariant.py"
    assert function == "mean_dim"
    source = Path(importlib.util.find_spec("vllm").submodule_search_locations[0]).parent / path  # type: ignore[union-attr,index]
    assert "mean_kernel[grid]" in source.read_text().splitlines()[int(line) - 1]
    assert len(failed["where"]) == 3
    registered = set(re.findall(r"aten::[\w.]+", "\n".join(proof["sides"]["rollout"]["inventory"]["patched"]["new"])))
    assert registered >= REGISTERED
    assert proof["statement"].startswith("failed with the switch: with env:VLLM_BATCH_INVARIANT=1 the rollout engine")
    assert "aten::mean.dim" in proof["statement"]
    assert proof["toggle"] == "env:VLLM_BATCH_INVARIANT=1"


def test_a_switch_of_another_device_changes_nothing_and_is_a_finding(rollout: dict[str, Any]) -> None:
    proof = rollout["toggles"][1]
    assert (proof["result"], proof["changed"]) == ("changed nothing", False)
    assert proof["sides"]["rollout"] == {"executed": {}, "settings": {}}
    assert proof["statement"].startswith("the switch changed nothing: rollout:env:VLLM_ASCEND_ENABLE_NZ=0")
    found = [f["what"] for f in rollout["findings"]]
    assert found == ["env:VLLM_BATCH_INVARIANT=1", "rollout:env:VLLM_ASCEND_ENABLE_NZ=0"]


def test_aligned_operators_are_told_from_vllms(rollout: dict[str, Any]) -> None:
    assert rollout["toggles"][2]["result"] == "changed"
    found = rollout["toggles"][2]["sides"]["rollout"]["executed"]
    assert any("logdiff." in line for line in found["operators"]["new"])
    assert any("_C.onednn_mm" in line for line in found["operators"]["gone"])
    assert any("logdiff_kernels.cpu." in line for line in found["kernels"]["new"])


def test_every_phase_of_vllm_was_seen_with_its_attention(rollout: dict[str, Any]) -> None:
    phases = rollout["sides"]["rollout"]["phases"]
    assert set(phases) == {"prefill", "decode", "score"}
    for phase in phases.values():
        assert "_C.cpu_attention_with_kv_cache.default" in phase["boundaries"]["self_attn.attention"]["ops"]
    assert any("CPU_ATTN" in name for name in rollout["sides"]["rollout"]["resolved"]["attention"])


def test_sdpa_and_eager_attention_are_told_apart(train: dict[str, Any]) -> None:
    found = train["toggles"][0]["sides"]["train"]
    assert any("aten._softmax" in line for line in found["executed"]["operators"]["new"])
    assert found["settings"]["resolved.attention"] == ["sdpa", "eager"]


def test_aligned_operators_are_told_from_transformers(train: dict[str, Any]) -> None:
    found = train["toggles"][1]["sides"]["train"]["executed"]
    assert any("logdiff." in line for line in found["operators"]["new"])


def test_a_module_of_the_users_that_patches_torch_is_named(train: dict[str, Any]) -> None:
    lines = train["toggles"][2]["sides"]["train"]["executed"]["patched"]["new"]
    assert any("torch.nn.functional.silu" in line for line in lines)


def test_the_backward_pass_has_its_modules(train: dict[str, Any]) -> None:
    cells = train["sides"]["train"]["phases"]["backward"]["boundaries"]
    assert "aten.mm.default" in cells["grad self_attn.qkv_proj"]["ops"]


def test_the_result_is_kept_in_its_case(train: dict[str, Any], folder: Path) -> None:
    assert (folder / "case" / "results" / "dispatch.json").is_file()
    assert (folder / "case" / "results" / "dispatch-train.json").is_file()
