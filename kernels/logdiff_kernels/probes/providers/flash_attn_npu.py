"""flash_attn_npu (v2, training: varlen) and flash_attn_npu_v3 (rollout: paged KV cache). Not run on hardware.

v3 is called as vllm-ascend's fa3_v1 calls it: decode rows with causal False, prefill rows with causal True. v2 as
MindSpeed calls it. Signatures: flash_attn_npu.flash_attn_varlen_func, flash_attn_npu_v3.flash_attn_with_kvcache.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.providers.aligned import paging, starts
from logdiff_kernels.probes.providers.sdpa import head_split, plain_only
from logdiff_kernels.probes.records import AbsentError, Impl, Layout, Provider, Sequence


def _function(package: str, name: str) -> Any:
    try:
        return getattr(import_module(package), name)
    except Exception as error:
        raise AbsentError(f"{package} can't be used here: {type(error).__name__}: {error}"[:300]) from None


def _check(fixed: dict[str, Any], who: str) -> None:
    plain_only(fixed, who)
    if fixed["window"]:
        raise NotImplementedError(f"{who} has no sliding window on this path")


def _varlen(device: str, dtype: str) -> Impl:
    varlen = _function("flash_attn_npu", "flash_attn_varlen_func")

    def attend(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        _check(fixed, "flash_attn_varlen_func")
        q, k, v = (torch.cat([one.parts[name] for one in listed]) for name in "qkv")
        queries, keys = [one.length for one in listed], [one.parts["k"].shape[0] for one in listed]
        out = varlen(
            q, k, v, cu_seqlens_q=starts(queries, q.device), cu_seqlens_k=starts(keys, q.device),
            max_seqlen_q=max(queries), max_seqlen_k=max(keys), dropout_p=0.0, softmax_scale=fixed["scale"], causal=True,
            deterministic=False,
        )  # fmt: skip
        return list(torch.split(out, queries))

    return Impl(attend, layouts=("packed",), split=head_split(attend, "packed"), about="flash_attn_npu v2")


def _kvcache(device: str, dtype: str) -> Impl:
    kvcache = _function("flash_attn_npu_v3", "flash_attn_with_kvcache")

    def attend(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        _check(fixed, "flash_attn_with_kvcache")
        q, k, v = (torch.cat([one.parts[name] for one in listed]) for name in "qkv")
        queries, keys = [one.length for one in listed], [one.parts["k"].shape[0] for one in listed]
        table, slots, pages = paging(keys, layout.page, q.device)
        caches = []
        for x in (k, v):
            cache = torch.zeros(pages * layout.page, *x.shape[1:], dtype=x.dtype, device=x.device)
            cache[slots] = x
            caches.append(cache.view(pages, layout.page, *x.shape[1:]))
        out = kvcache(
            q, caches[0], caches[1], cache_seqlens=torch.tensor(keys, dtype=torch.int32, device=q.device),
            page_table=table, cu_seqlens_q=starts(queries, q.device), max_seqlen_q=max(queries),
            softmax_scale=fixed["scale"], causal=max(queries) > 1, window_size=(-1, -1), softcap=0.0, num_splits=1,
        )  # fmt: skip
        return list(torch.split(out[0] if isinstance(out, tuple) else out, queries))

    return Impl(
        attend, layouts=("paged",), pages=(128,), gradients=False, split=None, about="flash_attn_npu_v3 num_splits 1"
    )  # fmt: skip


PROVIDERS = (
    Provider("flash_attn_npu", ("npu",), {"attention": _varlen}, "v2, varlen; not run on hardware"),
    Provider("flash_attn_npu_v3", ("npu",), {"attention": _kvcache}, "v3, paged; not run on hardware"),
)
