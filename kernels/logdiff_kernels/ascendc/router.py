"""The router on an NPU, or in the twin: the functions of `cpu.router` with a launcher in front."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import FP32, Kernel
from logdiff_kernels.ascendc.rows import cut, dense
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import FLOAT32, LdRouterPlan

KERNELS = (
    Kernel(
        "router",
        "scores of experts, choice within groups, weights",
        LdRouterPlan,
        ("logits", "bias"),
        ("weights", "ids"),
        dtypes=FP32,
    ),
    Kernel(
        "router_backward",
        "gradient of the router's logits",
        LdRouterPlan,
        ("dweights", "logits", "ids"),
        ("dlogits",),
        dtypes=FP32,
    ),
)

MOST_EXPERTS, MOST_SLOTS, MOST_GROUPS = 512, 16, 64


def router(
    launcher: Launcher,
    logits: Tensor,
    bias: Tensor | None,
    k: int,
    groups: int,
    topk_groups: int,
    flags: int,
    renorm_eps: float,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """As `cpu.router.router`.

    Raises:
        UnsupportedError: more than 512 experts, 16 slots or 64 groups.
    """
    logits = logits.contiguous()
    tokens, experts = logits.shape
    _check(experts, k, groups)
    weights = torch.empty((tokens, k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((tokens, k), dtype=torch.int64, device=logits.device)
    plan = LdRouterPlan(
        dtype=FLOAT32,
        tokens=tokens,
        experts=experts,
        top_k=k,
        groups=groups,
        top_groups=topk_groups,
        flags=flags,
        has_bias=bias is not None,
        renorm_eps=renorm_eps,
        scaling=scaling,
        rows=cut(launcher, RowKernel.ROUTER, FLOAT32, tokens, experts),
    )
    if tokens:
        launcher.launch("router", [logits, dense(bias), weights, ids], plan, plan.rows.blocks)
    return weights, ids


def router_backward(
    launcher: Launcher, dweights: Tensor, logits: Tensor, ids: Tensor, flags: int, renorm_eps: float, scaling: float
) -> Tensor:
    """As `cpu.router.router_backward`; raises as `router`."""
    dweights, logits, ids = dweights.contiguous(), logits.contiguous(), ids.contiguous()
    tokens, experts = logits.shape
    _check(experts, ids.shape[1], 1)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    plan = LdRouterPlan(
        dtype=FLOAT32,
        tokens=tokens,
        experts=experts,
        top_k=ids.shape[1],
        groups=1,
        top_groups=1,
        flags=flags,
        renorm_eps=renorm_eps,
        scaling=scaling,
        rows=cut(launcher, RowKernel.ROUTER_BACKWARD, FLOAT32, tokens, experts),
    )
    if tokens:
        launcher.launch("router_backward", [dweights, logits, ids, out], plan, plan.rows.blocks)
    return out


def _check(experts: int, k: int, groups: int) -> None:
    if experts > MOST_EXPERTS or k > MOST_SLOTS or groups > MOST_GROUPS:
        raise UnsupportedError(
            f"router: {experts} experts in {groups} groups, {k} chosen",
            value=[experts, groups, k],
            hint=f"at most {MOST_EXPERTS} experts, {MOST_GROUPS} groups and {MOST_SLOTS} chosen on an NPU",
        )
