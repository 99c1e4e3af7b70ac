"""Which experts a token goes to, and with what weights: vLLM's CPU router by the contract's rule."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError

SPEC = "logdiff_router_spec"
"""Attribute of a router: its rule, set when the model has been loaded."""

_CHOOSE_ON_LOGITS = frozenset({"gpt_oss"})
"""Model types whose Transformers code chooses on logits and scores the chosen."""

_RENORM_EPS = 1e-20
"""Added to the divisor by DeepSeek-V3's Transformers code and those that follow it."""

_WITH_EPS = frozenset({"deepseek_v3", "glm4_moe", "dots1", "longcat_flash", "solar_open"})


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace the routing of `CPURouter`; the observer's and vLLM's own hooks around it stay."""
    if "router" not in spec:
        return
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    dtype = torch.int64 if "moe" in spec else torch.int32

    def routing(
        self: Any,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rule: RouterSpec = getattr(self, SPEC)
        weights, ids = ops.router(router_logits.to(torch.float32), rule, self.e_score_correction_bias)
        return weights, ids.to(dtype)

    patches.replace(CPURouter, "_compute_routing", routing)


def rule_of(router: Any, model_type: str, scaling: float, name: str) -> RouterSpec:
    """The contract's rule for a vLLM router.

    Args:
        router: a `CPURouter`.
        model_type: of the Hugging Face configuration; some models choose on logits.
        scaling: a factor that vLLM applies to the experts' output instead.
        name: of the layer, for errors.

    Raises:
        UnsupportedError: a routing function of the model's own, hash routing, an unknown scoring.
    """
    if router.custom_routing_function is not None or router._hash_indices_table is not None:
        raise UnsupportedError(f"{name}: a routing function of its own", value=model_type)
    if router.scoring_func not in ("softmax", "sigmoid"):
        raise UnsupportedError(f"{name}: router scores by {router.scoring_func}", value=model_type)
    grouped, bias = bool(router.use_grouped_topk), router.e_score_correction_bias
    if bias is not None and not grouped:
        raise UnsupportedError(f"{name}: vLLM's CPU router leaves the correction bias out", value=model_type)
    if model_type in _CHOOSE_ON_LOGITS:
        return RouterSpec(int(router.top_k), choose_on="logits")
    return RouterSpec(
        int(router.top_k),
        scoring=router.scoring_func,
        renormalize=bool(router.renormalize),
        renorm_eps=_RENORM_EPS if model_type in _WITH_EPS and router.renormalize else 0.0,
        scaling=float(router.routed_scaling_factor) * scaling,
        groups=int(router.num_expert_group or 1) if grouped else 1,
        topk_groups=int(router.topk_group or 1) if grouped else 1,
        group_score="top2" if bias is not None else "max",
    )
