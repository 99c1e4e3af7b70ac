"""`logdiff probe` on the real interpreter."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from logdiff.cli.app import run
from logdiff.errors import LogdiffError
from logdiff.probe import make_plan
from logdiff.probe.run import run_probes

SMALL = ["rms_norm", "--provider", "torch", "--relations", "I:batch,I:order", "--shape", "rows=3,n=64"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDIFF_CACHE", os.environ.get("LOGDIFF_CACHE") or str(Path.home() / ".cache" / "logdiff"))
    monkeypatch.setattr("logdiff.probe.cache.folder", lambda: tmp_path / "probes")


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["probe", *arguments, "--json"])
    return code, json.loads(capfd.readouterr().out)


def test_a_run_is_kept_in_its_case_and_comes_from_the_cache_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, first = said(capfd, "run", *SMALL, "--case", str(tmp_path / "case"))
    assert (code, first["format"], first["cached"]) == (0, "logdiff-probe/1", 0)
    assert {(e["relation"], e["ok"], e["control_seen"]) for e in first["results"]} == {
        ("I:batch", True, True), ("I:order", True, True)
    }  # fmt: skip
    assert json.loads((tmp_path / "case" / "results" / "probe.json").read_text())["results"] == first["results"]
    code, again = said(capfd, "run", *SMALL)
    assert (code, again["cached"]) == (0, 2)
    assert again["results"] == first["results"]


@pytest.mark.slow(seconds=60)
def test_wrong_names_are_refused_with_what_there_is(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, named in (
        (["run", "matmul"], "no such operator"),
        (["run", "linear", "--provider", "jax"], "no such provider"),
        (["run", "linear", "--relations", "I:bach"], "no such relation"),
        (["run", "linear", "--shape", "rows=2"], "linear has no such shape"),
        (["run", "linear", "--shape", "rows=0,k=1,n=1"], "linear has no such shape"),
        (["run", "linear", "--dtype", "int4"], "no such dtype"),
    ):
        code, data = said(capfd, *arguments)
        assert code == 2, arguments
        assert named in data["error"]["message"]
        assert data["error"]["hint"]


@pytest.mark.slow(seconds=60)
def test_an_absent_provider_and_no_time_are_reasons_not_results(capfd: pytest.CaptureFixture[str]) -> None:
    code, data = said(capfd, "run", "attention", "--provider", "flash_attn_npu_v3", "--device", "npu")
    assert (code, data["results"]) == (0, [])
    assert data["skipped"][0]["provider"] == "flash_attn_npu_v3"
    code, data = said(capfd, "run", "linear", "--max-seconds", "0")
    assert (code, data["results"]) == (0, [])
    assert "out of time" in {entry["reason"] for entry in data["skipped"]}
    assert data["summary"].startswith("Nothing was probed")


@pytest.mark.slow(seconds=60)
def test_list_names_every_operator_with_its_providers(capfd: pytest.CaptureFixture[str]) -> None:
    code, data = said(capfd, "list")
    assert (code, data["format"]) == (0, "logdiff-probe-list/1")
    operators = {row["op"]: row for row in data["operators"]}
    assert {"torch", "vllm", "aligned", "cann_batch_invariant"} <= set(operators["linear"]["providers"])
    assert "I:decode" in operators["attention"]["relations"]


@pytest.mark.slow(seconds=120)
def test_a_killed_runner_leaves_what_it_had_finished() -> None:
    plan = make_plan(["linear", "rms_norm", "softmax"], providers=["torch"], dtype="float32", seconds=300.0)
    stop = threading.Event()

    def kill(progress: Any) -> None:
        if progress.unit == "check" and progress.done >= 3 and not stop.is_set():
            stop.set()
            for child in psutil.Process().children():
                if "logdiff_kernels.runner" in " ".join(child.cmdline()):
                    os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(LogdiffError) as raised:
        run_probes(plan, on_progress=kill)
    assert "finished checks are kept" in raised.value.hint
    began = time.monotonic()
    assert run_probes(make_plan(**{**_arguments(plan), "seconds": 0.0}))["cached"] >= 2
    assert time.monotonic() - began < 100


def _arguments(plan: Any) -> dict[str, Any]:
    return {"ops": list(plan.ops), "providers": list(plan.providers), "dtype": plan.dtype}
