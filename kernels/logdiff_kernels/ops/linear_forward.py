"""Forward passes of the matrix products on plain tensors: arguments checked, then the kernels of their device."""

from __future__ import annotations

import math

import torch

from logdiff_kernels.contract.linear import row_leaves
from logdiff_kernels.cpu import linear as cpu
from logdiff_kernels.cpu.library import DTYPE_CODES as DTYPES
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.devices import Kernels, has_kernels

KERNELS = Kernels(cpu)


def check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Raise when dtypes, devices or shapes don't fit: UnsupportedError, InputError."""
    if (
        has_kernels(x)
        and weight.is_cpu == x.is_cpu
        and x.dtype in DTYPES
        and weight.dtype in DTYPES
        and x.dim() >= 1
        and x.shape[-1] == weight.shape[-1]
        and (bias is None or (bias.is_cpu == x.is_cpu and bias.dtype in DTYPES and bias.shape == weight.shape[:-1]))
    ):
        return
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype not in DTYPES or not has_kernels(tensor) or tensor.is_cpu != x.is_cpu:
            raise UnsupportedError(
                f"aligned linear: {name} is {tensor.dtype} on {tensor.device}",
                value=str(tensor.dtype),
                hint="bfloat16, float16 or float32, all on the CPU or all on an NPU; no quantised or LoRA layers",
            )
    raise InputError(
        "aligned linear: shapes don't fit",
        value=[tuple(t.shape) for t in (x, weight, bias) if t is not None],
        hint="x [..., K], weight [N, K], bias [N]",
    )


def _result(x: torch.Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    if out_dtype is None:
        return x.dtype
    if out_dtype not in DTYPES:
        raise UnsupportedError(
            f"aligned linear: no results of {out_dtype}", value=str(out_dtype), hint="bfloat16, float16 or float32"
        )
    return out_dtype


def flat(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, plan: int, count: int
) -> torch.Tensor:
    """One product on x [..., K] by a plan of the sum over k."""
    matmul = KERNELS.of(x).matmul
    if x.dim() == 2:
        return matmul(x, weight, bias, dtype, plan, count)  # type: ignore[no-any-return]
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return matmul(rows, weight, bias, dtype, plan, count).view(*x.shape[:-1], weight.shape[0])  # type: ignore[no-any-return]


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype | None, row: bool
) -> torch.Tensor:
    """`linear` or `linear_row` of the contract."""
    check(x, weight, bias)
    if weight.dim() != 2:
        raise InputError("aligned linear: weight is [N, K]", value=tuple(weight.shape))
    dtype = _result(x, out_dtype)
    if row:
        return flat(x, weight, bias, dtype, cpu.TREE, row_leaves(x.shape[-1]))
    return flat(x, weight, bias, dtype, cpu.SINGLE, 1)


def tree_combine(partials: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype) -> torch.Tensor:
    """T(t) over partials [t, ..., N], bias, one cast."""
    if not has_kernels(partials) or partials.dtype != torch.float32 or out_dtype not in DTYPES:
        raise UnsupportedError(
            f"tree_combine: partials are {partials.dtype} on {partials.device}, out {out_dtype}",
            value=str(partials.dtype),
            hint="fp32 partials on the CPU or an NPU; bfloat16, float16 or float32 out",
        )
    count = partials.shape[0] if partials.dim() >= 2 else 0
    if count < 1 or count & (count - 1) or count > 64:
        raise UnsupportedError(
            "tree_combine: the number of partials is no power of two up to 64", value=tuple(partials.shape)
        )
    n = partials.shape[-1]
    if bias is not None and (bias.shape != (n,) or bias.dtype not in DTYPES or bias.is_cpu != partials.is_cpu):
        raise InputError("tree_combine: bias is one value per column", value=tuple(bias.shape))
    flat = partials.reshape(count, math.prod(partials.shape[1:-1]), n)
    made: torch.Tensor = KERNELS.of(partials).tree_combine(flat, bias, out_dtype)
    return made.view(partials.shape[1:])


def grouped_linear(
    x: torch.Tensor,
    offsets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    row: bool,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """`linear` or `linear_row` per group of rows."""
    check(x, weight, bias)
    if x.dim() != 2 or weight.dim() != 3 or offsets.shape != (weight.shape[0] + 1,):
        raise InputError(
            "grouped_linear: shapes don't fit",
            value=[tuple(x.shape), tuple(offsets.shape), tuple(weight.shape)],
            hint="x [R, K], offsets [E+1], weight [E, N, K]",
        )
    offsets = group_offsets(offsets, x)
    plan, count = (cpu.TREE, row_leaves(x.shape[1])) if row else (cpu.SINGLE, 1)
    made: torch.Tensor = KERNELS.of(x).grouped_matmul(x, offsets, weight, bias, _result(x, out_dtype), plan, count)
    return made


def group_offsets(offsets: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The offsets of the groups of x's rows as int64 beside x, checked to run from 0 to the number of rows.

    On an NPU the check would wait for the device: what is there is up to the driver.
    """
    rows = x.shape[0]
    offsets = offsets.to(device=x.device, dtype=torch.int64).contiguous()
    if x.is_cpu and (int(offsets[0]) != 0 or int(offsets[-1]) != rows):
        raise InputError(f"grouped_linear: offsets don't run from 0 to the {rows} rows", value=offsets.tolist()[:8])
    return offsets


def lm_head(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float, softcap: float
) -> torch.Tensor:
    """Logits, scaled and capped."""
    logits = linear(x, weight, bias, torch.float32, False)
    if scale != 1.0 or softcap != 0.0:
        KERNELS.of(logits).scale_cap_(logits, scale, softcap)
    return logits
