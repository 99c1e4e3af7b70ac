"""Latent attention in Transformers runs absorbed: one latent head, the up-projection in the query and the output."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from align_models import covered, make
from logdiff_kernels import ops
from logdiff_kernels.align import OPERATORS, AlignSpec
from logdiff_kernels.engines.transformers.align import apply
from logdiff_kernels.errors import UnsupportedError

IDS = torch.tensor([[5, 9, 170, 31, 8, 77, 120, 3, 44, 44, 61, 199, 10, 11, 12, 13, 14, 90, 91, 92]])
ATTENTION = AlignSpec(frozenset({"attention"}))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def test_attention_sees_one_latent_head_and_the_scores_are_over_latent_then_rotated_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    model = covered("deepseek-v3", torch.bfloat16)
    handle = apply(model, AlignSpec())
    attention = ops.attention

    def record(q: Any, k: Any, v: Any, *rest: Any, **more: Any) -> Any:
        seen.append((q.shape[1:], k.shape[1:], v.shape[1:], more["scale"], bool((k[..., : v.shape[-1]] == v).all())))
        return attention(q, k, v, *rest, **more)

    monkeypatch.setattr(ops, "attention", record)
    logits(model)
    assert seen == [((4, 32 + 8), (1, 32 + 8), (1, 32), (16 + 8) ** -0.5, True)] * 2
    report = handle.report()
    assert report is not None
    assert report["operators"]["attention"] == {"layers": 2, "latent": 2}
    assert "model.layers.0.self_attn.expand_kv -> attention" in handle.patched()


def test_absorbed_bits_are_not_those_of_the_expanded_form() -> None:
    """Positive control: the same operators over expanded keys and values round elsewhere."""
    model = covered("deepseek-v3", torch.bfloat16)
    handle = apply(model, AlignSpec())
    absorbed = logits(model)
    for layer in model.model.layers:
        for key in ("expand_kv", "_logdiff_latent"):
            del layer.self_attn.__dict__[key]
    expanded = logits(model)
    handle.restore()
    assert not torch.equal(absorbed, expanded)
    assert torch.allclose(absorbed, expanded, rtol=0, atol=0.1 * float(expanded.abs().max()))


@pytest.mark.parametrize("op", ["attention", "router"])
def test_a_part_left_stock_shows(op: str) -> None:
    model = covered("deepseek-v3")
    handle = apply(model, AlignSpec())
    whole = logits(model)
    handle.restore()
    apply(model, AlignSpec(frozenset(OPERATORS) - {op}))
    assert not torch.equal(logits(model), whole)


def test_the_latents_stay_the_cache() -> None:
    from transformers import DynamicCache

    model = covered("deepseek-v3")
    apply(model, AlignSpec())
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=IDS, past_key_values=cache)
    assert cache.layers[0].keys.shape == (1, 1, IDS.shape[1], 32)
    assert cache.layers[0].values.shape == (1, 1, IDS.shape[1], 8)


def _other_rule(self: Any, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = type(self).stock_expansion(self, kv_nope, k_rot)
    return key, 2.0 * value


def test_an_expansion_by_another_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = covered("deepseek-v3")
    kind = type(model.model.layers[0].self_attn)
    monkeypatch.setattr(kind, "stock_expansion", kind.expand_kv, raising=False)
    monkeypatch.setattr(kind, "expand_kv", _other_rule)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*one plain product"):
        apply(model, ATTENTION)
    monkeypatch.delattr(kind, "expand_kv")
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*in its own code"):
        apply(model, ATTENTION)


def test_a_biased_up_projection_is_refused() -> None:
    model = covered("deepseek-v3")
    model.model.layers[1].self_attn.kv_b_proj.bias = torch.nn.Parameter(torch.zeros(128))
    with pytest.raises(UnsupportedError, match=r"layers\.1\.self_attn"):
        apply(model, ATTENTION)


def test_sparse_attention_is_refused_by_its_indexer() -> None:
    sizes = {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16}
    model = make("DeepseekV32Config", sizes | {"qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 2})
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*indexer"):
        apply(model, ATTENTION)


def test_queries_of_other_heads_are_refused_at_the_call() -> None:
    from logdiff_kernels.engines.transformers.align import latent

    model = covered("deepseek-v3")
    apply(model, ATTENTION)
    layer = model.model.layers[0].self_attn
    with pytest.raises(UnsupportedError, match="4 heads of 24"):
        latent.query(layer, torch.zeros(3, 2, 24))
    assert isinstance(layer.__dict__["expand_kv"], MethodType)
