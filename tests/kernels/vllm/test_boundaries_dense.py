"""Captures of a dense vLLM: bits untouched, rows logical, edges found, a planted change seen where it was planted."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.errors import InputError, UnsupportedError  # noqa: E402

from tests.kernels.vllm.boundary_sides import (  # noqa: E402
    NOISE,
    SHARED,
    Side,
    Taken,
    away,
    connected,
    differ,
    in_process,
    paired,
    received,
    side,
    taken,
)

pytestmark = pytest.mark.slow(seconds=120)
PHASES = ("decode", "prefill")
BLOCK = 32
MODEL = "qwen3"
ARGUMENTS = {"block_size": BLOCK, "max_num_batched_tokens": 24, "max_num_seqs": 4, "enable_prefix_caching": True}

_ = in_process, side, taken


@pytest.mark.parametrize("phase", PHASES)
def test_a_capture_changes_no_bit(side: Side, taken: dict[str, Taken], phase: str) -> None:
    assert taken[phase].logprobs == side.logprobs(phase)
    assert taken[phase].logprobs == taken[phase].file.tensor("logprob").numpy().tobytes()
    assert taken[phase].data["notes"] == taken[phase].file.header.notes


@pytest.mark.parametrize("phase", PHASES)
def test_chunked_prompts_give_every_row_its_id_and_position(side: Side, taken: dict[str, Taken], phase: str) -> None:
    received(side, taken[phase].file, phase)
    connected(taken[phase].file)
    assert taken[phase].data["passes"] > 4  # 24 tokens per step, 167 of them


def test_rows_of_the_prefix_cache_are_told_and_keep_keys_and_values(taken: dict[str, Taken]) -> None:
    file = taken["decode"].file
    rows = SHARED // BLOCK * BLOCK
    assert file.header.extra["cached"] == {"s3": {"rows": rows, "same_as": "s2"}}
    assert any("prefix cache" in note for note in file.header.notes)
    sample, position = file.tensor("rows.sample"), file.tensor("rows.position")
    for name in ("layers.1.k_rope", "layers.1.v"):
        there = file.rows(name)
        values = file.tensor(name)
        own = values[(sample[there] == 3) & (position[there] < rows)]
        theirs = values[(sample[there] == 2) & (position[there] < rows)]
        assert len(own) == rows
        assert torch.equal(own, theirs)
    computed = file.rows("layers.1.q")
    assert int(((sample[computed] == 3) & (position[computed] < rows)).sum()) == 0


def test_phases_agree_within_rounding(taken: dict[str, Taken]) -> None:
    decode, prefill = taken["decode"].file, taken["prefill"].file
    assert {e.name for e in decode.entries()} == {e.name for e in prefill.entries()}
    assert torch.equal(*paired(decode, prefill, "embedding"))
    assert all(away(decode, prefill, entry.name) < NOISE for entry in decode.entries())


def test_rows_agree_with_those_of_transformers(side: Side, taken: dict[str, Taken]) -> None:
    score = side.score()
    mine = {entry.name for entry in taken["prefill"].file.entries()}
    assert mine == {entry.name for entry in score.entries()}
    assert torch.equal(*paired(taken["prefill"].file, score, "embedding"))
    for phase in PHASES:
        received_by = {name: paired(taken[phase].file, score, name) for name in ("embedding", "logits")}
        assert received_by["logits"][0].shape[1] == 1024
        far = {name: away(taken[phase].file, score, name) for name in mine}
        assert max(far.values()) < NOISE, max(far.items(), key=lambda item: item[1])


def test_facts_are_those_of_the_model(side: Side, taken: dict[str, Taken]) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(side.model)
    facts = {entry.name: entry.facts for entry in taken["decode"].file.entries()}
    assert facts["layers.0.input_norm"]["eps"] == config.rms_norm_eps
    assert facts["layers.0.q_rope"]["theta"] == config.rope_parameters["rope_theta"]
    assert facts["layers.0.q_rope"]["layout"] == "halves"
    assert facts["layers.2.context"]["scale"] == config.head_dim**-0.5
    assert facts["layers.2.context"]["window"] is None
    assert (facts["layers.2.context"]["heads"], facts["layers.2.context"]["kv_heads"]) == (4, 2)
    assert facts["logits"]["softcap"] is None
    assert facts["layers.1.mlp_norm"]["fused_add"]


def scaled(module: Any, factor: float) -> Any:
    """A hook that multiplies what a module leaves."""

    def change(_module: Any, _arguments: Any, output: Any) -> Any:
        return (
            tuple(factor * t if isinstance(t, torch.Tensor) else t for t in output)
            if isinstance(output, tuple)
            else factor * output
        )

    return module.register_forward_hook(change)


PLANTED = {
    "layers.2.context": lambda layers: layers[2].self_attn.attn,
    "layers.1.q_norm": lambda layers: layers[1].self_attn.q_norm,
    "layers.1.attn_out": lambda layers: layers[1].self_attn.o_proj,
    "layers.2.act": lambda layers: layers[2].mlp.act_fn,
    "layers.3.mlp_out": lambda layers: layers[3].mlp.down_proj,
}


@pytest.mark.parametrize("boundary", PLANTED)
def test_a_planted_change_shows_in_its_boundary_first(side: Side, taken: dict[str, Taken], boundary: str) -> None:
    module = PLANTED[boundary](side.loaded().model.layers)
    handle = scaled(module, 1.25)
    try:
        changed = side.capture("decode", samples=["s0", "s1"])
    finally:
        handle.remove()
    assert differ(changed.file, taken["decode"].file)[0] == boundary


def test_positions_are_those_that_the_rotation_received(side: Side) -> None:
    rotary = side.loaded().model.layers[0].self_attn.rotary_emb

    def later(_module: Any, arguments: tuple[Any, ...]) -> Any:
        return (arguments[0] + 3, *arguments[1:])

    handle = rotary.register_forward_pre_hook(later)
    try:
        file = side.capture("prefill", samples=["s0"]).file
    finally:
        handle.remove()
    assert file.tensor("rows.position_id").tolist() == [p + 3 for p in file.tensor("rows.position").tolist()]
    assert any("other positions" in note for note in file.header.notes)


def test_only_what_is_asked_for_is_kept(side: Side, taken: dict[str, Taken]) -> None:
    file = side.capture("decode", samples=["s1"], boundaries=["layers.1.*", "logits"], rows={"last": 3}).file
    assert file.header.sample_ids == ["s1"]
    assert all(e.name == "logits" or e.name.startswith("layers.1.") for e in file.entries())
    fed = len(side.source.prompts[1]) + len(side.source.responses[1]) - 1
    assert len(file.rows("layers.1.k_rope")) == len(file.rows("layers.1.v")) == fed
    assert file.tensor("rows.position")[file.rows("layers.1.context")].tolist() == [fed - 3, fed - 2, fed - 1]
    whole = taken["decode"].file
    kept = (whole.tensor("rows.sample") == 1).nonzero()[:, 0][-3:]
    assert torch.equal(
        file.tensor("layers.1.context"),
        whole.tensor("layers.1.context")[torch.isin(whole.rows("layers.1.context"), kept)],
    )


def test_a_sketch_has_the_hashes_of_the_rows(side: Side, taken: dict[str, Taken]) -> None:
    from logdiff_kernels.observe.boundaries.rowhash import row_hash

    file = side.capture("prefill", level="sketch").file
    name = "layers.2.mlp_out"
    assert torch.equal(file.tensor(f"{name}#hash"), row_hash(taken["prefill"].file.tensor(name)))


def test_a_model_that_is_not_seen_to_run_is_no_empty_success(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.engines.vllm.boundaries.hooks import ModelHooks

    monkeypatch.setattr(ModelHooks, "install", lambda _self: None)
    with pytest.raises(UnsupportedError, match="no module of its model was seen to run"):
        side.capture("decode")
    monkeypatch.undo()
    assert side.capture("decode").data["boundaries"] > 50  # nothing of the failed one is left


def test_a_layer_that_cannot_be_placed_is_unmapped_and_the_engine_lives(
    side: Side, taken: dict[str, Taken], monkeypatch: pytest.MonkeyPatch
) -> None:
    from logdiff_kernels.engines.vllm.boundaries import worker

    stock = worker.place_layer

    def unknown(layer: int, *arguments: Any) -> Any:
        if layer == 2:
            raise KeyError("mixer")
        return stock(layer, *arguments)

    monkeypatch.setattr(worker, "place_layer", unknown)
    found = side.capture("decode")
    assert found.logprobs == taken["decode"].logprobs
    assert {"where": "model.layers.2", "why": "its calls could not be placed: KeyError: 'mixer'"} in found.data[
        "unmapped"
    ]
    assert {e.name for e in taken["decode"].file.entries()} - {e.name for e in found.file.entries()} == {
        name for name in (e.name for e in taken["decode"].file.entries())
        if (name.startswith("layers.2.") and name != "layers.2.residual") or name == "layers.1.residual"
    }  # fmt: skip


def test_a_rollout_engine_has_no_score_phase(side: Side) -> None:
    with pytest.raises(UnsupportedError, match="score"):
        side.run(task="capture", phase="score", input=str(side.tokens), output="x", logprobs="y")


ROWWISE = ("embedding", "layers.2.mlp_norm", "layers.1.k", "layers.1.k_norm", "layers.1.q_rope", "layers.1.k_rope",
           "layers.1.attn_out", "layers.0.up", "layers.0.act", "layers.3.mlp_out", "logits")  # fmt: skip


@pytest.mark.parametrize("boundary", ROWWISE)
def test_an_operator_fed_its_own_inputs_leaves_its_own_rows(side: Side, taken: dict[str, Taken], boundary: str) -> None:
    file = taken["prefill"].file
    swapped = side.swap(boundary, file)
    assert len(swapped.rows(boundary)) == len(file.rows(boundary))
    assert away(swapped, file, boundary) < 0.004  # other shapes of one kernel, at most a rounding of each


def test_an_operator_that_is_changed_is_seen_in_a_swap(side: Side, taken: dict[str, Taken]) -> None:
    file, boundary = taken["prefill"].file, "layers.1.attn_out"
    handle = scaled(side.loaded().model.layers[1].self_attn.o_proj, 1.25)
    try:
        swapped = side.swap(boundary, file)
    finally:
        handle.remove()
    assert away(swapped, file, boundary) == pytest.approx(0.25, abs=0.01)


def test_attention_and_unknown_boundaries_are_no_swap(side: Side, taken: dict[str, Taken]) -> None:
    with pytest.raises(UnsupportedError, match="row by row"):
        side.swap("layers.1.context", taken["prefill"].file)
    with pytest.raises(InputError, match=r"layers\.9\.q"):
        side.swap("layers.9.q", taken["prefill"].file)
