"""Gated activations on an NPU, or in the twin: the functions of `cpu.activation` with a launcher in front."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.ascendc.rows import code, cut, matrix
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import LdGluPlan

KERNELS = (
    Kernel("glu", "act(gate) * up: swiglu, gelu-tanh, clamped swiglu", LdGluPlan, ("gate", "up"), ("y",)),
    Kernel("glu_backward", "gradients of act(gate) * up", LdGluPlan, ("dy", "gate", "up"), ("dgate", "dup")),
)


def glu(launcher: Launcher, gate: Tensor, up: Tensor, kind: int, alpha: float = 1.0, limit: float = 0.0) -> Tensor:
    """As `cpu.activation.glu`."""
    n = gate.shape[-1]
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    step = 1
    if _interleaved(gate, up):
        step, gate_stride, up_stride = 2, gate.stride(0), up.stride(0)
    else:
        gate, gate_stride = matrix(gate)
        up, up_stride = matrix(up)
    count = y.numel() // n if n else 0
    plan = LdGluPlan(
        gate_stride=gate_stride,
        up_stride=up_stride,
        y_stride=n,
        dtype=code(y),
        kind=kind,
        alpha=alpha,
        limit=limit,
        step=step,
        rows=cut(launcher, RowKernel.GLU, code(y), count, n),
    )
    if y.numel():
        launcher.launch("glu", [gate, up, y], plan, plan.rows.blocks)
    return y


def glu_backward(
    launcher: Launcher, dy: Tensor, gate: Tensor, up: Tensor, kind: int, alpha: float, limit: float
) -> tuple[Tensor, Tensor]:
    """As `cpu.activation.glu_backward`."""
    dy, gate, up = dy.contiguous(), gate.contiguous(), up.contiguous()
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    n = gate.shape[-1]
    count = gate.numel() // n if n else 0
    plan = LdGluPlan(
        gate_stride=n,
        up_stride=n,
        y_stride=n,
        dtype=code(gate),
        kind=kind,
        alpha=alpha,
        limit=limit,
        step=1,
        rows=cut(launcher, RowKernel.GLU_BACKWARD, code(gate), count, n),
    )
    if gate.numel():
        launcher.launch("glu_backward", [dy, gate, up, dgate, dup], plan, plan.rows.blocks)
    return dgate, dup


def _interleaved(gate: Tensor, up: Tensor) -> bool:
    """Whether gate and up are the even and the odd elements of the same rows."""
    if gate.dim() != 2 or gate.stride(1) != 2 or up.stride() != gate.stride() or gate.stride(0) < 2 * gate.shape[1]:
        return False
    return up.data_ptr() - gate.data_ptr() == gate.element_size()
