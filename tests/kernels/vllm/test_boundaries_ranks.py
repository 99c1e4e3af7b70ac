"""A capture over two tensor-parallel ranks is one of whole rows: widths, ids, edges and values of one rank's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.kernels.vllm.boundary_sides import NOISE, Side, Taken, away, taken, whole  # noqa: E402

pytestmark = [
    pytest.mark.slow(seconds=150),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two CPUs"),
]
LAYER = {"q": 256, "k_rope": 128, "context": 256, "attn_out": 256, "router_logits": 16, "experts_out": 256}

_ = taken


@pytest.fixture(scope="module")
def side(model_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with pytest.MonkeyPatch.context() as patch:
        first, second = sorted(os.sched_getaffinity(0))[:2]
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{first}|{second}")
        patch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
        patch.delenv("LOGDIFF_ALIGN", raising=False)
        patch.setenv("LOGDIFF_HOOKS", "")
        found = Side(model_folder("qwen3-moe"), tmp_path_factory.mktemp("ranks"), tensor_parallel_size=2)
        yield found
        found.engine.close()


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_rows_of_ranks_are_whole_and_no_bit_changes(side: Side, taken: dict[str, Taken], phase: str) -> None:
    file = taken[phase].file
    whole(side, taken[phase], phase)
    assert file.header.extra["tensor_parallel"] == 2
    for part, width in LAYER.items():
        assert file.tensor(f"layers.1.{part}").shape[1] == width
    assert file.tensor("logits").shape[1] == 1024
    assert list(file.path.parent.glob(".*rank*")) == []


def test_joined_rows_are_those_of_the_whole_model(side: Side, taken: dict[str, Taken]) -> None:
    score = side.score()
    file = taken["prefill"].file
    assert {e.name for e in file.entries()} == {e.name for e in score.entries()}
    parts = ("input_norm", "q", "k", "v", "q_norm", "k_norm", "q_rope", "k_rope", "context", "attn_out", "mlp_norm")
    assert all(away(file, score, f"layers.0.{part}") < NOISE for part in parts)
    partial = {entry.name: entry.facts.get("partial_sums") for entry in file.entries()}
    assert partial["layers.0.experts_out"] == 2
    assert partial["layers.0.attn_out"] is None
    moe, sums = file.tensor("layers.0.moe_out").double(), file.tensor("layers.0.experts_out").double()
    assert float((moe - sums).norm() / moe.norm()) < NOISE  # the ranks' terms add up to what the layer left
