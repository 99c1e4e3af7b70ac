"""Captures of mixtures of experts, stock and aligned: what vLLM routes and sums, against Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.kernels.vllm.boundary_sides import (  # noqa: E402
    NOISE,
    Side,
    Taken,
    away,
    connected,
    differ,
    in_process,
    keys,
    paired,
    taken,
    whole,
)

pytestmark = pytest.mark.slow(seconds=90)

_ = in_process, taken


@pytest.fixture(scope="module")
def side(in_process: Any, model_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    in_process.setenv("LOGDIFF_BUDGET", "1")  # stock to the bit until a test aligns it
    found = Side(model_folder("qwen3-moe"), tmp_path_factory.mktemp("moe"))
    yield found
    found.engine.close()


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_rows_are_whole_and_no_bit_changes(side: Side, taken: dict[str, Taken], phase: str) -> None:
    whole(side, taken[phase], phase)


def test_experts_are_logical_by_descending_weight(taken: dict[str, Taken]) -> None:
    file = taken["decode"].file
    weights, ids = file.tensor("layers.1.expert_weights"), file.tensor("layers.1.expert_ids")
    assert bool((weights.diff(dim=1) <= 0).all())
    probabilities = file.tensor("layers.1.router_logits").double().softmax(-1)
    best = probabilities.gather(1, ids.long())
    assert torch.allclose(best / best.sum(-1, keepdim=True), weights.double(), atol=2e-3)  # renormalised
    assert float(best.sum(-1).min()) >= float(probabilities.topk(ids.shape[1]).values.sum(-1).min()) - 1e-6


def test_rows_of_equal_routing_agree_with_those_of_transformers(side: Side, taken: dict[str, Taken]) -> None:
    score = side.score()
    file = taken["prefill"].file
    assert {e.name for e in file.entries()} == {e.name for e in score.entries()}
    # near ties choose other experts on one side; from there the rows are another function's
    first = [f"layers.0.{part}" for part in ("input_norm", "q", "context", "attn_out", "mlp_norm", "router_logits")]
    assert all(away(file, score, name) < NOISE for name in first)
    mine, theirs = paired(file, score, "layers.0.expert_ids")
    same = (mine.sort(-1).values == theirs.long().sort(-1).values).all(-1)
    assert float(same.float().mean()) > 0.9
    a, b = (rows[same].double() for rows in paired(file, score, "layers.0.moe_out"))
    assert float((a - b).norm() / b.norm()) < NOISE


def test_a_planted_change_in_the_experts_shows_there_first(side: Side, taken: dict[str, Taken]) -> None:
    experts = side.loaded().model.layers[1].mlp.experts.routed_experts
    stock = experts.forward_modular
    experts.__dict__["forward_modular"] = lambda *a, **k: 1.25 * stock(*a, **k)
    try:
        changed = side.capture("decode")
    finally:
        del experts.__dict__["forward_modular"]
    assert differ(changed.file, taken["decode"].file)[0] == "layers.1.experts_out"
    assert keys(changed.file, "layers.1.moe_out") == keys(taken["decode"].file, "layers.1.moe_out")


def test_capture_and_captured_experts_of_the_sequence_file_agree(side: Side, taken: dict[str, Taken]) -> None:
    from logdiff_kernels.sequences import read

    path = side.folder / "forced.safetensors"
    side.run(task="force", input=str(side.tokens), output=str(path))
    told = torch.from_numpy(read(path).columns["experts"])  # [T, layers, k], of the position before each token
    file = taken["decode"].file
    rows = keys(file, "layers.2.expert_ids")
    at, expected = [], []
    token = 0
    for sample, (prompt, response) in enumerate(zip(side.source.prompts, side.source.responses, strict=True)):
        for place in range(len(response)):
            at.append(rows[sample, len(prompt) + place - 1])
            expected.append(told[token, 2])
            token += 1
    assert torch.equal(file.tensor("layers.2.expert_ids")[at].long(), torch.stack(expected).long())


def test_an_aligned_engine_is_captured_alike_and_keeps_its_bits(side: Side, taken: dict[str, Taken]) -> None:
    side.run(task="realign", ops="all")
    try:
        aligned = {phase: side.capture(phase) for phase in ("decode", "prefill")}
        for phase, one in aligned.items():
            assert one.logprobs == side.logprobs(phase)
            connected(one.file)
            assert {e.name for e in one.file.entries()} == {e.name for e in taken[phase].file.entries()}
    finally:
        side.run(task="realign", ops=[])
    assert aligned["decode"].logprobs == aligned["prefill"].logprobs  # what aligned operators are for
    assert differ(aligned["decode"].file, aligned["prefill"].file) == []
    assert side.logprobs("decode") == taken["decode"].logprobs


@pytest.mark.parametrize("part", ["router_logits", "expert_ids", "expert_weights", "experts_out"])
def test_parts_of_experts_fed_their_own_inputs_leave_their_own_rows(
    side: Side, taken: dict[str, Taken], part: str
) -> None:
    file, boundary = taken["prefill"].file, f"layers.2.{part}"
    side.capture("prefill", boundaries=["layers.2.*"])
    assert away(side.swap(boundary, file), file, boundary) < 0.004
