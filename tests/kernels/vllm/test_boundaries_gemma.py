"""Captures of Gemma 3: norms after the blocks, (1 + weight), norms of heads, scaled embeddings, two rotations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.kernels.vllm.boundary_sides import NOISE, Side, Taken, away, in_process, side, taken, whole  # noqa: E402

pytestmark = pytest.mark.slow(seconds=90)
MODEL = "gemma3"

_ = in_process, side, taken


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_rows_are_whole_and_no_bit_changes(side: Side, taken: dict[str, Taken], phase: str) -> None:
    whole(side, taken[phase], phase)


def test_rows_agree_with_those_of_transformers(side: Side, taken: dict[str, Taken]) -> None:
    score = side.score()
    file = taken["prefill"].file
    mine = {e.name for e in file.entries()}
    assert mine == {e.name for e in score.entries()}
    assert {"layers.0.attn_post_norm", "layers.0.mlp_post_norm", "layers.0.q_norm"} <= mine
    far = {name: away(file, score, name) for name in mine}
    assert max(far.values()) < NOISE, max(far.items(), key=lambda item: item[1])


def test_facts_are_those_of_the_model(side: Side, taken: dict[str, Taken]) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(side.model).get_text_config()
    facts = {entry.name: entry.facts for entry in taken["decode"].file.entries()}
    assert facts["layers.0.input_norm"]["offset"] == 1.0
    assert facts["embedding"]["scale"] == pytest.approx(config.hidden_size**0.5, rel=2**-8)
    assert facts["layers.0.context"]["scale"] == config.query_pre_attn_scalar**-0.5
    for layer, kind in enumerate(config.layer_types):
        own = facts[f"layers.{layer}.context"], facts[f"layers.{layer}.k_rope"]
        assert own[0]["window"] == (config.sliding_window if kind == "sliding_attention" else None)
        assert own[1]["theta"] == config.rope_parameters[kind]["rope_theta"]
    assert facts["layers.0.act"]["approximate"] == "tanh"
