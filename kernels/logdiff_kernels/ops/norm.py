"""RMS norms: rms_norm, and add_rms_norm with the residual sum in front.

Backward, with w' = offset + w in fp32, a = dy*w', c = R64(a*x): dx = rstd*(a - x*(((c*rstd)*rstd)/n)), one cast;
dw: blocks of 512 rows in batch order, each from +0, added ascending, of dy*(x*rstd), one cast. So dw depends on batch
order, never on threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu import norm as cpu
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import check_floats, check_shapes, direct, plain

_kernels = Kernels(cpu)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> Tensor:
    """`(x * rstd) * w` in fp32, one cast, with rstd = 1 / sqrt(R64(x*x)/n + eps).

    Args:
        x: [..., n] bf16, fp16 or fp32, any strides.
        weight: [n] of any of these dtypes; None: no factor.
        eps: rounded to fp32.
        offset: 1.0 for models that scale by 1 + w.

    Returns:
        [..., n] like x.

    Raises:
        UnsupportedError: another dtype or device.
        InputError: shapes that don't fit.
    """
    if direct(x, weight):
        _check(x, weight, None)
        return _kernels.of(x).rms_norm(x, weight, eps, offset, False)[0]  # type: ignore[no-any-return]
    return torch.ops.logdiff.rms_norm(x, weight, eps, offset)[0]  # type: ignore[no-any-return]


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(rms_norm(r), r) with r = x + residual in fp32, one cast: r is the new residual.

    x and residual have one shape and dtype; the rest as in `rms_norm`.
    """
    if direct(x, residual, weight):
        _check(x, weight, residual)
        y, total, _ = _kernels.of(x).add_rms_norm(x, residual, weight, eps, offset, False)
        return y, total
    y, total, _ = torch.ops.logdiff.add_rms_norm(x, residual, weight, eps, offset)
    return y, total


def _check(x: Tensor, weight: Tensor | None, residual: Tensor | None) -> None:
    shape = x.shape
    fits = len(shape) > 0 and shape[-1] > 0
    if weight is not None:
        fits = fits and plain(weight) and weight.is_cpu == x.is_cpu
        fits = fits and weight.dim() == 1 and weight.shape[0] == shape[-1]
    if residual is not None:
        fits = fits and residual.dtype == x.dtype and residual.is_cpu == x.is_cpu and residual.shape == shape
    if fits and plain(x):
        return
    check_floats("rms_norm", x, weight, residual)
    check_shapes("rms_norm", False, "x and residual [..., n] of one dtype, weight [n], n > 0", x, weight, residual)


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor | None]:
    _check(x, weight, None)
    return _kernels.of(x).rms_norm(x, weight, eps, offset, True)  # type: ignore[no-any-return]


def _add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    _check(x, weight, residual)
    return _kernels.of(x).add_rms_norm(x, residual, weight, eps, offset, True)  # type: ignore[no-any-return]


def _rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    extra: Tensor | None,
    offset: float,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    extra = None if extra is None else extra.to(x.dtype)
    run = _kernels.of(x).rms_norm_backward
    dx, dw = run(dy.to(x.dtype), x, weight, rstd, extra, offset, need_x, need_weight)
    return x.new_empty(0) if dx is None else dx, x.new_empty(0) if dw is None else dw


def _one_per_row(x: Tensor) -> Tensor:
    return x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)


def _gradients(ctx: Any, dy: Tensor, extra: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    x, weight, rstd = ctx.saved_tensors
    need_x, need_weight = ctx.need_x, ctx.need_weight
    dx, dw = torch.ops.logdiff.rms_norm_backward(dy, x, weight, rstd, extra, ctx.offset, need_x, need_weight)
    return dx if need_x else None, dw if need_weight else None


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, ctx.offset = inputs
    ctx.need_x, ctx.need_weight = ctx.needs_input_grad[:2]
    ctx.need_weight = ctx.need_weight and weight is not None
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_gradients(ctx, dy, None), None, None


def _add_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _x, _residual, weight, _, ctx.offset = inputs
    ctx.need_x = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
    ctx.need_weight = weight is not None and ctx.needs_input_grad[2]
    ctx.save_for_backward(output[1], weight, output[2])
    ctx.mark_non_differentiable(output[2])


def _add_backward(ctx: Any, dy: Tensor, dtotal: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    dx, dw = _gradients(ctx, dy, dtotal)
    return dx, dx, dw, None, None


define(
    "rms_norm(Tensor x, Tensor? weight, float eps, float offset) -> (Tensor, Tensor)",
    _rms_norm,
    lambda x, weight, eps, offset: (x.new_empty(x.shape), _one_per_row(x)),
    _setup,
    _backward,
)
define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float offset) -> (Tensor, Tensor, Tensor)",
    _add_rms_norm,
    lambda x, residual, weight, eps, offset: (x.new_empty(x.shape), x.new_empty(x.shape), _one_per_row(x)),
    _add_setup,
    _add_backward,
)
define(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, Tensor? extra, float offset, bool need_x,"
    " bool need_weight) -> (Tensor, Tensor)",
    _rms_norm_backward,
    lambda dy, x, weight, rstd, extra, offset, need_x, need_weight: (
        x.new_empty(x.shape if need_x else (0,)),
        x.new_empty(0) if weight is None or not need_weight else weight.new_empty(weight.shape),
    ),
)
