"""`logdiff align` on real engines: what is switched on is equal to the bit, and what is taken back is native again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow(seconds=600, alone=True)
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("LOGDIFF_ALIGN")} | {
    "OMP_NUM_THREADS": "2"
}


def logdiff(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "logdiff", *arguments, "--json"],
        cwd=folder, env=env or ENVIRONMENT, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def write_run(folder: Path, rollout: dict[str, Any]) -> None:
    run = {
        "format": "logdiff-run/1",
        "model": "builtin:qwen3",
        "prompts": {"random": {"count": 3, "lengths": [5, 40], "seed": 1}},
        "sampling": {"max_tokens": 12, "seed": 3, "ignore_eos": True},
        "rollout": rollout,
        "train": {"engine": "transformers", "args": {"attn_implementation": "sdpa"}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(run))


VLLM = {"engine": "vllm", "args": {"enforce_eager": True, "block_size": 32, "max_model_len": 128}}
needs_vllm = pytest.mark.skipif(sys.version_info < (3, 11), reason="vLLM needs Python 3.11")


@needs_vllm
def test_the_loop_from_a_difference_to_zero_and_back(tmp_path: Path) -> None:
    write_run(tmp_path, VLLM)
    code, stock = logdiff(tmp_path, "run", "run.yaml", "--floor", "brief", "--case", "stock")
    assert code == 1
    assert stock["measure"]["mismatched_tokens"] > 0.9 * stock["measure"]["tokens"]
    code, plan = logdiff(tmp_path, "align", "plan", "stock")
    assert (code, plan["not_covered"]) == (0, [])
    code, aligned = logdiff(
        tmp_path, "run", "run.yaml", "--align", "all", "--tokens", "stock", "--floor", "none", "--case", "aligned"
    )
    assert (code, aligned["measure"]["mismatched_tokens"]) == (0, 0)
    assert aligned["measure"]["tokens"] == stock["measure"]["tokens"] == 36
    assert [p["mismatched_tokens"] for p in aligned["pairs"].values()] == [0, 0, 0]
    code, applied = logdiff(tmp_path, "align", "apply", plan["id"])
    assert applied["native"] is False
    # A process that has sourced env.sh dispatches to our operators, one that has not is stock.
    code_of = "from logdiff_kernels import coverage; print(coverage.dispatch('vllm', 'rollout', None)['native'])"
    said = subprocess.run(
        [sys.executable, "-c", code_of], env=ENVIRONMENT | applied["env"], capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[-1] == "False"
    code, reverted = logdiff(tmp_path, "align", "revert")
    assert (code, reverted["native"]) == (0, True), reverted["proof"]
    assert all(entry["same"] for entry in reverted["proof"]["dispatch"].values())
    assert reverted["proof"]["bits"]["train"]["same"] is True
    assert reverted["proof"]["bits"]["rollout"]["same"] in (True, None)
    assert False not in [entry["same"] for entry in reverted["proof"]["bits"].values()]


def test_apply_survives_kill_9_at_random_moments(tmp_path: Path) -> None:
    """Twenty kills, from the start of the interpreter to after the end; engine bits after four of them."""
    write_run(tmp_path, {"engine": "transformers-generate"})
    logdiff(tmp_path, "run", "run.yaml", "--floor", "brief", "--case", "stock")
    _, plan = logdiff(tmp_path, "align", "plan", "stock")
    begin = time.monotonic()
    logdiff(tmp_path, "align", "apply", plan["id"])
    whole = time.monotonic() - begin
    assert logdiff(tmp_path, "align", "revert", "--no-bits")[1]["native"] is True
    chance = random.Random(5)
    moments = [whole * chance.uniform(0.85, 1.1) if i % 2 else whole * chance.uniform(0.0, 1.0) for i in range(20)]
    for number, moment in enumerate(moments):
        child = subprocess.Popen(
            [sys.executable, "-m", "logdiff", "align", "apply", plan["id"], "--json"],
            cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        time.sleep(moment)
        child.send_signal(signal.SIGKILL)
        child.wait()
        on = (tmp_path / "stock" / "overlay" / "align.json").is_file()
        _, status = logdiff(tmp_path, "align", "status")
        assert (status["native"] is False) == on
        assert bool(status["active"]) == on
        bits = [] if number % 5 == 0 else ["--no-bits"]
        _, reverted = logdiff(tmp_path, "align", "revert", *bits)
        assert reverted["native"] is True, reverted
        assert not (tmp_path / "stock" / "overlay").exists()
        if not bits and reverted["reverted"]:
            assert {entry["same"] for entry in reverted["proof"]["bits"].values()} <= {True, None}
            assert reverted["proof"]["bits"]["train"]["same"] is True
