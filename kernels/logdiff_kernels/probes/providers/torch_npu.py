"""Fused operators of torch_npu, called as vllm-ascend and MindSpeed call them. Not run on hardware.

Signatures: torch_npu's documentation of `npu_rms_norm`, `npu_add_rms_norm`, `npu_swiglu`, `npu_rotary_mul`,
`npu_moe_gating_top_k_softmax`, `npu_grouped_matmul` and `npu_fused_infer_attention_score`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.families.linear import by_expert
from logdiff_kernels.probes.families.norms import EPS
from logdiff_kernels.probes.providers.aligned import paging
from logdiff_kernels.probes.records import AbsentError, Impl, Layout, Provider, Sequence

MASK = 2048
"""Side of the compressed causal mask of sparse modes 2 to 4."""


def module() -> Any:
    """torch_npu. Raises `AbsentError`."""
    try:
        return import_module("torch_npu")
    except Exception as error:
        raise AbsentError(f"torch_npu can't be used here: {type(error).__name__}: {error}"[:300]) from None


def _about() -> str:
    return f"torch_npu {getattr(module(), '__version__', '?')}"


def _rms_norm(npu: Any) -> Callable[..., Any]:
    return lambda x, weight: npu.npu_rms_norm(x, weight, EPS)[0]


def _add_rms_norm(npu: Any) -> Callable[..., Any]:
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, _, total = npu.npu_add_rms_norm(x, residual, weight, EPS)
        return y, total

    return add_rms_norm


def _swiglu(npu: Any) -> Callable[..., Any]:
    return lambda gate, up: npu.npu_swiglu(torch.cat([gate, up], dim=-1))


def _rope(npu: Any) -> Callable[..., Any]:
    def rope(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x as [1, rows, heads, head_dim], tables [1, rows, 1, head_dim] in its dtype."""
        c, s = (torch.cat([t[position]] * 2, dim=-1)[None, :, None].to(x.dtype) for t in (cos, sin))
        return npu.npu_rotary_mul(x[None], c, s)[0]  # type: ignore[no-any-return]

    return rope


def _router(npu: Any) -> Callable[..., Any]:
    def router(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        weights, ids, _ = npu.npu_moe_gating_top_k_softmax(logits, finished=None, k=top_k)
        weights = weights.float()
        return weights / weights.sum(-1, keepdim=True), ids.long()

    return router


def _grouped(npu: Any) -> Callable[..., Any]:
    def grouped_linear(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
        def product(rows: Tensor, offsets: Tensor) -> Tensor:
            """group_list_type 1: counts of rows; weight [experts, k, n]."""
            return npu.npu_grouped_matmul(  # type: ignore[no-any-return]
                x=[rows], weight=[weight.transpose(1, 2)], split_item=2, group_list_type=1, group_type=0,
                group_list=offsets.diff(),
            )[0]  # fmt: skip

        return by_expert(product, x, expert, weight.shape[0])

    return grouped_linear


def infer_attention(score: Callable[..., Any]) -> Callable[[list[Sequence], Layout, dict[str, Any]], list[Tensor]]:
    """An `Impl.call` around `npu_fused_infer_attention_score` or a function with its arguments, as vllm-ascend's
    attention back end has it: TND queries, keys and values in pages [pages, page, kv_heads * head_dim]."""

    def attend(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        if fixed["softcap"] or fixed["sinks"] is not None:
            raise NotImplementedError("npu_fused_infer_attention_score has no soft cap, and no sinks in this mode")
        q, k, v = (torch.cat([one.parts[name] for one in listed]) for name in "qkv")
        queries, keys = [one.length for one in listed], [one.parts["k"].shape[0] for one in listed]
        table, slots, pages = paging(keys, layout.page, q.device)
        caches = []
        for x in (k, v):
            cache = torch.zeros(pages * layout.page, x.shape[1] * x.shape[2], dtype=x.dtype, device=x.device)
            cache[slots] = x.flatten(1)
            caches.append(cache.view(pages, layout.page, -1))
        mask = torch.ones(MASK, MASK, dtype=torch.int8, device=q.device).triu(1)
        options: dict[str, Any] = {"sparse_mode": 3}
        if fixed["window"]:
            options = {"sparse_mode": 4, "pre_tokens": fixed["window"], "next_tokens": 0}
        out, _ = score(
            query=q, key=caches[0], value=caches[1], atten_mask=mask, block_table=table, input_layout="TND",
            block_size=layout.page, actual_seq_lengths=torch.tensor(queries).cumsum(0).tolist(),
            actual_seq_lengths_kv=keys, num_key_value_heads=k.shape[1], num_heads=q.shape[1], scale=fixed["scale"],
            **options,
        )  # fmt: skip
        return list(torch.split(out.view(q.shape), queries))

    return attend


def _rows(make: Callable[[Any], Callable[..., Any]], **fields: Any) -> Callable[[str, str], Impl]:
    return lambda device, dtype: Impl(make(module()), gradients=False, about=_about(), **fields)


def _attention(device: str, dtype: str) -> Impl:
    call = infer_attention(module().npu_fused_infer_attention_score)
    return Impl(call, layouts=("paged",), pages=(128, 256), gradients=False, about=_about())


PROVIDERS = (
    Provider(
        "torch_npu",
        ("npu",),
        {
            "rms_norm": _rows(_rms_norm, leading=True),
            "add_rms_norm": _rows(_add_rms_norm, leading=True),
            "swiglu": _rows(_swiglu, leading=True),
            "rope": _rows(_rope),
            "router": _rows(_router),
            "grouped_linear": _rows(_grouped),
            "attention": _attention,
        },
        "fused operators; not run on hardware",
    ),
)
