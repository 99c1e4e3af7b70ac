"""The call code of NPU providers against stand-ins with the documented signatures, computing on the CPU.

A stand-in takes the parameters of the real function (names from vllm-ascend 0.23.0, MindSpeed core_r0.16.0 and
torch_npu's documentation) and gives its formula, so that a wrong name, order, layout or reshape shows. Nothing here
says anything about an NPU.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from logdiff_kernels.ops.reference.attention import paged_attention
from logdiff_kernels.probes import accuracy
from logdiff_kernels.probes import check as checks
from logdiff_kernels.probes.catalogue import families, providers
from logdiff_kernels.probes.check import Check, Setting
from torch import Tensor
from torch.nn import functional

SETTING = Setting(seed=1, dtype="bfloat16", device="cpu")


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    x = self.float()
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon)
    return (x * rstd * gamma.float()).to(self.dtype), rstd


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    total = x1 + x2
    y, rstd = npu_rms_norm(total, gamma, epsilon)
    return y, rstd, total


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    gate, up = input.chunk(2, dim=dim)
    return functional.silu(gate) * up


def npu_rotary_mul(input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    assert input.dim() == r1.dim() == 4
    assert r1.dtype == input.dtype
    first, second = input.chunk(2, dim=-1)
    return input * r1 + torch.cat([-second, first], dim=-1) * r2


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    weights, ids = torch.softmax(x.float(), dim=-1).topk(k, dim=-1)
    return weights, ids.int(), ids.int()


def npu_grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    bias: list[Tensor] | None = None,
    scale: list[Tensor] | None = None,
    group_list: Tensor | None = None,
    split_item: int = 0,
    group_type: int = -1,
    group_list_type: int = 0,
    output_dtype: Any = None,
) -> list[Tensor]:
    assert (split_item, group_type, group_list_type) == (2, 0, 1)
    assert group_list is not None
    rows = x[0].split(group_list.tolist())
    return [torch.cat([r @ weight[0][e] for e, r in enumerate(rows)])]


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    scale: float = 1.0,
    input_layout: str = "BSH",
    block_size: int = 0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor]:
    assert input_layout == "TND"
    assert atten_mask is not None
    assert atten_mask.shape == (2048, 2048)
    assert block_table is not None
    assert actual_seq_lengths is not None
    assert actual_seq_lengths_kv is not None
    pages, page, width = key.shape
    assert page == block_size
    assert query.shape[1] == num_heads
    caches = [x.view(pages, page, num_key_value_heads, width // num_key_value_heads) for x in (key, value)]
    window = pre_tokens if sparse_mode == 4 else 0
    out = paged_attention(
        query, *caches, block_table, torch.tensor([0, *actual_seq_lengths]), torch.tensor(actual_seq_lengths_kv),
        scale=scale, window=window,
    )  # fmt: skip
    return out.to(query.dtype), torch.empty(0)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    from logdiff_kernels.ops.reference.attention import attention

    assert softmax_scale is not None
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    out = attention(q, k, v, cu_seqlens_q, cu_seqlens_k, scale=softmax_scale, causal=causal)
    assert isinstance(out, Tensor)
    return out.to(q.dtype)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    assert num_splits == 1
    assert cache_seqlens is not None
    assert page_table is not None
    assert cu_seqlens_q is not None
    assert softmax_scale is not None
    assert cache_seqlens.dtype == page_table.dtype == cu_seqlens_q.dtype == torch.int32
    causal = causal or max_seqlen_q == 1
    out = paged_attention(q, k_cache, v_cache, page_table, cu_seqlens_q, cache_seqlens, scale=softmax_scale)
    return out.to(q.dtype)


TORCH_NPU = {
    function.__name__: function
    for function in (
        npu_rms_norm, npu_add_rms_norm, npu_swiglu, npu_rotary_mul, npu_moe_gating_top_k_softmax, npu_grouped_matmul,
        npu_fused_infer_attention_score,
    )
}  # fmt: skip
TRITON = "vllm_ascend.ops.triton.batch_invariant"


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Callable[..., Any]) -> None:
    """A module of that name, and empty ones for its parents."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        path = ".".join(parts[:i])
        if i < len(parts) and path in sys.modules:
            continue
        module = types.ModuleType(path)
        module.__dict__.update(functions if i == len(parts) else {"__path__": []})
        monkeypatch.setitem(sys.modules, path, module)


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "torch_npu", **TORCH_NPU)
    stand_in(monkeypatch, "flash_attn_npu", flash_attn_varlen_func=flash_attn_varlen_func)
    stand_in(monkeypatch, "flash_attn_npu_v3", flash_attn_with_kvcache=flash_attn_with_kvcache)
    stand_in(monkeypatch, f"{TRITON}.matmul", linear_batch_invariant=_linear, matmul_batch_invariant=_matmul)
    stand_in(monkeypatch, f"{TRITON}.rmsnorm", rms_norm_batch_invariant=_rms_norm)
    stand_in(monkeypatch, f"{TRITON}.softmax", softmax_batch_invariant=_softmax)
    stand_in(monkeypatch, f"{TRITON}.mean", mean_batch_invariant=_mean)
    stand_in(monkeypatch, "vllm_ascend.batch_invariant", add_rms_norm=_add_rms_norm)
    stand_in(monkeypatch, "batch_invariant_ops")
    operators = types.SimpleNamespace(
        npu_mm_batch_invariant=lambda a, b: a @ b,
        npu_matmul_batch_invariant=lambda a, b: a @ b,
        npu_reduce_sum_batch_invariant=lambda x, dim, keepdim: x.sum(dim, keepdim=keepdim),
        npu_log_softmax_batch_invariant=lambda x, dim: torch.log_softmax(x, dim=dim),
        npu_fused_infer_attention_score_batch_invariant=npu_fused_infer_attention_score,
    )
    monkeypatch.setattr(torch.ops, "batch_invariant_ops", operators, raising=False)


def _linear(input_: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(input_, weight, bias)


def _matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    return a @ b


def _rms_norm(input_: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return npu_rms_norm(input_, weight, eps)[0]


def _softmax(input_: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return torch.softmax(input_, dim=dim)


def _mean(input_: Tensor, dim: list[int], keepdim: bool = False, dtype: Any = torch.float16) -> Tensor:
    assert dtype is None or dtype == torch.float32
    return input_.mean(dim, keepdim=keepdim)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, None, Tensor]:
    y, _, total = npu_add_rms_norm(x, residual, weight, eps)
    return y, None, total


NAMES = ("torch_npu", "vllm_ascend", "cann_batch_invariant", "flash_attn_npu", "flash_attn_npu_v3")
CALLS = [(name, op) for name in NAMES for op in providers()[name].ops]


@pytest.mark.parametrize(("name", "op"), CALLS)
def test_calls_of_npu_operators_fit_their_signatures_and_compute_the_operator(npu: None, name: str, op: str) -> None:
    family = families()[op]
    impl = providers()[name].ops[op]("npu", "bfloat16")
    check = Check(family, name, impl, "A")
    given, draw = checks.problem(check, family.defaults[1], SETTING)
    verdict = accuracy.judge(family, impl, given, draw)
    assert verdict.ok, verdict.facts


@pytest.mark.parametrize("name", ["torch_npu", "flash_attn_npu_v3"])
def test_npu_attention_is_decoded_over_pages(npu: None, name: str) -> None:
    family = families()["attention"]
    impl = providers()[name].ops["attention"]("npu", "bfloat16")
    check = Check(family, name, impl, "I:decode")
    entry, _ = checks.run(check, [family.defaults[0]], SETTING, time.monotonic() + 60, [])
    assert (entry["ok"], entry["control_seen"]) == (True, True)


def test_without_the_packages_every_npu_provider_says_what_is_missing() -> None:
    from logdiff_kernels.probes.session import Wanted, run

    data = run(Wanted.of({"ops": ["attention"], "device": "npu", "seconds": 5.0}))
    assert data["results"] == []
    reasons = {entry["provider"]: entry["reason"] for entry in data["skipped"]}
    assert {"torch_npu", "flash_attn_npu", "flash_attn_npu_v3", "cann_batch_invariant", "aligned"} <= set(reasons)
    assert all("NPU" in reason or "npu" in reason for reason in reasons.values())


def test_a_foreign_package_of_the_same_name_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.probes.records import AbsentError

    stand_in(monkeypatch, "batch_invariant_ops")
    sys.modules["batch_invariant_ops"].__file__ = "/site/batch_invariant_ops/__init__.py"
    with pytest.raises(AbsentError, match="/site/batch_invariant_ops"):
        providers()["cann_batch_invariant"].ops["linear"]("npu", "bfloat16")
