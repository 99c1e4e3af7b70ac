"""Embedding rows on an NPU, or in the twin: the functions of `cpu.embedding` with a launcher in front."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.ascendc.moe import gathered
from logdiff_kernels.ascendc.rows import code, cut
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.cpu.library import DTYPE_CODES
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import LdMoePlan

KERNELS = (
    Kernel(
        "embedding_backward",
        "gradient of an embedding's weight, an id's tokens in batch order",
        LdMoePlan,
        ("grad", "order", "runs", "run_ids"),
        ("out",),
        updated=("out",),
    ),
)


def embedding(launcher: Launcher, ids: Tensor, weight: Tensor, scale: float | None) -> Tensor:
    """As `cpu.embedding.embedding`. Waits for the device, to see whether an id lies outside.

    Raises:
        IndexError: an id outside [0, V).
    """
    weight = weight if weight.stride(1) == 1 or weight.shape[1] <= 1 else weight.contiguous()
    ids, vocab = ids.contiguous(), weight.shape[0]
    if ids.numel():
        low, high = torch.stack(torch.aminmax(ids)).tolist()
        if low < 0 or high >= vocab:
            raise IndexError(f"token id outside [0, {vocab}): ids span {low} to {high}")
    return gathered(launcher, weight, ids, 1, scale)


def embedding_backward(
    launcher: Launcher, grad: Tensor, ids: Tensor, vocab: int, scale: float | None, dtype: torch.dtype
) -> Tensor:
    """As `cpu.embedding.embedding_backward`."""
    grad = grad if grad.stride(1) == 1 or grad.shape[1] <= 1 else grad.contiguous()
    n = grad.shape[1]
    out = torch.zeros((vocab, n), dtype=dtype, device=grad.device)
    ordered, order = torch.sort(ids, stable=True)
    run_ids, lengths = torch.unique_consecutive(ordered, return_counts=True)
    runs = torch.zeros(run_ids.shape[0] + 1, dtype=torch.int64, device=grad.device)
    torch.cumsum(lengths, 0, out=runs[1:])
    plan = LdMoePlan(
        x_stride=grad.stride(0) if grad.shape[0] > 1 else n,
        dtype=code(grad),
        tokens=grad.shape[0],
        top_k=1,
        hidden=n,
        other_dtype=DTYPE_CODES[dtype],
        scale=1.0 if scale is None else scale,
        has_scale=scale is not None,
        rows=cut(launcher, RowKernel.COMBINE, code(grad), run_ids.shape[0], n),
    )
    if grad.numel():
        launcher.launch("embedding_backward", [grad, order, runs, run_ids, out], plan, plan.rows.blocks)
    return out
