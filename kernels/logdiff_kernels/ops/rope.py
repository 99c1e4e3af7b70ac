"""RoPE: pairs of a head's elements turned by a position's angle.

Backward is the transposed rotation of dy, one cast: dx1 = dy1*c + dy2*s, dx2 = dy2*c - dy1*s. The tables have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu import rope as cpu
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import check_floats, check_fp32, check_shapes, direct, plain

_kernels = Kernels(cpu)


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, out: Tensor | None = None) -> Tensor:
    """`x1*c - x2*s`, `x2*c + x1*s` for each pair, as Mul, Mul, Sub or Add in fp32, one cast.

    Args:
        x: [T, H, D] bf16, fp16 or fp32, any strides.
        cos: [T, R/2] fp32, R <= D; elements of a head from R up are copied.
        sin: as `cos`.
        interleaved: pairs are elements 2i and 2i+1 instead of i and i + R/2.
        out: where to write, x itself included; needs a unit stride on D and takes no gradient. None: a new tensor.

    Returns:
        [T, H, D] like x.

    Raises:
        UnsupportedError: another dtype or device, or `out` where a gradient is needed.
        InputError: shapes that don't fit.
    """
    if direct(x, cos, sin):
        _check(x, cos, sin)
        if out is not None:
            fits = out.shape == x.shape and out.dtype == x.dtype and (out.stride(2) == 1 or out.shape[2] == 1)
            check_shapes("rope", fits, "out like x, its last dimension without gaps", x, out)
        return _kernels.of(x).rope(x, cos, sin, interleaved, False, out)  # type: ignore[no-any-return]
    if out is not None:
        raise UnsupportedError("aligned rope can't write to `out` where a gradient is needed or a graph is traced.")
    return torch.ops.logdiff.rope(x, cos, sin, interleaved)  # type: ignore[no-any-return]


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    shape, table = x.shape, cos.shape
    if (
        plain(x)
        and cos.dtype == sin.dtype == torch.float32
        and cos.is_cpu == sin.is_cpu == x.is_cpu
        and len(shape) == 3
        and len(table) == 2
        and table == sin.shape
        and table[0] == shape[0]
        and 2 * table[1] <= shape[2]
    ):
        return
    check_floats("rope", x, cos, sin)
    check_fp32("rope", cos, sin)
    check_shapes("rope", False, "x [T, H, D], cos and sin [T, R/2] with R <= D", x, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    _check(x, cos, sin)
    return _kernels.of(x).rope(x, cos, sin, interleaved, False)  # type: ignore[no-any-return]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin = ctx.saved_tensors
    return torch.ops.logdiff.rope_backward(dy, cos, sin, ctx.interleaved), None, None, None


define(
    "rope(Tensor x, Tensor cos, Tensor sin, bool interleaved) -> Tensor",
    _rotated,
    lambda x, cos, sin, interleaved: x.new_empty(x.shape),
    _setup,
    _backward,
)
define(
    "rope_backward(Tensor dy, Tensor cos, Tensor sin, bool interleaved) -> Tensor",
    lambda dy, cos, sin, interleaved: _kernels.of(dy).rope(dy, cos, sin, interleaved, True),
    lambda dy, cos, sin, interleaved: dy.new_empty(dy.shape),
)
