"""Boundaries of many architectures: which there are, and that each holds what its operator's formula gives."""

from __future__ import annotations

import math
from typing import Any

import align_models
import pytest
import torch
import transformers
from logdiff_kernels.engines.transformers.align.scene import evaluation
from logdiff_kernels.engines.transformers.boundaries import discover
from logdiff_kernels.engines.transformers.boundaries.calls import Batch, Found, part_of
from logdiff_kernels.engines.transformers.boundaries.watch import Watch
from logdiff_kernels.models.random_weights import fill
from logdiff_kernels.models.recipes import RECIPES
from logdiff_kernels.observe.boundaries import names

DENSE = {
    *("input_norm", "q", "k", "v", "q_rope", "k_rope", "context", "attn_out", "attn_residual"),
    *("mlp_norm", "gate", "up", "act", "mlp_out", "residual"),
}
HEADS = {"q_norm", "k_norm"}
SANDWICH = {"attn_post_norm", "mlp_post_norm"}
FORWARD = {"gate", "up", "act", "mlp_out"}
EXPERTS = {"router_logits", "expert_ids", "expert_weights", "experts_out", "moe_out"}
SHARED = {"shared_gate", "shared_up", "shared_act", "shared_out"}
MOE = (DENSE - FORWARD) | EXPERTS
LATENT = ((MOE | SHARED) - {"k", "v"}) | {"kv_a", "kv_a_norm", "kv_b"}
QUERIES = {"q_a", "q_a_norm"}
PARALLEL = DENSE - {"attn_residual"}
UNGATED = {"gate"}

EXPECTED: dict[str, set[str]] = {
    **dict.fromkeys(("llama", "qwen2", "mistral", "phi3", "granite", "ernie", "llama-scaled", "qwen2-yarn"), DENSE),
    "qwen3": DENSE | HEADS,
    "qwen3-moe": MOE | HEADS,
    "mixtral": MOE,
    "gpt-oss": MOE,
    "qwen2-moe": MOE | SHARED | {"shared_scale"},
    "glm4-moe": MOE | SHARED,
    "gemma2": DENSE | SANDWICH,
    "glm4": DENSE | SANDWICH,
    "gemma3": DENSE | SANDWICH | HEADS,
    "olmo2": (DENSE | SANDWICH | HEADS) - {"input_norm", "mlp_norm"},
    "deepseek-v2": LATENT | QUERIES,
    "deepseek-v3": LATENT | QUERIES,
    "deepseek-v3-queries": LATENT,
    "glm4-moe-lite": LATENT | QUERIES,
    "smollm3": DENSE - {"q_rope", "k_rope"},  # the last layer has no rotation
    "stablelm": DENSE,
    "gpt-neox": PARALLEL - UNGATED,
    "gpt-neox-sequential": DENSE - UNGATED,
    "phi": PARALLEL - UNGATED - {"mlp_norm"},
    "cohere": PARALLEL - {"mlp_norm"},
    "gpt2": DENSE - UNGATED - {"q_rope", "k_rope"},
}
"""Boundaries of the last layer, by what the papers and configurations of these models say."""

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("GPTNeoXConfig", {}),
    "gpt-neox-sequential": ("GPTNeoXConfig", {"use_parallel_residual": False}),
    "phi": ("PhiConfig", {}),
    "cohere": ("CohereConfig", {}),
    "stablelm": ("StableLmConfig", {}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 2}),
}

LENGTH = 40
"""Beyond the windows of the small models."""


def model_of(name: str) -> Any:
    if name in align_models.COVERED:
        return align_models.covered(name)
    if name in MORE:
        return align_models.make(*MORE[name])
    recipe = RECIPES[name]
    settings = recipe.config | {"num_hidden_layers": 2, "vocab_size": 200}
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"][:2]
    build: Any = transformers.AutoModelForCausalLM.from_config
    config = getattr(transformers, recipe.config_class)(**settings, attn_implementation="eager")
    model = build(config, dtype=torch.float32).eval()
    fill(model, seed=1, std=0.08, norm_offset=recipe.norm_offset)
    return model


@pytest.mark.parametrize("name", EXPECTED)
def test_every_operator_of_an_architecture_has_its_boundary(name: str) -> None:
    model = model_of(name)
    coverage = discover(model)
    last = [p for p in coverage.places if p.name.startswith("layers.1.")]
    assert {p.name.rpartition(".")[2] for p in last} == EXPECTED[name]
    outside = [p.name for p in coverage.places if not p.name.startswith("layers.")]
    assert outside == ["embedding", "final_norm", "logits"]
    expected = {"transformer.wpe"} if name == "gpt2" else set()  # learned positions are no operator that is known
    assert {one["where"] for one in coverage.unmapped} == expected
    assert [p.name for p in coverage.places] == sorted((p.name for p in coverage.places), key=names.order)
    split = {"q_rope", "k_rope", "context", "kv_a_norm"} if "kv_a" in EXPECTED[name] else set()
    for place in coverage.places:
        if place.name.rpartition(".")[2] not in split:
            assert "" not in place.inputs, place.name
    assert not model._forward_hooks


@pytest.fixture(params=EXPECTED)
def passed(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Found]]:
    """(model, boundaries of one forward)."""
    model = model_of(request.param)
    found: dict[str, Found] = {}
    watch = Watch(model)
    watch.batch = Batch((1, LENGTH))
    watch.emit = lambda one: found.__setitem__(one.name, one)
    ids = torch.randint(200, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    with watch, evaluation(model):
        model(input_ids=ids, position_ids=torch.arange(LENGTH).unsqueeze(0), use_cache=False)
    return model, found


def close(found: torch.Tensor, expected: torch.Tensor, name: str, tolerance: float = 2e-5) -> None:
    error = float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-12))
    assert error < tolerance, f"{name}: {error}"


def test_every_boundary_holds_what_its_formula_gives_on_its_inputs(passed: Any) -> None:
    model, found = passed
    config = model.config.get_text_config(decoder=True)
    judged = set()
    for name, one in found.items():
        kind = names.operator(name)
        check = CHECKS.get(kind)
        if check is not None and check(one, found, config):
            judged.add(kind)
    assert {"linear", "norm", "add"} <= judged
    assert "attention" in judged or "layers.0.kv_a" in found
    assert {"rope", "activation"} & judged or config.model_type == "gpt_oss"


def linear(one: Found, _found: Any, _config: Any) -> bool:
    module = one.modules[0]
    weight = module.weight.double()
    weight = weight.T if type(module).__name__ == "Conv1D" else weight
    bias = getattr(module, "bias", None)
    whole = one.given[0].double() @ weight.T + (0.0 if bias is None else bias.double())
    columns = one.facts.get("columns")
    if columns:
        groups, start, stop = columns
        whole = whole.view(len(whole), groups, -1)[:, :, start:stop].reshape(len(whole), -1)
    close(one.values, whole, one.name)
    return True


def norm(one: Found, _found: Any, _config: Any) -> bool:
    module, facts = one.modules[0], one.facts
    size = module.weight.numel() if facts["weight"] and module.weight.ndim == 1 else None
    if size is None or one.given[0].shape[1] % size:
        return False
    x = one.given[0].double().view(len(one.values), -1, size)
    if facts["mean"]:
        x = x - x.mean(-1, keepdim=True)
    y = x / (x.square().mean(-1, keepdim=True) + facts["eps"]).sqrt() * (module.weight.double() + facts["offset"])
    bias = getattr(module, "bias", None)
    close(one.values, (y + (0.0 if bias is None else bias.double())).flatten(1), one.name)
    return True


def add(one: Found, found: dict[str, Found], config: Any) -> bool:
    terms = [t.double() for t in one.given]
    scale = float(getattr(config, "residual_multiplier", 1.0) or 1.0)
    layer = one.name.rpartition(".")[0]
    if one.name.endswith("moe_out"):
        scale = 1.0
        gate = found.get(f"{layer}.shared_scale")
        if gate is not None:
            terms = [terms[0], terms[1] * torch.sigmoid(terms[2])]
    close(one.values, terms[0] + scale * sum(terms[1:], torch.zeros(())), one.name)
    return True


def attention(one: Found, _found: Any, _config: Any) -> bool:
    facts = one.facts
    if facts["latent"]:
        return False
    n = len(one.values)
    q, k, v = (x.double().view(n, -1, size) for x, size in zip(one.given, _sizes(facts), strict=True))
    k, v = (x.repeat_interleave(facts["heads"] // facts["kv_heads"], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * facts["scale"]
    if facts["softcap"]:
        scores = facts["softcap"] * torch.tanh(scores / facts["softcap"])
    gap = torch.arange(n)[:, None] - torch.arange(n)
    seen = (gap >= 0) & (gap < (facts["window"] or n))
    scores = scores.masked_fill(~seen, -math.inf)
    if facts["sinks"]:
        sinks = one.modules[0].sinks.double()[:, None, None].expand(-1, n, 1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    close(one.values, torch.einsum("hqk,khd->qhd", weights, v).flatten(1), one.name)
    return True


def _sizes(facts: dict[str, Any]) -> tuple[int, int, int]:
    return facts["head_dim"], facts["head_dim"], facts["v_head_dim"]


def rope(one: Found, _found: Any, _config: Any) -> bool:
    """Without scaling: pairs are turned by position x theta^(-2 i / R)."""
    facts = one.facts
    if facts["scaling"].get("rope_type", "default") != "default" or one.values.shape != one.given[0].shape:
        return False
    width = facts["rotary_dim"]
    size = width if one.given[0].shape[1] % facts["head_dim"] or "_rope" not in one.name else facts["head_dim"]
    size = width if facts["layout"] == "deinterleaved" else size
    x = one.given[0].double().view(LENGTH, -1, size)
    angle = torch.arange(LENGTH).double()[:, None, None] * facts["theta"] ** (
        -torch.arange(0, width, 2).double() / width
    )
    turned, rest = x[..., :width], x[..., width:]
    halves = facts["layout"] == "halves"
    a, b = (turned[..., : width // 2], turned[..., width // 2 :]) if halves else (turned[..., 0::2], turned[..., 1::2])
    pair = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
    y = torch.stack(pair, -1).flatten(-2) if facts["layout"] == "interleaved" else torch.cat(pair, -1)
    close(one.values, torch.cat([y, rest], -1).flatten(1), one.name)
    return True


def activation(one: Found, _found: Any, _config: Any) -> bool:
    function = transformers.activations.ACT2FN[one.facts["activation"]]
    gate = function(one.given[0].double())
    close(one.values, gate * one.given[1].double() if one.facts["gated"] else gate, one.name)
    return True


CHECKS = {
    "linear": linear,
    "norm": norm,
    "add": add,
    "attention": attention,
    "rope": rope,
    "activation": activation,
}


def test_parts_of_fused_rows_are_found_wherever_they_lie() -> None:
    whole = torch.randn(5, 24, generator=torch.Generator().manual_seed(1))
    side = part_of(whole, whole[:, 8:16], 4)
    assert side is not None
    assert (side.groups, side.start, side.stop) == (1, 8, 16)
    grouped = part_of(whole, whole.view(5, 2, 12)[:, :, 4:8].reshape(5, -1), 4, (2,))
    assert grouped is not None
    assert (grouped.groups, grouped.start, grouped.stop) == (2, 4, 8)
    changed = whole[:, 8:16].clone()
    changed[4, 7] += 1
    assert part_of(whole, changed, 4, (2, 3)) is None


def test_rows_are_tokens_whatever_the_axes() -> None:
    batch = Batch((2, 3), torch.tensor([0, 4]))
    tokens = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    expected = tokens.reshape(6, 20)[[0, 4]]
    for shape in (tokens, tokens.transpose(1, 2), tokens.transpose(1, 2).contiguous(), tokens.reshape(2, 3, 20)):
        found = batch.rows(shape)
        assert found is not None
        assert torch.equal(found, expected)
    longer = torch.cat([torch.zeros(2, 4, 7, 5, dtype=torch.int64), tokens.transpose(1, 2)], dim=2)
    found = batch.rows(longer, heads_first=True)
    assert found is not None
    assert torch.equal(found, expected)
    assert batch.rows(torch.zeros(5, 20)) is None
    square = torch.arange(2 * 3 * 3 * 5).view(2, 3, 3, 5)  # as many heads as tokens: strides tell
    for shape in (square, square.transpose(1, 2)):
        found = batch.rows(shape)
        assert found is not None
        assert torch.equal(found, square.reshape(6, 15)[[0, 4]])
