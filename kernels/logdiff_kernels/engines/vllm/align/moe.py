"""Mixture-of-experts layers: gate, choice, experts, combination, shared experts, over tensor or expert ranks.

Expert weights stay as they were loaded. On one rank the whole layer is the operator `moe`. Over tensor-parallel ranks
the down projections' partials travel as fp32 and are summed by the tree; over expert-parallel ranks the rows of each
chosen expert come from the rank that holds it. Both then combine in ascending order of the logical expert id.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.contract.linear import rank_leaves
from logdiff_kernels.engines.vllm.align.collectives import gathered
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError

Activation = str | tuple[str, float, float]


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `MoERunner.forward` and leave expert weights unpacked."""
    if "moe" not in spec:
        return
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    def forward(stock: Any) -> Any:
        def forward(
            self: Any,
            hidden_states: torch.Tensor,
            router_logits: torch.Tensor,
            input_ids: torch.Tensor | None = None,
            shared_experts_input: torch.Tensor | None = None,
        ) -> torch.Tensor:
            if torch.compiler.is_compiling() and _ranks(self) > 1:  # loops over experts: not for the compiler's eyes
                whole: torch.Tensor = torch.ops.vllm.moe_forward(
                    hidden_states, router_logits, None, input_ids, self._encode_layer_name(), 0
                )
                return whole
            return layer_output(self, hidden_states, router_logits, input_ids)

        return forward

    def inner(stock: Any) -> Any:
        def _forward_impl(
            self: Any,
            hidden_states: torch.Tensor,
            router_logits: torch.Tensor,
            shared_experts_input: torch.Tensor | None,
            input_ids: torch.Tensor | None = None,
        ) -> torch.Tensor:
            return layer_output(self, hidden_states, router_logits, input_ids)

        return _forward_impl

    def process(stock: Any) -> Any:
        def process_weights_after_loading(self: Any, layer: Any) -> None:
            return None

        return process_weights_after_loading

    patches.wrap(MoERunner, "forward", forward)
    patches.wrap(MoERunner, "_forward_impl", inner)
    patches.wrap(UnquantizedFusedMoEMethod, "process_weights_after_loading", process)


def layer_output(
    runner: Any, x: torch.Tensor, router_logits: torch.Tensor, input_ids: torch.Tensor | None
) -> torch.Tensor:
    """One mixture-of-experts layer: x [T, H] to [T, H].

    Args:
        runner: vLLM's `MoERunner`.
        router_logits: [T, E], unless the runner holds the gate itself.
    """
    if runner.gate is not None:
        router_logits, _ = runner.gate(x)
    shared = None if runner.shared_experts is None else runner.shared_experts._layer(x)
    weights, ids = runner.router.select_experts(
        hidden_states=x, router_logits=router_logits, topk_indices_dtype=None, input_ids=input_ids
    )
    weights, ids = weights.to(torch.float32), ids.to(torch.int64)
    experts = runner.routed_experts
    bias13, bias2 = getattr(experts, "w13_bias", None), getattr(experts, "w2_bias", None)
    kind, interleaved = activation_of(experts)
    if _ranks(runner) == 1:
        return ops.moe(
            x,
            ids,
            weights,
            experts.w13_weight,
            experts.w2_weight,
            bias13,
            bias2,
            activation=kind,
            interleaved=interleaved,
            shared=shared,
        )
    if int(experts.moe_config.ep_size) > 1:
        rows = _over_expert_ranks(experts, x, ids)
    else:
        rows = _over_tensor_ranks(experts, x, ids)
    return combined(rows, ids, weights, shared, x.dtype)


def activation_of(experts: Any) -> tuple[Activation, bool]:
    """(activation as `ops.moe` names it, whether gate and up rows alternate). Raises `UnsupportedError`."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation as Kind

    kind = experts.activation
    if kind == Kind.SILU:
        return "swiglu", False
    if kind == Kind.GELU_TANH:
        return "geglu_tanh", False
    beta = 1.0 if experts.swiglu_beta is None else float(experts.swiglu_beta)
    if kind in (Kind.SWIGLUOAI, Kind.SWIGLUOAI_UNINTERLEAVE) and beta == 1.0:
        alpha = 1.702 if experts.swiglu_alpha is None else float(experts.swiglu_alpha)
        limit = 7.0 if experts.swiglu_limit is None else float(experts.swiglu_limit)
        return ("swiglu_clamped", alpha, limit), kind == Kind.SWIGLUOAI
    raise UnsupportedError(f"{experts.layer_name}: experts with activation {kind.value}", value=kind.value)


def combined(
    rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The sum over a token's experts: ascending expert ids, Mul then Add in fp32, shared last, one cast.

    Args:
        rows: [T, k, H], the output of the chosen experts, slot by slot.
        ids: int64 [T, k].
        weights: fp32 [T, k].
        shared: [T, H] or None.
    """
    order = ids.argsort(dim=1)
    rows = rows.gather(1, order[..., None].expand_as(rows)).to(torch.float32)
    terms = rows * weights.gather(1, order)[..., None]
    total = terms[:, 0]
    for slot in range(1, ids.shape[1]):
        total = total + terms[:, slot]
    if shared is not None:
        total = total + shared.to(torch.float32)
    return total.to(dtype)


def _ranks(runner: Any) -> int:
    return int(runner.moe_config.tp_size) * int(runner.moe_config.ep_size)


def _sorted(ids: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(places of the slots of ids, sorted by expert; offsets [count + 1] of each expert among them).

    Ids outside 0..count-1 are left out.
    """
    flat = ids.reshape(-1)
    order = flat.argsort(stable=True)
    edges = torch.searchsorted(flat[order].contiguous(), torch.arange(count + 1))
    return order[int(edges[0]) : int(edges[-1])], edges - edges[0]


def _hidden(experts: Any, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Gate, up and activation of rows that are sorted by expert."""
    kind, interleaved = activation_of(experts)
    both = ops.grouped_linear(x, offsets, experts.w13_weight, getattr(experts, "w13_bias", None))
    gate, up = (both[..., ::2], both[..., 1::2]) if interleaved else both.chunk(2, dim=-1)
    if isinstance(kind, tuple):
        return ops.swiglu_clamped(gate, up, kind[1], kind[2])
    return ops.swiglu(gate, up) if kind == "swiglu" else ops.geglu_tanh(gate, up)


def _over_tensor_ranks(experts: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[T, k, H] where every rank holds a part of each expert's intermediate features."""
    tokens, slots = ids.shape
    size = int(experts.moe_config.tp_size)
    inner = int(experts.w2_weight.shape[2])
    leaves = rank_leaves(inner * size, size)
    places, offsets = _sorted(ids, int(experts.w2_weight.shape[0]))
    hidden = _hidden(experts, x[places // slots], offsets)
    partial = torch.empty(len(places), experts.w2_weight.shape[1], dtype=torch.float32)
    edges = offsets.tolist()
    for expert, (start, end) in enumerate(pairwise(edges)):
        if end > start:
            partial[start:end] = ops.linear_row_partial(hidden[start:end], experts.w2_weight[expert], leaves)
    total = ops.tree_combine(gathered(partial), None, torch.float32)
    if hasattr(experts, "w2_bias"):
        bias = gathered(experts.w2_bias.data)[0]  # the other ranks hold zeros
        total = total + bias[ids.reshape(-1)[places]].to(torch.float32)
    rows = torch.empty(tokens * slots, total.shape[1], dtype=x.dtype)
    rows[places] = total.to(x.dtype)
    return rows.reshape(tokens, slots, -1)


def _over_expert_ranks(experts: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[T, k, H] where every rank holds some experts whole and sees all tokens."""
    tokens, slots = ids.shape
    local = experts.expert_map.to(torch.int64)[ids]  # -1: another rank's
    places, offsets = _sorted(local, int(experts.w2_weight.shape[0]))
    rows = torch.zeros(tokens * slots, experts.w2_weight.shape[1], dtype=x.dtype)
    hidden = _hidden(experts, x[places // slots], offsets)
    rows[places] = ops.grouped_linear(hidden, offsets, experts.w2_weight, getattr(experts, "w2_bias", None), row=True)
    owner = gathered((local.reshape(-1) >= 0).to(torch.float32)).argmax(dim=0)
    everyone = gathered(rows)
    return everyone.gather(0, owner[None, :, None].expand(1, *rows.shape)).reshape(tokens, slots, -1)
