"""Mixture-of-experts layers: gate, choice, experts, combination, shared experts, over tensor or expert ranks.

Expert weights stay as they were loaded. On one rank the whole layer is the operator `moe`. Over tensor-parallel ranks
the down projections' partials travel as fp32 and are summed by the tree; over expert-parallel ranks the rows of each
chosen expert come from the rank that holds it. Both then combine in ascending order of the logical expert id.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.contract.linear import rank_leaves
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.engines.vllm.align.collectives import gathered
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops.moe import moe_combine_slots, moe_rows

GATE = "logdiff_shared_gate"
"""Attribute of a runner: (gate of its shared expert,), taken from that expert when the model has been loaded."""

_SIGMOID = RouterSpec(top_k=1, scoring="sigmoid")

Activation = str | tuple[str, float, float]


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `MoERunner.forward` and leave expert weights unpacked."""
    if "moe" not in spec:
        return
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

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

    def inner(
        self: Any,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        shared_experts_input: torch.Tensor | None,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return layer_output(self, hidden_states, router_logits, input_ids)

    def process(self: Any, layer: Any) -> None:
        return None

    patches.replace(MoERunner, "forward", forward)
    patches.replace(MoERunner, "_forward_impl", inner)
    patches.replace(UnquantizedFusedMoEMethod, "process_weights_after_loading", process)


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
    shared: Any = None if runner.shared_experts is None else runner.shared_experts._layer(x)
    if hasattr(runner, GATE):
        weight, _ = ops.router(getattr(runner, GATE)[0](x)[0].to(torch.float32), _SIGMOID)
        shared = weight * shared.to(torch.float32)
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
    return moe_combine_slots(rows, weights, ids, None, shared)


def prepare(runner: Any) -> None:
    """Take the shared expert's gate out of its own forward pass, where it multiplies in the model's dtype."""
    layer: Any = None if runner.shared_experts is None else runner.shared_experts._layer
    gate = getattr(layer, "expert_gate", None)
    if gate is not None and not hasattr(runner, GATE):
        setattr(runner, GATE, (gate,))
        layer.expert_gate = None


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


def _ranks(runner: Any) -> int:
    return int(runner.moe_config.tp_size) * int(runner.moe_config.ep_size)


def _rows(experts: Any, x: torch.Tensor, ids: torch.Tensor, leaves: int) -> torch.Tensor:
    """fp32 [T, k, H]: this rank's part of the down projection of every slot, +0 where its expert isn't here."""
    kind, interleaved = activation_of(experts)
    bias = getattr(experts, "w13_bias", None)
    with _disable_current_modes():  # under a watching mode the operators would be traced, without other ranks' slots
        return moe_rows(
            x, ids, experts.w13_weight, experts.w2_weight, leaves, bias, activation=kind, interleaved=interleaved
        )


def _over_tensor_ranks(experts: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[T, k, H] where every rank holds a part of each expert's intermediate features."""
    size, inner = int(experts.moe_config.tp_size), int(experts.w2_weight.shape[2])
    total = ops.tree_combine(gathered(_rows(experts, x, ids, rank_leaves(inner * size, size))), None, torch.float32)
    if hasattr(experts, "w2_bias"):
        total = total + gathered(experts.w2_bias.data)[0][ids].to(torch.float32)  # the other ranks hold zeros
    return total.to(x.dtype)


def _over_expert_ranks(experts: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[T, k, H] where every rank holds some experts whole and sees all tokens."""
    local = experts.expert_map.to(torch.int64)[ids]  # -1: another rank's
    total = _rows(experts, x, local, rank_leaves(int(experts.w2_weight.shape[2]), 1))
    if hasattr(experts, "w2_bias"):
        total = total + experts.w2_bias[local.clamp(min=0)].to(torch.float32)
    rows = gathered(total.to(x.dtype))
    owner = gathered((local >= 0).to(torch.float32)).argmax(dim=0)
    return rows.gather(0, owner[None, ..., None].expand(1, *rows.shape[1:])).squeeze(0)
