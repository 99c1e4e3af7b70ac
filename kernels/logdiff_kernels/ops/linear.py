"""Matrix products with the contract's order: linear, linear_row, per-expert groups, the tree over ranks, lm_head.

Sums over k are `acc = fma(x, w, acc)`, k ascending from +0, in fp32. Gradients: of x, the same over n, ascending, one
cast; of the weight, blocks of 512 rows in batch order, each ascending from +0, then ((p0 + p1) + p2) + ..., one cast;
of the bias, the same blocks with plain adds. So weight gradients depend on batch order, never on threads.
"""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels.cpu import linear as cpu
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops import linear_forward as forward
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.direct import direct


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x [..., K] times weight [N, K] transposed, plus bias [N], one cast: [..., N] of `out_dtype` (x's by default).

    Dtypes bf16, fp16, fp32, also mixed; any strides.

    Raises:
        UnsupportedError: another device or dtype.
        InputError: shapes that don't fit.
    """
    if direct(x, weight, bias):
        return forward.linear(x, weight, bias, out_dtype, False)
    return torch.ops.logdiff.linear(x, weight, bias, out_dtype)  # type: ignore[no-any-return]


def linear_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `linear`, with k cut in `row_leaves(K)` equal leaves whose fp32 sums meet in the balanced tree, then bias.

    The same bits as any tensor-parallel split of k over 1, 2, 4 or 8 ranks that divides the leaves.
    """
    if direct(x, weight, bias):
        return forward.linear(x, weight, bias, None, True)
    return torch.ops.logdiff.linear_row(x, weight, bias)  # type: ignore[no-any-return]


def linear_row_partial(x: torch.Tensor, weight: torch.Tensor, leaves: int) -> torch.Tensor:
    """This rank's part of `linear_row`: x [..., K/t], weight [N, K/t], `leaves` of its leaves: fp32 [..., N].

    `leaves` is row_leaves(K) / t for the unsharded K. No gradient.

    Raises:
        UnsupportedError: K/t can't be cut in that many leaves, or `leaves` is no power of two.
    """
    forward.check(x, weight, None)
    if leaves < 1 or leaves & (leaves - 1) or x.shape[-1] % leaves:
        raise UnsupportedError(
            "linear_row can't cut this shard's k in its leaves",
            value=(x.shape[-1], leaves),
            hint="a tensor-parallel size that divides row_leaves(K)",
        )
    if torch.compiler.is_compiling():
        return torch.ops.logdiff.linear_row_partial(x, weight, leaves)  # type: ignore[no-any-return]
    return forward.flat(x.detach(), weight.detach(), None, torch.float32, cpu.TREE, leaves)


def tree_combine(
    partials: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """T(t) over fp32 partials [t, ..., N] in rank order, plus bias [N] in fp32, one cast to `out_dtype`: [..., N].

    t is a power of two.
    """
    if direct(partials, bias):
        return forward.tree_combine(partials, bias, out_dtype)
    return torch.ops.logdiff.tree_combine(partials, bias, out_dtype)  # type: ignore[no-any-return]


def grouped_linear(
    x: torch.Tensor,
    offsets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    row: bool = False,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`linear` (`linear_row` if `row`) per group: rows offsets[e] .. offsets[e+1] of x [R, K] by weight[e]: [R, N].

    offsets int64 [E+1], from 0 to R, never falling; weight [E, N, K] of any strides; bias [E, N].
    """
    if direct(x, weight, bias):
        return forward.grouped_linear(x, offsets, weight, bias, row, out_dtype)
    return torch.ops.logdiff.grouped_linear(x, offsets, weight, bias, row, out_dtype)  # type: ignore[no-any-return]


def lm_head(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: float = 1.0, softcap: float = 0.0
) -> torch.Tensor:
    """Logits fp32 [..., V] of x [..., H]: `linear` without a cast, times `scale`, then softcap*tanh1(z/softcap).

    A scale of 1 and a softcap of 0 are skipped.
    """
    if direct(x, weight, bias):
        return forward.lm_head(x, weight, bias, scale, softcap)
    return torch.ops.logdiff.lm_head(x, weight, bias, scale, softcap)  # type: ignore[no-any-return]


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias = inputs[:3]
    ctx.save_for_backward(x, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight = ctx.saved_tensors[:2]
    rows = grad.reshape(-1, grad.shape[-1])
    grad_x = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.logdiff.linear(grad, weight.t(), None, x.dtype)
    if ctx.needs_input_grad[1]:
        grad_weight = torch.ops.logdiff.linear_weight_grad(rows, x.reshape(-1, x.shape[-1]), weight.dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
        grad_bias = torch.ops.logdiff.linear_bias_grad(rows, ctx.bias_dtype)
    return grad_x, grad_weight, grad_bias


def _fake_rows(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


def _whole(grad: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0, grad.shape[0]], device=grad.device)


define(
    "linear_weight_grad(Tensor grad, Tensor x, ScalarType dtype) -> Tensor",
    lambda grad, x, dtype: forward.KERNELS.of(grad).grouped_outer(grad, x, _whole(grad), dtype)[0],
    lambda grad, x, dtype: grad.new_empty((grad.shape[1], x.shape[1]), dtype=dtype),
)
define(
    "linear_bias_grad(Tensor grad, ScalarType dtype) -> Tensor",
    lambda grad, dtype: forward.KERNELS.of(grad).grouped_row_sum(grad, _whole(grad), dtype)[0],
    lambda grad, dtype: grad.new_empty((grad.shape[1],), dtype=dtype),
)
define(
    "linear(Tensor x, Tensor weight, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
    lambda x, weight, bias=None, out_dtype=None: forward.linear(x, weight, bias, out_dtype, False),
    lambda x, weight, bias=None, out_dtype=None: _fake_rows(x, weight, x.dtype if out_dtype is None else out_dtype),
    _save,
    lambda ctx, grad: (*_gradients(ctx, grad), None),
)
define(
    "linear_row(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    lambda x, weight, bias=None: forward.linear(x, weight, bias, None, True),
    lambda x, weight, bias=None: _fake_rows(x, weight, x.dtype),
    _save,
    _gradients,
)
define(
    "linear_row_partial(Tensor x, Tensor weight, int leaves) -> Tensor",
    lambda x, weight, leaves: forward.flat(x, weight, None, torch.float32, cpu.TREE, leaves),
    lambda x, weight, leaves: _fake_rows(x, weight, torch.float32),
)


def _save_logits(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias, ctx.scale, ctx.softcap = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, *([output] if ctx.softcap else []))


def _logit_gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if ctx.softcap:
        t = ctx.saved_tensors[2] / ctx.softcap
        grad = grad * (1.0 - t * t)
    if ctx.scale != 1.0:
        grad = grad * ctx.scale
    return *_gradients(ctx, grad), None, None


define(
    "lm_head(Tensor x, Tensor weight, Tensor? bias=None, float scale=1.0, float softcap=0.0) -> Tensor",
    lambda x, weight, bias=None, scale=1.0, softcap=0.0: forward.lm_head(x, weight, bias, scale, softcap),
    lambda x, weight, bias=None, scale=1.0, softcap=0.0: _fake_rows(x, weight, torch.float32),
    _save_logits,
    _logit_gradients,
)


def _save_tree(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    partials, bias, _ = inputs
    ctx.shape = partials.shape
    ctx.bias_dtype = None if bias is None else bias.dtype


def _tree_gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    grad_bias = None
    if ctx.bias_dtype is not None and ctx.needs_input_grad[1]:
        grad_bias = torch.ops.logdiff.linear_bias_grad(grad.reshape(-1, grad.shape[-1]), ctx.bias_dtype)
    return grad.to(torch.float32).expand(ctx.shape), grad_bias, None


define(
    "tree_combine(Tensor partials, Tensor? bias, ScalarType out_dtype) -> Tensor",
    forward.tree_combine,
    lambda partials, bias, out_dtype: partials.new_empty(partials.shape[1:], dtype=out_dtype),
    _save_tree,
    _tree_gradients,
)


def _save_groups(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, offsets, weight, bias, _, _ = inputs
    ctx.save_for_backward(x, offsets, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _group_gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, offsets, weight = ctx.saved_tensors
    grad_x = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.logdiff.grouped_linear(grad, offsets, weight.transpose(1, 2), None, False, x.dtype)
    if ctx.needs_input_grad[2]:
        grad_weight = torch.ops.logdiff.grouped_weight_grad(grad, x, offsets, weight.dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[3]:
        grad_bias = torch.ops.logdiff.grouped_bias_grad(grad, offsets, ctx.bias_dtype)
    return grad_x, None, grad_weight, grad_bias, None, None


define(
    "grouped_weight_grad(Tensor grad, Tensor x, Tensor offsets, ScalarType dtype) -> Tensor",
    lambda grad, x, offsets, dtype: forward.KERNELS.of(x).grouped_outer(
        grad, x, forward.group_offsets(offsets, x), dtype
    ),
    lambda grad, x, offsets, dtype: grad.new_empty((offsets.shape[0] - 1, grad.shape[1], x.shape[1]), dtype=dtype),
)
define(
    "grouped_bias_grad(Tensor grad, Tensor offsets, ScalarType dtype) -> Tensor",
    lambda grad, offsets, dtype: forward.KERNELS.of(grad).grouped_row_sum(
        grad, forward.group_offsets(offsets, grad), dtype
    ),
    lambda grad, offsets, dtype: grad.new_empty((offsets.shape[0] - 1, grad.shape[1]), dtype=dtype),
)
define(
    "grouped_linear(Tensor x, Tensor offsets, Tensor weight, Tensor? bias=None, bool row=False,"
    " ScalarType? out_dtype=None) -> Tensor",
    lambda x, offsets, weight, bias=None, row=False, out_dtype=None: forward.grouped_linear(
        x, offsets, weight, bias, row, out_dtype
    ),
    lambda x, offsets, weight, bias=None, row=False, out_dtype=None: x.new_empty(
        (x.shape[0], weight.shape[1]), dtype=x.dtype if out_dtype is None else out_dtype
    ),
    _save_groups,
    _group_gradients,
)
