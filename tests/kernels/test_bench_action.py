"""`kernels_bench`: single cases can be named, and what can't run here is told."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff_kernels.actions import EngineFree
from logdiff_kernels.errors import InputError


def bench(*families: str) -> dict[str, Any]:
    task = {"task": "kernels_bench", "families": list(families), "quick": True}
    return EngineFree().run(task, lambda *_: None).data


def test_a_case_of_a_family_is_measured_alone() -> None:
    data = bench("rope")
    assert data["format"] == "logdiff-bench/1"
    assert {row["case"] for row in data["results"]} == {"rope"}
    assert data["skipped"] == []
    for row in data["results"]:
        assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ours_ms"], rel=3)


def test_an_unknown_case_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(InputError, match="no such benchmark") as caught:
        bench("rope", "warp")
    for case in ("linear-decode", "linear-prefill", "attention-prefill", "paged-decode", "rms_norm", "rope", "swiglu"):
        assert case in caught.value.hint
    for case in ("logprob", "vllm-tokens", "scoring", "train-step"):
        assert case in caught.value.hint


def test_a_case_that_cannot_run_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.operators import attention

    monkeypatch.setattr(attention, "_has_vllm", lambda: False)
    data = bench("paged-decode")
    assert data["results"] == []
    assert data["skipped"] == [{"case": "paged-decode", "reason": "vllm is not installed"}]
