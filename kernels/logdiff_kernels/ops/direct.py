"""When an operator may skip torch's dispatcher and go straight to its kernel, and what every row operator checks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack as torch_modes
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from logdiff_kernels.cpu.library import DTYPE_CODES
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.devices import has_kernels

_PLAIN = Tensor.__torch_dispatch__


def direct(*tensors: Tensor | None) -> bool:
    """Whether nothing needs a gradient, nothing is being traced and all are plain tensors.

    Sharded, fake or quantised tensors aren't plain: the dispatcher knows them, or says that it doesn't. Nor is a view
    of negated memory: the dispatcher makes the copy.

    Raises:
        UnsupportedError: a tensor carries a tangent of forward-mode differentiation.
    """
    if forward_ad._current_level >= 0:
        refuse_tangents(*tensors)
    if is_compiling() or torch_modes():
        return False
    graph = torch.is_grad_enabled()
    for x in tensors:
        if x is not None:
            if (graph and x.requires_grad) or x.is_neg():
                return False
            kind = type(x)
            if kind is not Tensor and kind is not Parameter and kind.__torch_dispatch__ is not _PLAIN:
                return False
    return True


def refuse_tangents(*tensors: Tensor | None) -> None:
    """Raise `UnsupportedError` for a tangent: torch would drop it without a word."""
    for x in tensors:
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
            raise UnsupportedError(
                "aligned operators have no forward-mode derivatives", value=tuple(x.shape), hint="backward()"
            )


def plain(x: Tensor) -> bool:
    """Whether x is fp32, bf16 or fp16 on a device that has kernels."""
    return x.dtype in DTYPE_CODES and (x.is_cpu or has_kernels(x))


def check_floats(name: str, *tensors: Tensor | None) -> None:
    """Raise `UnsupportedError` unless all are fp32, bf16 or fp16, and all on the CPU or all on an NPU."""
    _check(name, "bfloat16, float16 or float32", tuple(DTYPE_CODES), tensors)


def check_fp32(name: str, *tensors: Tensor | None) -> None:
    """Raise `UnsupportedError` unless all are fp32, and all on the CPU or all on an NPU."""
    _check(name, "float32", (torch.float32,), tensors)


def _check(name: str, wanted: str, dtypes: tuple[torch.dtype, ...], tensors: tuple[Tensor | None, ...]) -> None:
    first: Tensor | None = None
    for x in tensors:
        if x is None:
            continue
        if first is None:
            first = x
        if x.dtype not in dtypes or not has_kernels(x) or x.is_cpu != first.is_cpu:  # a launch compares two NPUs
            raise UnsupportedError(
                f"aligned {name}: a tensor is {x.dtype} on {x.device}",
                value=str(x.dtype),
                hint=f"{wanted}, all on the CPU or all on an NPU",
            )


def check_shapes(name: str, fits: bool, expected: str, *tensors: Tensor | None) -> None:
    """Raise `InputError` with the shapes unless they fit."""
    if not fits:
        raise InputError(
            f"aligned {name}: shapes don't fit",
            value=[tuple(x.shape) for x in tensors if x is not None],
            hint=expected,
        )
