"""An engine that runs compiled is captured by its own forward run uncompiled, and the file says so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.kernels.vllm.boundary_sides import Side, connected, in_process, received, side  # noqa: E402

pytestmark = pytest.mark.slow(seconds=200)

MODEL = "qwen3"
ARGUMENTS = {"enforce_eager": False}

_ = in_process, side


def test_a_compiled_model_is_captured_eagerly_and_runs_compiled_again(side: Side) -> None:
    before = side.logprobs("decode")
    compiled = [m for m in side.loaded().modules() if getattr(m, "do_not_compile", True) is False]
    assert compiled  # else this test is about nothing
    taken = side.capture("decode")
    assert taken.file.header.extra["eager"] is True
    assert any("uncompiled" in note for note in taken.file.header.notes)
    received(side, taken.file, "decode")
    connected(taken.file)
    assert [m for m in side.loaded().modules() if getattr(m, "do_not_compile", True) is False] == compiled
    assert side.logprobs("decode") == before
