"""Captures of gpt-oss: windows in every other layer, sinks, biases, clamped experts, a scaled rotation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.kernels.vllm.boundary_sides import NOISE, Side, Taken, away, differ, in_process, side, taken, whole  # noqa: E402

pytestmark = pytest.mark.slow(seconds=90)
MODEL = "gpt-oss"

_ = in_process, side, taken


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_rows_are_whole_and_no_bit_changes(side: Side, taken: dict[str, Taken], phase: str) -> None:
    whole(side, taken[phase], phase)


def test_rows_agree_with_those_of_transformers(side: Side, taken: dict[str, Taken]) -> None:
    score = side.score()
    file = taken["prefill"].file
    assert {e.name for e in file.entries()} == {e.name for e in score.entries()}
    parts = ("input_norm", "q", "k", "v", "q_rope", "k_rope", "context", "attn_out", "attn_residual", "mlp_norm")
    far = {part: away(file, score, f"layers.0.{part}") for part in (*parts, "router_logits")}
    assert max(far.values()) < NOISE, far


def test_facts_are_those_of_the_model(side: Side, taken: dict[str, Taken]) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(side.model)
    facts = {entry.name: entry.facts for entry in taken["decode"].file.entries()}
    windows = [facts[f"layers.{i}.context"]["window"] for i in range(2)]
    assert windows == [config.sliding_window, None]
    assert facts["layers.0.context"]["sinks"] is True
    assert facts["layers.0.attn_out"]["bias"] is True
    assert facts["layers.0.expert_ids"]["top_k"] == config.num_experts_per_tok
    assert facts["layers.0.q_rope"]["scaling"]["scaling_factor"] == config.rope_parameters["factor"]


def test_lost_sinks_show_in_the_attention_of_their_layer_first(side: Side, taken: dict[str, Taken]) -> None:
    impl = side.loaded().model.layers[1].attn.attn.impl
    sinks, impl.sinks = impl.sinks, None
    try:
        changed = side.capture("decode")
    finally:
        impl.sinks = sinks
    assert differ(changed.file, taken["decode"].file)[0] == "layers.1.context"
    facts = {entry.name: entry.facts for entry in changed.file.entries()}
    assert (facts["layers.0.context"]["sinks"], facts["layers.1.context"]["sinks"]) == (True, False)
