"""Transformers' modules and functions as a model's forward pass calls them (imported on first use)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.families.norms import EPS
from logdiff_kernels.probes.providers.sdpa import LAYOUTS, by_layout, head_split, plain_only
from logdiff_kernels.probes.records import AbsentError, Impl, Layout, Provider, Sequence

DENSE = "transformers.models.qwen3.modeling_qwen3"
EXPERTS = "transformers.models.qwen3_moe.modeling_qwen3_moe"
NEXT = "transformers.models.qwen3_next.modeling_qwen3_next"


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise AbsentError(f"Transformers can't be used here: {error}") from None


def _about() -> str:
    return f"transformers {metadata.version('transformers')} torch {torch.__version__}"


def _without_weights(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(config)


def _norm() -> Callable[..., Tensor]:
    kind = _module(DENSE).Qwen3RMSNorm

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        with torch.device("meta"):
            module = kind(x.shape[-1], EPS)
        y: Tensor = torch.func.functional_call(module, {"weight": weight}, (x,))
        return y

    return rms_norm


def _added() -> Callable[..., tuple[Tensor, Tensor]]:
    norm = _norm()

    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = residual + x
        return norm(total, weight), total

    return add_rms_norm


def _rope() -> Callable[..., Tensor]:
    turn = _module(DENSE).apply_rotary_pos_emb

    def rope(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Tables in the dtype of x, [1, rows, head_dim], heads second, as in a model."""
        c, s = (torch.cat([t[position]] * 2, dim=-1)[None].to(x.dtype) for t in (cos, sin))
        q = x[None].transpose(1, 2)
        turned: Tensor = turn(q, q, c, s)[0][0].transpose(0, 1)
        return turned

    return rope


def _swiglu() -> Callable[..., Tensor]:
    act = _module("transformers.activations").ACT2FN["silu"]
    return lambda gate, up: act(gate) * up


def _geglu() -> Callable[..., Tensor]:
    act = _module("transformers.activations").ACT2FN["gelu_pytorch_tanh"]
    return lambda gate, up: act(gate) * up


def _experts() -> Callable[..., Tensor]:
    module = _module(EXPERTS)
    config_of = _module("transformers.models.qwen3_moe.configuration_qwen3_moe").Qwen3MoeConfig

    def moe(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        config = config_of(
            num_experts=gate_up.shape[0], hidden_size=x.shape[1], moe_intermediate_size=down.shape[2],
            hidden_act="silu", experts_implementation="eager",
        )  # fmt: skip
        experts = _without_weights(module.Qwen3MoeExperts, config)
        y: Tensor = torch.func.functional_call(
            experts, {"gate_up_proj": gate_up, "down_proj": down}, (x, ids, weights.to(x.dtype))
        )
        return y

    return moe


def _router() -> Callable[..., tuple[Tensor, Tensor]]:
    kind = _module(EXPERTS).Qwen3MoeTopKRouter

    def router(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        """The module with the identity as its weight: its product gives the logits back exactly."""
        width = logits.shape[-1]
        config = SimpleNamespace(num_experts_per_tok=top_k, num_experts=width, norm_topk_prob=True, hidden_size=width)
        module = _without_weights(kind, config)
        eye = torch.eye(width, dtype=logits.dtype, device=logits.device)
        _, weights, ids = torch.func.functional_call(module, {"weight": eye}, (logits,))
        return weights, ids

    return router


def _eager_attention() -> Callable[..., list[Tensor]]:
    forward = _module(DENSE).eager_attention_forward

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, fixed: dict[str, Any]) -> Tensor:
        plain_only(fixed, "eager attention of Qwen3")
        if mask is None and causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        if mask is not None:
            low = torch.finfo(q.dtype).min
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, low)
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
        return forward(module, q, k, v, mask, scaling=fixed["scale"])[0].transpose(1, 2)  # type: ignore[no-any-return]

    return by_layout(attend)


def _sdpa_attention() -> Callable[..., list[Tensor]]:
    forward = _module("transformers.integrations.sdpa_attention").sdpa_attention_forward

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, fixed: dict[str, Any]) -> Tensor:
        plain_only(fixed, "SDPA attention of Transformers")
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False, is_causal=causal)
        out = forward(module, q, k, v, mask, scaling=fixed["scale"], is_causal=causal)[0]
        return out.transpose(1, 2)  # type: ignore[no-any-return]

    return by_layout(attend)


def _delta_rule() -> Impl:
    module = _module(NEXT)
    names = ("q", "k", "v", "g", "beta")

    def call(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        inputs = [torch.stack([one.parts[name] for one in listed]) for name in names]
        out = module.torch_chunk_gated_delta_rule(*inputs)[0]
        return list(out)

    def pieces(one: Sequence, bounds: list[int], fixed: dict[str, Any]) -> Tensor:
        """Longer pieces by the chunked form, single tokens by the recurrent one, as prefill and decode do."""
        state, found = None, []
        for a, b in pairwise(bounds):
            rule = module.torch_recurrent_gated_delta_rule if b - a == 1 else module.torch_chunk_gated_delta_rule
            inputs = [one.parts[name][None, a:b] for name in names]
            out, state = rule(*inputs, initial_state=state, output_final_state=True)
            found.append(out[0])
        return torch.cat(found)

    return Impl(call, layouts=("single", "stacked"), pieces=pieces, gradients=False, about=_about())


def _rows(make: Callable[[], Callable[..., Any]], *, leading: bool = True) -> Callable[[str, str], Impl]:
    return lambda device, dtype: Impl(make(), leading=leading, about=_about())


def _attention(make: Callable[[], Callable[..., list[Tensor]]]) -> Callable[[str, str], Impl]:
    def maker(device: str, dtype: str) -> Impl:
        call = make()
        return Impl(call, layouts=LAYOUTS, split=head_split(call, "single"), about=_about())

    return maker


_DEVICES = ("cpu", "cuda", "npu")
PROVIDERS = (
    Provider(
        "transformers",
        _DEVICES,
        {
            "rms_norm": _rows(_norm),
            "add_rms_norm": _rows(_added),
            "rope": _rows(_rope, leading=False),
            "swiglu": _rows(_swiglu),
            "geglu_tanh": _rows(_geglu),
            "router": _rows(_router, leading=False),
            "moe": _rows(_experts, leading=False),
            "attention": _attention(_eager_attention),
            "gated_delta_rule": lambda device, dtype: _delta_rule(),
        },
        "modules of Qwen3, Qwen3-MoE and Qwen3-Next; attention: eager",
    ),
    Provider("transformers_sdpa", _DEVICES, {"attention": _attention(_sdpa_attention)}, "attention: sdpa"),
)
