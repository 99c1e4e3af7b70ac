"""Faults planted in a model's own modules are found, named, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.check.conftest import Bench, best, off

Plant = Callable[[Any, random.Random], tuple[set[str], str | None]]


def _layer(model: Any, draw: random.Random) -> tuple[int, Any]:
    number = draw.randrange(len(model.model.layers))
    return number, model.model.layers[number]


def norm_eps(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.post_attention_layernorm.variance_epsilon = draw.choice([1e-5, 1e-4])
    return {f"layers.{n}.mlp_norm"}, "norm-eps"


def norm_offset(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.input_layernorm.weight.data += 1
    return {f"layers.{n}.input_norm"}, "norm-offset"


def qk_norm_missing(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    which = draw.choice("qk")
    getattr(layer.self_attn, f"{which}_norm").forward = lambda x: x
    return {f"layers.{n}.{which}_norm"}, "qk-norm-missing"


def rope_theta(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    inv_freq = model.model.rotary_emb.inv_freq
    share = torch.arange(len(inv_freq)) / len(inv_freq)
    inv_freq.copy_(draw.uniform(2e4, 9e5) ** -share)
    layers = range(len(model.model.layers))
    return {f"layers.{n}.{k}_rope" for n in layers for k in "qk"}, "rope-theta"


def attention_scale(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.self_attn.scaling *= draw.uniform(1.1, 1.5)
    return {f"layers.{n}.context"}, "attention-scale"


def window(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    model.config.sliding_window += draw.choice([-1, 1])
    return {f"layers.{n}.context" for n in range(len(model.model.layers))}, "window-off-by-one"


def softcap(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.self_attn.attn_logit_softcapping = None
    return {f"layers.{n}.context"}, "attention-softcap-dropped"


def final_softcap(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    model.config.final_logit_softcapping = None
    return {"logits"}, "final-softcap-dropped"


def sinks(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.self_attn.sinks.data.fill_(-1e4)
    return {f"layers.{n}.context"}, "sinks-dropped"


def activation(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.mlp.act_fn = torch.nn.GELU()
    return {f"layers.{n}.act"}, "activation-kind"


def bias(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    which = draw.choice("qkv")
    getattr(layer.self_attn, f"{which}_proj").bias.data.zero_()
    return {f"layers.{n}.{which}"}, "bias-missing"


def reduced_twice(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.mlp.down_proj.register_forward_hook(lambda _m, _a, o: o * 2)
    return {f"layers.{n}.mlp_out"}, "reduce-twice"


def embedding_scale(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    model.model.embed_tokens.embed_scale.fill_(1.0)
    return {"embedding"}, "embedding-scale"


def weights(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    w = layer.self_attn.v_proj.weight.data
    w += 0.3 * w.float().std() * torch.randn(w.shape, generator=torch.Generator().manual_seed(draw.randrange(99)))
    return {f"layers.{n}.v"}, "weights-changed"


def other_layer(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    other = model.model.layers[(n + 1) % len(model.model.layers)]
    layer.mlp.up_proj.weight.data.copy_(other.mlp.up_proj.weight)
    return {f"layers.{n}.up"}, "weights-changed"


def heads_permuted(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.self_attn.v_proj.register_forward_hook(lambda _m, _a, o: o.unflatten(-1, (2, -1)).flip(-2).flatten(-2))
    return {f"layers.{n}.v"}, "kv-heads-permuted"


def not_renormalised(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    layer.mlp.gate.norm_topk_prob = False
    return {f"layers.{n}.expert_weights"}, "router-not-renormalised"


def experts_swapped(model: Any, draw: random.Random) -> tuple[set[str], str | None]:
    n, layer = _layer(model, draw)
    w = layer.mlp.experts.gate_up_proj.data
    w.copy_(torch.cat(w.clone().chunk(2, 1)[::-1], 1))
    return {f"layers.{n}.experts_out"}, "expert-weights-swapped"


PLANTS: list[tuple[str, Plant]] = [
    ("qwen3", qk_norm_missing), ("llama", norm_offset), ("llama", rope_theta), ("qwen3", attention_scale),
    ("mistral", window), ("gemma2", softcap), ("gemma2", final_softcap), ("gpt-oss", sinks), ("llama", activation),
    ("qwen2", bias), ("llama", reduced_twice), ("gemma3", embedding_scale), ("llama", other_layer),
    ("llama", heads_permuted), ("qwen3-moe", not_renormalised), ("qwen3-moe", experts_swapped),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("name", "plant"), PLANTS, ids=[p.__name__ for _, p in PLANTS])
def test_a_planted_fault_is_found_at_its_boundary_with_its_cause(
    name: str, plant: Plant, dtype: str, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    one = bench(name, dtype)
    model = one.changed()
    where, cause = plant(model, random.Random(f"{plant.__name__}-{dtype}"))
    found = off(one.report(model, tmp_path))
    assert set(found) == where
    assert {best(check)["cause"] for check in found.values()} == {cause}


def test_a_changed_eps_far_below_rounding_is_found(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama", "float32")
    model = one.changed()
    where, cause = norm_eps(model, random.Random(3))
    document = one.report(model, tmp_path)
    found = off(document)
    assert set(found) == where
    check = next(iter(found.values()))
    assert best(check)["cause"] == cause
    assert check["normal"] < 200  # of elements whose rounding is 1e-7 of them


def test_a_change_that_drowns_in_rounding_accuses_nothing_else(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("qwen3", "bfloat16")
    model = one.changed()
    model.model.layers[1].self_attn.scaling *= 1.002
    found = off(one.report(model, tmp_path))
    assert set(found) <= {"layers.1.context"}  # too small to be sure of, and nothing else is accused


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_other_weights_are_told_where_rows_outnumber_features(
    dtype: str, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    one = bench("llama", dtype, lengths=(180, 190, 200))
    model = one.changed()
    where, cause = weights(model, random.Random(5))
    found = off(one.report(model, tmp_path))
    assert set(found) == where
    assert {best(check)["cause"] for check in found.values()} == {cause}


def test_an_adapter_of_one_side_is_told_by_its_rank(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama")
    model = one.changed()
    generator = torch.Generator().manual_seed(3)
    w = model.model.layers[3].self_attn.q_proj.weight.data
    a, b = torch.randn(w.shape[0], 4, generator=generator), torch.randn(4, w.shape[1], generator=generator)
    w += (0.02 * a @ b).to(w.dtype)
    found = off(one.report(model, tmp_path))
    assert set(found) == {"layers.3.q"}
    assert best(found["layers.3.q"])["cause"] == "lora-missing"
    assert best(found["layers.3.q"])["parameters"]["rank"] == 4


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        (lambda z, t: torch.log_softmax(z.float(), -1).gather(-1, t[:, None])[:, 0], "temperature-missing-train"),
        (lambda z, t: torch.log_softmax(z.float() / 0.49, -1).gather(-1, t[:, None])[:, 0], "temperature-twice"),
        (lambda z, t: torch.log_softmax(z.float() / 0.7, -1).amax(-1), "logprob-of-other-token"),
        (
            lambda z, t: torch.log_softmax(z.float() / 0.7, -1).gather(-1, t[:, None])[:, 0].bfloat16(),
            "logprob-rounded",
        ),
    ],
)
def test_logprobs_that_are_something_else(lie: Any, cause: str, bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama", "float32", 0.7)
    found = off(one.report(one.model, tmp_path, logprob=lie))
    assert set(found) == {"logprob"}
    assert best(found["logprob"])["cause"] == cause


def test_a_fault_of_decoding_alone_has_its_onset(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama")
    model = one.changed()
    model.model.layers[2].mlp.down_proj.register_forward_hook(lambda _m, _a, o: o * 1.1 if o.shape[1] == 1 else o)
    found = off(one.report(model, tmp_path, phase="decode", side="rollout"))
    assert set(found) == {"layers.2.mlp_out"}
    assert found["layers.2.mlp_out"]["onset"]["kind"] == "decode"
    assert best(found["layers.2.mlp_out"])["parameters"]["factor"] == pytest.approx(1.1, rel=5e-3)


def test_a_fault_in_one_head_is_told_by_its_head(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama")
    model = one.changed()

    def halve(_m: Any, _a: Any, o: torch.Tensor) -> torch.Tensor:
        o = o.clone()
        o[..., 128:192] *= 0.5
        return o

    model.model.layers[0].self_attn.q_proj.register_forward_hook(halve)
    found = off(one.report(model, tmp_path))
    assert set(found) == {"layers.0.q"}
    assert found["layers.0.q"]["onset"]["heads"] == [2]


def test_rows_that_an_operator_was_not_due_are_an_edge(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama")
    model = one.changed()
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda _m, a: (a[0] * 0.9,))
    document = one.report(model, tmp_path)
    edges = [i for i in document["inputs"] if i["what"] == "edge" and not i["ok"]]
    assert off(document) == {}
    assert [e["boundary"] for e in edges] == ["layers.1.attn_out"]
    assert "times 0.9" in edges[0]["detail"]


@pytest.mark.parametrize(
    ("prepare", "what", "cause"),
    [
        (lambda n, ids, p: (ids.roll(1), p), "ids", "shifted-by-one"),
        (lambda n, ids, p: (ids, p + 3 * (p >= 17)), "positions", "position-offset"),
        (lambda n, ids, p: (ids, p % 20), "positions", "position-per-pack"),
    ],
)
def test_wrong_ids_and_positions_are_inputs_and_not_operators(
    prepare: Any, what: str, cause: str, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    one = bench("llama")
    document = one.report(one.model, tmp_path, prepare=prepare)
    wrong = {i["what"]: i for i in document["inputs"] if not i["ok"]}
    assert set(wrong) == {what}
    assert wrong[what]["cause"] == cause


def test_a_constant_offset_of_positions_is_harmless(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama")
    document = one.report(one.model, tmp_path, prepare=lambda n, ids, p: (ids, p + 5 * n))
    assert all(i["ok"] for i in document["inputs"])
    assert "constant" in next(i["detail"] for i in document["inputs"] if i["what"] == "positions")
    assert off(document) == {}


def test_a_rotation_with_a_coarse_table_is_named(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama", "float32")
    model = one.changed()
    rotary = model.model.rotary_emb
    stock = rotary.forward
    rotary.forward = lambda *a, **k: tuple(t.to(torch.bfloat16).to(t.dtype) for t in stock(*a, **k))
    found = off(one.report(model, tmp_path))
    assert found
    assert all(name.endswith("_rope") for name in found)
    assert {best(check)["cause"] for check in found.values()} == {"rope-rounding"}
