"""RMS norms on an NPU, or in the twin: the functions of `cpu.norm` with a launcher in front."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.ascendc.rows import code, cut, dense, matrix
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import FLOAT32, LdColumnSumPlan, LdNormPlan

KERNELS = (
    Kernel(
        "rms_norm",
        "rms_norm, and add_rms_norm with the residual sum in front",
        LdNormPlan,
        ("x", "residual", "weight"),
        ("y", "total", "rstd"),
    ),
    Kernel(
        "rms_norm_backward",
        "dx of rms_norm, with the gradient of another branch added before the cast",
        LdNormPlan,
        ("dy", "x", "weight", "rstd", "extra"),
        ("dx",),
    ),
    Kernel(
        "rms_norm_weight_grad",
        "dw of rms_norm, blocks of 512 rows",
        LdColumnSumPlan,
        ("dy", "x", "rstd"),
        ("dw",),
    ),
)

_MOST_STRIP = 1024
"""Columns of one strip of dw: a row's stride in an instruction has 8 bits, in blocks of 8 values."""


def rms_norm(
    launcher: Launcher, x: Tensor, weight: Tensor | None, eps: float, offset: float, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """As `cpu.norm.rms_norm`."""
    y, _, rstd = _normalise(launcher, x, None, weight, eps, offset, keep)
    return y, rstd


def add_rms_norm(
    launcher: Launcher, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `cpu.norm.add_rms_norm`."""
    y, total, rstd = _normalise(launcher, x, residual, weight, eps, offset, keep)
    assert total is not None
    return y, total, rstd


def _normalise(
    launcher: Launcher, x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, offset: float, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.empty_like(y)
    rows, stride = matrix(x)
    added, added_stride = (None, 0) if residual is None else matrix(residual)
    count, n = rows.shape
    rstd = torch.empty(count, dtype=torch.float32, device=x.device) if keep else None
    plan = LdNormPlan(
        x_stride=stride,
        residual_stride=added_stride,
        y_stride=n,
        dtype=code(x),
        weight_dtype=code(weight),
        rows=cut(launcher, RowKernel.RMS_NORM, code(x), count, n),
        eps=eps,
        offset=offset,
        add=residual is not None,
        keep=keep,
    )
    if plan.rows.blocks and n:
        launcher.launch("rms_norm", [rows, added, dense(weight), y, total, rstd], plan, plan.rows.blocks)
    return y, total, rstd


def rms_norm_backward(
    launcher: Launcher,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    extra: Tensor | None,
    offset: float,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """As `cpu.norm.rms_norm_backward`."""
    dy, x = dy.contiguous(), x.contiguous()
    n, count = x.shape[-1], rstd.numel()
    dx = torch.empty_like(x) if need_x else None
    dw = torch.empty(n, dtype=torch.float32, device=x.device) if need_weight else None
    if dx is not None and dx.numel():
        plan = LdNormPlan(
            dtype=code(x),
            weight_dtype=code(weight),
            rows=cut(launcher, RowKernel.RMS_NORM_BACKWARD, code(x), count, n),
            offset=offset,
            extra=extra is not None,
        )
        tensors = [dy, x, dense(weight), rstd, dense(extra), dx]
        launcher.launch("rms_norm_backward", tensors, plan, plan.rows.blocks)
    if dw is not None and n:
        cores = launcher.cores * launcher.vectors_per_core
        strip = min(_MOST_STRIP, -(-n // (64 * cores)) * 64)
        sums = LdColumnSumPlan(
            dtype=code(x),
            out_dtype=FLOAT32,
            tokens=count,
            columns=n,
            groups=1,
            rows=cut(launcher, RowKernel.COLUMN_SUM, code(x), -(-n // strip), strip),
        )
        launcher.launch("rms_norm_weight_grad", [dy, x, rstd, dw], sums, sums.rows.blocks)
    return dx, None if dw is None or weight is None else dw.to(weight.dtype)
