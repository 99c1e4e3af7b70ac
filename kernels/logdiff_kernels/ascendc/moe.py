"""Rows of a mixture of experts on an NPU, or in the twin: the functions of `cpu.moe` with a launcher in front.

`sort` is made of torch's own integer operators on the device: a stable sort has one result. The rest are kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.ascendc.rows import code, cut, dense
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import LdMoePlan

KERNELS = (
    Kernel("gather_rows", "rows picked by an index: MoE's permute, embedding", LdMoePlan, ("x", "index"), ("out",)),
    Kernel(
        "moe_combine",
        "rows of a token's experts summed, lowest logical expert first",
        LdMoePlan,
        ("y", "weights", "ids", "position", "logical", "shared"),
        ("out",),
    ),
    Kernel(
        "moe_combine_backward",
        "gradients of the combine's rows and weights",
        LdMoePlan,
        ("dout", "y", "weights", "position"),
        ("dy", "dweights"),
    ),
)

MOST_SLOTS = 64
"""Slots of a token that the combine puts in order."""


def sort(launcher: Launcher, ids: Tensor, experts: int, logical: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """As `cpu.moe.sort`; entries of `order` behind the rows are slots without a row. Waits for the device.

    Raises:
        InputError: an expert twice in one token, or one that isn't there.
    """
    _check_ids(ids, experts, logical)
    flat = ids.reshape(-1)
    key = torch.where(flat < 0, experts, flat)
    order = torch.sort(key, stable=True)[1]
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, key, torch.ones_like(key))
    offsets = torch.cumsum(torch.nn.functional.pad(counts[:experts], (1, 0)), 0)
    position = torch.empty_like(order)
    position[order] = torch.arange(order.shape[0], dtype=torch.int64, device=ids.device)
    return offsets, order, torch.where(flat < 0, -1, position)


def gather(launcher: Launcher, x: Tensor, order: Tensor, k: int) -> Tensor:
    """As `cpu.moe.gather`."""
    if x.stride(1) != 1 and x.shape[1] > 1:
        x = x.contiguous()
    return gathered(launcher, x, order.contiguous(), k, None)


def gathered(launcher: Launcher, x: Tensor, index: Tensor, k: int, scale: float | None) -> Tensor:
    """x[index // k], times `scale` in fp32 with one cast if it is given; x [rows, n] with elements side by side."""
    count, n = index.shape[0], x.shape[1]
    out = torch.empty((count, n), dtype=x.dtype, device=x.device)
    plan = LdMoePlan(
        x_stride=x.stride(0) if x.shape[0] > 1 else n,
        y_stride=n,
        dtype=code(x),
        tokens=count,
        top_k=k,
        hidden=n,
        source_rows=x.shape[0],
        scale=1.0 if scale is None else scale,
        has_scale=scale is not None,
        rows=cut(launcher, RowKernel.GATHER, code(x), count, n),
    )
    if out.numel():
        launcher.launch("gather_rows", [x, index, out], plan, plan.rows.blocks)
    return out


def combine(
    launcher: Launcher,
    y: Tensor,
    weights: Tensor | None,
    ids: Tensor,
    position: Tensor,
    logical: Tensor | None,
    shared: Tensor | None,
) -> Tensor:
    """As `cpu.moe.combine`. Waits for the device, to see whether a position or an id lies beyond its tensor.

    Raises:
        UnsupportedError: more than 64 experts of a token.
    """
    y, ids, position = y.contiguous(), ids.contiguous(), position.contiguous()
    tokens, k = ids.shape
    if k > MOST_SLOTS:
        raise UnsupportedError("moe_combine: too many slots", value=k, hint=f"at most {MOST_SLOTS} on an NPU")
    _check_rows(position, y)
    if logical is not None and bool(((position.view(-1) >= 0) & _outside(ids.view(-1), logical.shape[0])).any()):
        raise InputError("aligned moe: an id that has no logical expert", value=tuple(y.shape))
    n = y.shape[1]
    out = torch.empty((tokens, n), dtype=y.dtype, device=y.device)
    plan = LdMoePlan(
        dtype=code(y),
        tokens=tokens,
        top_k=k,
        hidden=n,
        source_rows=y.shape[0],
        has_weights=weights is not None,
        other_dtype=code(shared),
        has_logical=logical is not None,
        rows=cut(launcher, RowKernel.COMBINE, code(y), tokens, n),
    )
    if out.numel():
        tensors = [y, dense(weights), ids, position, dense(logical), dense(shared), out]
        launcher.launch("moe_combine", tensors, plan, plan.rows.blocks)
    return out


def combine_backward(
    launcher: Launcher, dout: Tensor, y: Tensor, weights: Tensor, position: Tensor
) -> tuple[Tensor, Tensor]:
    """As `cpu.moe.combine_backward`; waits for the device as `combine` does."""
    dout, y, weights, position = dout.contiguous(), y.contiguous(), weights.contiguous(), position.contiguous()
    _check_rows(position, y)
    tokens, k = weights.shape
    n = y.shape[1]
    dy, dweights = torch.empty_like(y), torch.empty_like(weights)
    plan = LdMoePlan(
        dtype=code(y),
        tokens=tokens,
        top_k=k,
        hidden=n,
        source_rows=y.shape[0],
        rows=cut(launcher, RowKernel.COMBINE_BACKWARD, code(y), tokens * k, n),
    )
    if dweights.numel():
        if not n:
            return dy, dweights.zero_()
        tensors = [dout, y, weights, position, dy, dweights]
        launcher.launch("moe_combine_backward", tensors, plan, plan.rows.blocks)
    return dy, dweights


def _outside(ids: Tensor, count: int) -> Tensor:
    return (ids < 0) | (ids >= count)


def _check_rows(position: Tensor, y: Tensor) -> None:
    if position.numel() and int(position.max()) >= y.shape[0]:
        raise InputError(f"aligned moe: a position beyond the {y.shape[0]} rows", value=tuple(y.shape))


def _check_ids(ids: Tensor, experts: int, logical: Tensor | None) -> None:
    if not ids.numel():
        return
    if int(ids.max()) >= experts:
        raise InputError(f"aligned moe: an expert id beyond the {experts} experts", value=int(ids.max()))
    known = ids if logical is None else torch.where(ids < 0, ids, logical[ids.clamp(min=0)])
    ordered = torch.sort(known, dim=1)[0]
    equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)  # slots without a row may be equal
    if bool(equal.any()):
        raise InputError("aligned moe: a token has the same expert twice", value=tuple(ids.shape))
