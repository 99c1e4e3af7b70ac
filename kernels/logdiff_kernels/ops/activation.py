"""Gated activations: swiglu, geglu_tanh, and the clamped swiglu of GPT-OSS. All in fp32, one cast.

Backward, with s the sigmoid that the forward divides by (g / (1 + e) = g*s), one cast each:

- swiglu: dg = (dy*u) * (s*(1 + g*(1-s))), du = dy*(g*s);
- geglu_tanh: dg = (dy*u) * (s + (g*(s*(1-s))) * (2a*(1 + 3b*g*g))), the second term +0 where s*(1-s) is 0,
  a = 0.79788456, b = 0.044715; du = dy*(g*s);
- swiglu_clamped: dg = (dy*(u' + 1)) * (s + (alpha*g')*(s*(1-s))), the second term +0 where s*(1-s) is 0, dg = 0 where
  g > limit; du = dy*(g'*s), 0 where |u| > limit; g' and u' are the clamped values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu import activation as cpu
from logdiff_kernels.errors import InputError
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import check_floats, check_shapes, direct, plain

_kernels = Kernels(cpu)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`g / (1 + exp1(-g)) * u`.

    Args:
        gate: [..., n] bf16, fp16 or fp32, any strides; gate and up may be halves of one tensor.
        up: as `gate`, of its shape and dtype.

    Returns:
        [..., n] like gate, contiguous.

    Raises:
        UnsupportedError: another dtype or device.
        InputError: shapes that don't fit.
    """
    return _glu(gate, up, cpu.SWIGLU, 1.0, 0.0)


def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """`g / (1 + exp1((-2*0.79788456) * (g + ((0.044715*g)*g)*g))) * u`: GELU's tanh form. Else as `swiglu`."""
    return _glu(gate, up, cpu.GEGLU_TANH, 1.0, 0.0)


def swiglu_clamped(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """`(u + 1) * (g / (1 + exp1(-(alpha*g))))` with g = min(gate, limit), u = up clamped to ±limit. Else as `swiglu`.

    Raises:
        InputError: a limit that isn't above 0.
    """
    if not limit > 0:
        raise InputError("aligned swiglu_clamped: the limit is above 0", value=limit)
    return _glu(gate, up, cpu.SWIGLU_CLAMPED, alpha, limit)


def _glu(gate: Tensor, up: Tensor, kind: int, alpha: float, limit: float) -> Tensor:
    if direct(gate, up):
        return _glu_forward(gate, up, kind, alpha, limit)
    return torch.ops.logdiff.glu(gate, up, kind, alpha, limit)  # type: ignore[no-any-return]


def _check(gate: Tensor, up: Tensor) -> None:
    if plain(gate) and gate.dtype == up.dtype and up.is_cpu == gate.is_cpu and gate.shape == up.shape and gate.dim():
        return
    check_floats("swiglu", gate, up)
    check_shapes("swiglu", False, "gate and up [..., n] of one dtype", gate, up)


def _glu_forward(gate: Tensor, up: Tensor, kind: int, alpha: float, limit: float) -> Tensor:
    _check(gate, up)
    return _kernels.of(gate).glu(gate, up, kind, alpha, limit)  # type: ignore[no-any-return]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, *ctx.rule = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    gate, up = ctx.saved_tensors
    return *torch.ops.logdiff.glu_backward(dy, gate, up, *ctx.rule), None, None, None


define(
    "glu(Tensor gate, Tensor up, int kind, float alpha, float limit) -> Tensor",
    _glu_forward,
    lambda gate, up, kind, alpha, limit: gate.new_empty(gate.shape),
    _setup,
    _backward,
)
define(
    "glu_backward(Tensor dy, Tensor gate, Tensor up, int kind, float alpha, float limit) -> (Tensor, Tensor)",
    lambda dy, gate, up, *rule: _kernels.of(gate).glu_backward(dy.to(gate.dtype), gate, up, *rule),
    lambda dy, gate, up, kind, alpha, limit: (gate.new_empty(gate.shape), up.new_empty(up.shape)),
)
