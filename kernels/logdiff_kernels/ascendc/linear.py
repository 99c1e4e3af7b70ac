"""Matrix products on NPUs: drivers with the signatures of `cpu.linear`, a launcher in front.

Operands of one dtype go to the kernel as they lie, with either of their two strides 1; others are copied. Operands of
two dtypes are widened to fp32, which is exact. The kernel takes fp32 operands contiguous along k: transposed ones are
copied.
"""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels.ascendc.kernel import FP32, Kernel
from logdiff_kernels.ascendc.rows import code, cut, dense
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.contract import STEP
from logdiff_kernels.cpu.linear import BLOCKS, SINGLE, TREE
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan import plans, structs

MOST_PARTIALS = 8
"""Partial results that `tree_combine` takes: the most leaves of `linear_row`."""

STRIP = 128
"""Columns that a vector core sums at a time for a bias gradient (`row_sum.h`)."""

MOST_STRIDE = 65535
"""Elements between rows that one copy to L1 can step over."""

RUN = 4096
"""Logits that a vector core scales and caps at a time."""

KERNELS = (
    Kernel(
        "linear",
        "matrix product whose accumulator is the result, also per group of rows",
        structs.LdLinearPlan,
        ("a", "b", "offsets"),
        ("c",),
        kind="cube",
    ),
    Kernel(
        "linear_mix",
        "matrix product with a bias, leaves of linear_row or blocks of a weight gradient, also per group",
        structs.LdLinearPlan,
        ("a", "b", "bias", "offsets"),
        ("c", "workspace"),
        kind="mix",
    ),
    Kernel("row_sum", "bias gradient, per group of rows", structs.LdColumnSumPlan, ("a", "offsets"), ("out",)),
    Kernel(
        "tree_combine", "T(t) over the partial results of ranks", structs.LdTreePlan, ("partials", "bias"), ("out",)
    ),
    Kernel(
        "scale_cap",
        "scale and soft cap of logits, in place",
        structs.LdScalePlan,
        (),
        ("logits",),
        updated=("logits",),
        dtypes=FP32,
    ),
)

_KINDS = {SINGLE: plans.Pieces.ONE, TREE: plans.Pieces.LEAVES, BLOCKS: plans.Pieces.BLOCKS}


def matmul(
    launcher: Launcher,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    plan: int = SINGLE,
    count: int = 1,
) -> torch.Tensor:
    """a [M,K] times b [N,K] transposed, + bias [N] in fp32, one cast to `dtype`: [M,N]. Any strides.

    Raises:
        UnsupportedError: leaves that are no power of two up to 8, blocks of another length than the contract's.
    """
    (m, k), n = a.shape, b.shape[0]
    out = a.new_empty((m, n), dtype=dtype)
    if out.numel() == 0:
        return out
    if k == 0:
        return _of_no_k(out, bias)
    a, b = _of_one_dtype(a, b)
    fields = {"m": m, "n": n, "k": k, **_pieces(plan, count, bias)}
    _product(launcher, a, b, bias, None, out, fields)
    return out


def grouped_matmul(
    launcher: Launcher,
    a: torch.Tensor,
    offsets: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    plan: int = SINGLE,
    count: int = 1,
) -> torch.Tensor:
    """Rows offsets[e] .. offsets[e+1] of a [R,K] times b[e] of [E,N,K] transposed, + bias[e] of [E,N]: [R,N].

    Raises:
        UnsupportedError: as `matmul`.
    """
    (rows, k), (groups, n) = a.shape, b.shape[:2]
    out = a.new_empty((rows, n), dtype=dtype)
    if out.numel() == 0:
        return out
    if k == 0:
        counts = offsets.diff().to(a.device)
        return _of_no_k(out, None if bias is None else bias.repeat_interleave(counts, 0))
    a, b = _of_one_dtype(a, b)
    grouping = {"grouping": plans.Grouping.ROWS, "groups": groups}
    fields = {"m": rows, "n": n, "k": k, **grouping, **_pieces(plan, count, bias)}
    _product(launcher, a, b, bias, offsets, out, fields)
    return out


def grouped_outer(
    launcher: Launcher, grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Weight gradients [E,N,K]: per group the sum over its rows of grad [R,N] times x [R,K], by 512-row blocks."""
    groups, (rows, n), k = offsets.shape[0] - 1, grad.shape, x.shape[1]
    out = grad.new_empty((groups, n, k), dtype=dtype)
    if out.numel() == 0 or rows == 0:
        return out.zero_()
    grad, x = _of_one_dtype(grad, x)
    grouping = {"grouping": plans.Grouping.K, "groups": groups, "kind": plans.Pieces.BLOCKS}
    _product(launcher, grad.t(), x.t(), None, offsets, out, {"m": n, "n": k, "k": rows, **grouping})
    return out


def grouped_row_sum(launcher: Launcher, grad: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bias gradients [E,N]: for each group, the sum of its rows of grad [R,N], by 512-row blocks."""
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    groups, (tokens, n) = offsets.shape[0] - 1, grad.shape
    out = grad.new_empty((groups, n), dtype=dtype)
    if out.numel() == 0 or tokens == 0:
        return out.zero_()
    strips = groups * -(-n // STRIP)
    plan = structs.LdColumnSumPlan(
        a_stride=grad.stride(0),
        dtype=code(grad),
        out_dtype=code(out),
        tokens=tokens,
        columns=n,
        groups=groups,
        rows=cut(launcher, plans.RowKernel.COLUMN_SUM, code(grad), strips, STRIP),
    )
    launcher.launch("row_sum", [grad, _table(launcher, offsets), out], plan, plan.rows.blocks)
    return out


def tree_combine(
    launcher: Launcher, partials: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """T(t) over partials [t,R,N] fp32, + bias [N] in fp32, one cast: [R,N].

    Raises:
        UnsupportedError: more than 8 partials.
    """
    if partials.stride(2) != 1:
        partials = partials.contiguous()
    count, rows, n = partials.shape
    if count > MOST_PARTIALS:
        raise UnsupportedError(
            "tree_combine: too many partials for an NPU", value=count, hint=f"at most {MOST_PARTIALS}"
        )
    out = partials.new_empty((rows, n), dtype=dtype)
    if out.numel() == 0:
        return out
    plan = structs.LdTreePlan(
        partial_stride=partials.stride(0),
        row_stride=partials.stride(1),
        dtype=code(out),
        bias_dtype=code(bias),
        count=count,
        rows=cut(launcher, plans.RowKernel.TREE_COMBINE, code(out), rows, n),
    )
    launcher.launch("tree_combine", [partials, dense(bias), out], plan, plan.rows.blocks)
    return out


def scale_cap_(launcher: Launcher, logits: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    """In place on contiguous fp32: times `scale` (unless 1), then softcap*tanh1(z/softcap) (unless 0)."""
    count = logits.numel()
    if count == 0:
        return logits
    length = min(RUN, -(-count // 64) * 64)
    runs = -(-count // length)
    rows = cut(launcher, plans.RowKernel.SCALE_CAP, structs.FLOAT32, runs, length)
    plan = structs.LdScalePlan(count=count, dtype=structs.FLOAT32, scale=scale, cap=softcap, rows=rows)
    launcher.launch("scale_cap", [logits], plan, rows.blocks)
    return logits


def _product(
    launcher: Launcher,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    offsets: torch.Tensor | None,
    out: torch.Tensor,
    fields: dict[str, Any],
) -> None:
    """Plan one product of operands [m, k] and [n, k], and start the kernel that the plan asks for."""
    a, b = _with_unit_stride(a), _with_unit_stride(b)
    plan = plans.linear(
        a_m=a.stride(-2),
        a_k=_k_stride(a),
        b_n=b.stride(-2),
        b_k=_k_stride(b),
        b_group=b.stride(0) if b.dim() == 3 else 0,
        c_m=out.stride(-2),
        c_group=out.stride(0) if out.dim() == 3 else 0,
        dtype=code(a),
        out_dtype=code(out),
        bias_dtype=code(bias),
        cores=launcher.cores,
        **fields,
    )
    table = None if offsets is None else _table(launcher, offsets)
    if plan.mix:
        tensors = [a, b, dense(bias), table, out, launcher.workspace(plan.workspace)]
        launcher.launch("linear_mix", tensors, plan, plan.blocks)
    else:
        launcher.launch("linear", [a, b, table, out], plan, plan.blocks)


def _pieces(plan: int, count: int, bias: torch.Tensor | None) -> dict[str, Any]:
    if plan == BLOCKS and (count != STEP or bias is not None):
        raise UnsupportedError(
            "a product in blocks of k takes no bias and blocks of the contract's length", value=count, hint=f"{STEP}"
        )
    if plan == TREE and (count > MOST_PARTIALS or count & (count - 1)):
        raise UnsupportedError("linear_row: leaves", value=count, hint=f"a power of two up to {MOST_PARTIALS}")
    return {"kind": _KINDS[plan], "leaves": count if plan == TREE else 0}


def _of_one_dtype(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (a, b) if a.dtype == b.dtype else (a.to(torch.float32), b.to(torch.float32))


def _with_unit_stride(x: torch.Tensor) -> torch.Tensor:
    """x [..., rows, k], copied unless it is contiguous along k or, in 16 bits, along its rows.

    Rows that lie too far apart are copied to lie side by side: the kernel would have to fetch them one by one.
    """
    narrow = x.dtype != torch.float32 and x.shape[-2] > 1
    if x.shape[-1] == 1 or x.stride(-1) == 1:
        return x.mT.contiguous().mT if narrow and x.stride(-2) > MOST_STRIDE else x
    return x if narrow and x.stride(-2) == 1 else x.contiguous()


def _k_stride(x: torch.Tensor) -> int:
    return 1 if x.shape[-1] == 1 else x.stride(-1)


def _of_no_k(out: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A sum of nothing is +0."""
    return out.zero_() if bias is None else out.copy_(bias.to(torch.float32) + 0.0)


def _table(launcher: Launcher, offsets: torch.Tensor) -> torch.Tensor:
    return offsets.to(device=launcher.device, dtype=torch.int64).contiguous()
