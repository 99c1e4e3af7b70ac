"""`logdiff demo` as a newcomer types it, on real engines and real weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow(seconds=400, alone=True)


def demo(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "logdiff", "demo", "--json", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="vLLM needs Python 3.11")
def test_vllm_against_transformers_shows_the_stock_mismatch_and_then_zero(tmp_path: Path) -> None:
    """The figures of an independent trial of the same engines: mean |d| 0.044, max 0.31, no equal token."""
    found, _ = demo(tmp_path)
    measure = found["stock"]["measure"]
    assert (found["format"], found["model"], found["rollout"]) == ("logdiff-demo/1", "smollm2", "vllm")
    assert 500 < measure["tokens"] < 1100
    assert measure["mismatched_tokens"] >= 0.99 * measure["tokens"]
    assert 0.03 < measure["mean_abs"] < 0.06
    assert 0.15 < measure["max_abs"] < 0.7
    assert abs(measure["mean"]) < 0.02
    assert not [g for g in found["stock"]["gates"] if g["ok"] is False]
    assert {a["side"] for a in found["stock"]["floor"]["axes"]} == {"rollout", "rescore", "train"}
    aligned = found["aligned"]
    assert aligned["measure"]["tokens"] == measure["tokens"], "the same tokens before and after"
    assert [pair["mismatched_tokens"] for pair in aligned["pairs"].values()] == [0, 0, 0]
    assert {g["gate"]: g["ok"] for g in aligned["gates"]}["aligned"] is True
    assert not [g for g in aligned["gates"] if g["ok"] is False]
    assert Path(found["report"]) == tmp_path / "logdiff-demo.html"
    assert "<html" in (tmp_path / "logdiff-demo.html").read_text(encoding="utf-8")


def test_the_embedded_engine_and_a_random_model_work_too(tmp_path: Path) -> None:
    found, _ = demo(tmp_path, "--model", "dense", "--rollout", "transformers-generate", "--report", "r.html")
    assert found["rollout"] == "transformers-generate"
    assert found["stock"]["measure"]["tokens"] > 100
    assert not [g for g in found["stock"]["gates"] if g["ok"] is False]
    assert found["aligned"]["measure"]["tokens"] == found["stock"]["measure"]["tokens"]
    assert found["aligned"]["measure"]["mismatched_tokens"] == 0
    assert 'id="plot-before-after"' in (tmp_path / "r.html").read_text(encoding="utf-8")
