"""Whole runs on real engines without vLLM: `transformers-generate` and `transformers` on a small built model."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from logdiff.case import Case
from logdiff.case.sequences import read_sequences
from logdiff.errors import LogdiffError
from logdiff.live import RunFile, build_model, environment, list_models, run

from tests.e2e.live_reference import children, reference_logprobs


@pytest.fixture(scope="module")
def model():
    return build_model("qwen3")


def run_data(model, rollout, dtype="float32", **changes):
    return {
        "format": "logdiff-run/1",
        "model": str(model),
        "dtype": dtype,
        "prompts": {"random": {"count": 4, "lengths": [3, 9], "seed": 1}},
        "sampling": {"max_tokens": 6, "temperature": 1.0, "seed": 7, "ignore_eos": True},
        "rollout": {"engine": rollout},
        "train": {"engine": "transformers"},
        **changes,
    }


def test_transformers_against_itself_in_equal_shapes_is_exactly_zero(model, tmp_path):
    before = children()
    case = run(RunFile.from_dict(run_data(model, "transformers", "bfloat16")), tmp_path / "case")
    result = case.read_result("measure")
    assert result["measure"]["tokens"] == 24
    assert (result["measure"]["mismatched_tokens"], result["measure"]["max_abs"]) == (0, 0)
    assert {g["gate"]: g["ok"] for g in result["gates"]}["weights"] is True
    assert children() <= before


SCRIPT = """
import json, sys
from logdiff.live import RunFile, run
data = json.loads(sys.argv[1])
run(RunFile.from_dict(data), sys.argv[2], floor="quick", on_progress=lambda p: print(p.task, flush=True))
"""


def test_a_killed_run_resumes_and_its_numbers_are_those_of_an_independent_computation(model, tmp_path):
    data = run_data(model, "transformers-generate", sampling={"max_tokens": 6, "temperature": 0.5, "ignore_eos": True})
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(data), str(tmp_path / "case")], stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            if line.strip().startswith("floor/rollout"):
                break
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        _, alive = psutil.wait_procs(below, timeout=30)
        assert not alive
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert not Case.open(tmp_path / "case").is_complete
    case = run(RunFile.from_dict(data), tmp_path / "case", floor="quick")
    result = case.read_result("measure")
    assert sum(r.get("task") == "step0/rollout/generate" for r in case.journal.read()) == 1
    expected = reference_logprobs(model, case.path / "captures/step0/generate.safetensors", "float32", temperature=0.5)
    batch = next(iter(case.batches()))
    for side in ("rollout", "train", "rescore"):
        assert np.abs(batch.logprob[side] - expected).max() < 2e-4, side
    assert result["measure"]["tokens"] == 24
    assert result["measure"]["max_abs"] == np.abs(batch.logprob["train"] - batch.logprob["rollout"]).max()
    by_axis = {(a["side"], a["axis"], a["value"]): a for a in result["floor"]["axes"]}
    assert by_axis["train", "rerun", "same"]["mismatched_tokens"] == 0
    assert by_axis["rollout", "rerun", "same"]["mismatched_tokens"] == 0
    assert result["floor"]["skipped"] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": {"engine": "transformers", "args": {"attn_implementation": "nonsense"}}}, "nonsense"),
        ({"rollout": {"engine": "vllm-http", "args": {"url": "http://127.0.0.1:9", "retries": 0}}}, "no answer"),
        ({"model": "/nowhere/at/all"}, "no such model folder"),
        ({"model": "builtin:no-such-model"}, "no-such-model"),
    ],
)
def test_what_can_not_run_is_a_clear_error_with_exit_code_2_and_leaves_no_process(model, tmp_path, change, words):
    before = children()
    with pytest.raises(LogdiffError, match=words) as error:
        run(RunFile.from_dict(run_data(model, "transformers-generate") | change), tmp_path / "case")
    assert error.value.exit_code == 2
    assert error.value.hint
    assert children() <= before


def test_the_interpreter_and_its_models_are_told(model):
    facts = environment()
    assert facts["format"] == "logdiff-env/1"
    assert facts["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert "qwen3" in {m["name"] for m in list_models()}
    assert (model / "config.json").is_file()


@pytest.mark.slow(seconds=30)
def test_three_steps_are_updated_synced_and_checked_by_checksum(model, tmp_path):
    case = run(RunFile.from_dict(run_data(model, "transformers-generate", steps=3)), tmp_path / "case")
    gates = {g["gate"]: g for g in case.read_result("measure")["gates"]}
    assert gates["weights"]["ok"] is True
    assert gates["update"]["ok"] is True
    assert {int(s) for b in case.batches() for s in b.step} == {0, 1, 2}
    weights = [json.loads((case.path / f"sides/train/weights-step{k}.json").read_text()) for k in range(3)]
    sums = [{n: t["sum"] for n, t in w["tensors"].items()} for w in weights]
    assert sums[0] != sums[1] != sums[2]
    first = read_sequences(case.path / "captures/step0/generate.safetensors")
    later = read_sequences(case.path / "captures/step2/generate.safetensors")
    assert first.prompt_ids.tolist() == later.prompt_ids.tolist()
