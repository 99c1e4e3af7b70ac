"""RoPE on an NPU, or in the twin: the function of `cpu.rope` with a launcher in front."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.ascendc.rows import code, cut
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import LdRopePlan

KERNELS = (
    Kernel("rope", "rotary embedding, neox or interleaved, and its backward", LdRopePlan, ("x", "cos", "sin"), ("y",)),
)


def rope(
    launcher: Launcher,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    backward: bool,
    out: Tensor | None = None,
) -> Tensor:
    """As `cpu.rope.rope`; `out` may be x itself and has a unit stride on its last dimension."""
    if x.stride(2) != 1:
        x = x.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tokens, heads, dim = x.shape
    rotary = 2 * cos.shape[1]
    # elements of a token in UB: neox halves and interleaved rows start on whole chunks of 64
    row = -(-rotary // 64) * 64 if interleaved else 2 * (-(-rotary // 128) * 64)
    plan = LdRopePlan(
        x_token=x.stride(0),
        x_head=x.stride(1),
        y_token=out.stride(0),
        y_head=out.stride(1),
        dtype=code(x),
        tokens=tokens,
        heads=heads,
        dim=dim,
        rotary=rotary,
        interleaved=interleaved,
        backward=backward,
        rows=cut(launcher, RowKernel.ROPE, code(x), tokens, heads * row),
    )
    if out.numel():
        launcher.launch("rope", [x, cos, sin, out], plan, plan.rows.blocks)
    return out
