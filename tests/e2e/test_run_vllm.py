"""Whole runs with vLLM in process against Transformers."""

import importlib.util
import json

import numpy as np
import pytest
from logdiff.live import RunFile, build_model, run

from tests.e2e.live_reference import children, reference_logprobs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")

ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
ARGS = {"enforce_eager": True, "block_size": 128, "max_model_len": 256}


def run_data(model, args=None, env=None, **changes):
    return {
        "format": "logdiff-run/1",
        "model": str(model),
        "dtype": "float32",
        "prompts": {"random": {"count": 4, "lengths": [5, 40], "seed": 1}},
        "sampling": {"max_tokens": 8, "temperature": 1.0, "seed": 7, "ignore_eos": True, "topk": 2},
        "rollout": {"engine": "vllm", "args": {**ARGS, **(args or {})}, "env": {**ENV, **(env or {})}},
        "train": {"engine": "transformers"},
        **changes,
    }


def test_vllm_against_transformers_is_captured_measured_and_agrees_with_an_independent_computation(tmp_path):
    model = build_model("qwen3")
    before = children()
    case = run(RunFile.from_dict(run_data(model)), tmp_path / "case", floor="quick")
    assert children() <= before
    result = case.read_result("measure")
    assert result["measure"]["tokens"] == 32
    gates = {g["gate"]: g["ok"] for g in result["gates"]}
    assert gates["weights"] is True
    assert gates["config"] is True
    expected = reference_logprobs(model, case.path / "captures/step0/generate.safetensors", "float32")
    batch = next(iter(case.batches()))
    for side in ("rollout", "train", "rescore"):
        assert np.abs(batch.logprob[side] - expected).max() < 1e-3, side
    assert result["pairs"]["decode_rescore"]["tokens"] == result["pairs"]["rescore_train"]["tokens"] == 32
    sides = set(result["floor"]["by_side"])
    assert sides == {"rollout", "rescore", "train"}
    assert batch.topk["rollout"].ids.shape == (32, 2)


@pytest.mark.slow(seconds=180)
def test_three_steps_are_synced_through_the_engines_own_reload(tmp_path):
    case = run(RunFile.from_dict(run_data(build_model("qwen3"), steps=3)), tmp_path / "case")
    gates = {g["gate"]: g for g in case.read_result("measure")["gates"]}
    assert gates["weights"]["ok"] is True, gates["weights"]
    assert gates["update"]["ok"] is True
    synced = [r["how"] for r in case.journal.read() if r["event"] == "weights_synced"]
    assert synced == ["reload", "reload"]


@pytest.mark.slow(seconds=120)
def test_two_ranks_of_tensor_parallel_run_and_hold_the_trainers_weights(tmp_path):
    data = run_data(build_model("qwen3"), args={"tensor_parallel_size": 2}, env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
    module = tmp_path / "mine.py"
    module.write_text("loaded = True\n")
    data["rollout"]["modules"] = [str(module)]
    before = children()
    case = run(RunFile.from_dict(data), tmp_path / "case")
    assert children() <= before
    gates = {g["gate"]: g for g in case.read_result("measure")["gates"]}
    assert gates["weights"]["ok"] is True, gates["weights"]
    assert case.read_result("measure")["measure"]["max_abs"] < 1e-3
    fingerprint = json.loads((case.path / "sides/rollout/fingerprint.json").read_text())
    workers = fingerprint["config"]["workers"]
    assert [[m["path"] for m in w["modules"]] for w in workers] == [[str(module)]] * 2
    assert len({w["pid"] for w in workers}) == 2


@pytest.mark.slow(seconds=600)
def test_the_full_floor_measures_or_names_every_axis(tmp_path):
    case = run(RunFile.from_dict(run_data(build_model("qwen3"))), tmp_path / "case", floor="full")
    floor = case.read_result("measure")["floor"]
    measured = {a["axis"] for a in floor["axes"] if a["side"] == "rollout"}
    skipped = {s["axis"]: s["reason"] for s in floor["skipped"]}
    for axis in ("restart", "enable_chunked_prefill", "enable_prefix_caching", "block_size", "enforce_eager"):
        assert axis in measured or skipped.get(axis), axis
    assert {"restart", "enable_chunked_prefill", "enable_prefix_caching"} <= measured, json.dumps(skipped)
