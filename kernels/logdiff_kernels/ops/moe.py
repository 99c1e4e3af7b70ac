"""The experts of a mixture: rows sorted by expert, gate and up, activation, down, combined in fp32.

`moe` is made of four operators with gradients of their own: `moe_gather`, `grouped_linear`, the activation and
`moe_combine`. Backward of the combine: dy = RINT(w*dout), dw = R64(dout*y), the shared expert's is dout; of the gather:
the sum of a token's rows in fp32, lowest logical expert first, one cast.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.cpu import moe as cpu
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.activation import geglu_tanh, swiglu, swiglu_clamped
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels, has_kernels
from logdiff_kernels.ops.direct import check_floats, check_fp32, check_shapes, direct
from logdiff_kernels.ops.linear import grouped_linear, linear_row_partial

_kernels = Kernels(cpu)

Activation = str | tuple[str, float, float]


def moe(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: Activation = "swiglu",
    interleaved: bool = False,
    expert_ids: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """Each token through its experts, combined with its weights.

    Args:
        x: [T, H] bf16, fp16 or fp32.
        ids: int64 [T, k], rows of `gate_up` and `down`; below 0: an expert of another rank, left out.
        weights: fp32 [T, k].
        gate_up: [E, 2I, H] of any strides (a checkpoint's [E, H, 2I] as `.transpose(1, 2)`): gate, then up.
        down: [E, H, I] of any strides.
        gate_up_bias: [E, 2I].
        down_bias: [E, H].
        activation: `swiglu`, `geglu_tanh` or (`swiglu_clamped`, alpha, limit).
        interleaved: gate and up are the even and odd outputs of `gate_up`.
        expert_ids: int64 [E], the logical expert of each weight row where rows are replicas or another rank's order;
            None: the row's own index. The sum starts with the lowest logical expert.
        shared: [T, H], the shared expert's output after its own gate, added last.

    Returns:
        [T, H] like x.

    Raises:
        UnsupportedError: another dtype or device, an activation that isn't covered.
        InputError: shapes that don't fit, an expert twice in one token, one that isn't there.
    """
    check_fp32("moe", weights)
    check_floats("moe", x, gate_up, down, gate_up_bias, down_bias, shared)
    fits = (
        x.dim() == 2
        and ids.dim() == 2
        and ids.shape == weights.shape
        and ids.shape[0] == x.shape[0]
        and gate_up.dim() == down.dim() == 3
        and gate_up.shape[0] == down.shape[0]
        and gate_up.shape[1] == 2 * down.shape[2]
        and gate_up.shape[2] == x.shape[1]
        and (shared is None or (shared.shape[0] == x.shape[0] and shared.shape[1] == down.shape[1]))
    )
    check_shapes(
        "moe",
        fits,
        "x [T, H], ids and weights [T, k], gate_up [E, 2I, H], down [E, H, I]",
        x,
        ids,
        weights,
        gate_up,
        down,
    )
    offsets, order, position = _sort(ids, gate_up.shape[0], expert_ids)
    rows = _gather(x, ids, order, position, expert_ids)
    hidden = _activated(grouped_linear(rows, offsets, gate_up, gate_up_bias), activation, interleaved)
    y = grouped_linear(hidden, offsets, down, down_bias, row=True)
    return moe_combine(y, weights, ids, position, expert_ids, shared)


def moe_rows(
    x: Tensor,
    ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    leaves: int,
    gate_up_bias: Tensor | None = None,
    activation: Activation = "swiglu",
    interleaved: bool = False,
    expert_ids: Tensor | None = None,
) -> Tensor:
    """This rank's part of every slot where tensor parallelism cuts I: fp32 [T, k, H], +0 for slots that aren't here.

    The parts of all ranks go through `tree_combine` (its cast, no bias) and then through `moe_combine_slots`. A bias of
    `down` belongs after the tree. No gradient. `leaves` = row_leaves(I) / ranks for the unsharded I; gate_up and down
    hold this rank's I.
    """
    fits = x.dim() == ids.dim() == 2 and x.shape[0] == ids.shape[0] and gate_up.dim() == down.dim() == 3
    fits = fits and gate_up.shape[0] == down.shape[0]
    check_shapes("moe", fits, "x [T, H], ids [T, k], gate_up [E, 2I, H], down [E, H, I]", x, ids, gate_up, down)
    check_floats("moe", x, gate_up, down)
    offsets, order, position = _sort(ids, gate_up.shape[0], expert_ids)
    rows = _gather(x, ids, order, position, expert_ids)
    hidden = _activated(grouped_linear(rows, offsets, gate_up, gate_up_bias), activation, interleaved)
    out = torch.zeros((ids.numel(), down.shape[1]), dtype=torch.float32, device=x.device)
    bounds = offsets.tolist()
    for expert, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            out[order[begin:end]] = linear_row_partial(hidden[begin:end], down[expert], leaves)
    return out.view(*ids.shape, down.shape[1])


def moe_combine_slots(
    y: Tensor, weights: Tensor, ids: Tensor, expert_ids: Tensor | None = None, shared: Tensor | None = None
) -> Tensor:
    """As `moe_combine` for y [T, k, H] in slot order: [T, H]. Slots whose id is below 0 are left out."""
    flat = ids.reshape(-1)
    position = torch.where(flat < 0, flat.new_full((), -1), torch.arange(flat.numel(), device=flat.device))
    return moe_combine(y.reshape(-1, y.shape[-1]), weights, ids, position, expert_ids, shared)


def moe_combine(
    y: Tensor,
    weights: Tensor,
    ids: Tensor,
    position: Tensor,
    expert_ids: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """acc = w*y of the lowest logical expert, then acc + w*y ascending, the shared expert last, one cast: [T, H].

    Args:
        y: [rows, H], the experts' outputs.
        weights: fp32 [T, k].
        ids: int64 [T, k].
        position: int64 [T*k], the row of y of each slot; below 0: none.
        expert_ids: int64 [E], the logical expert of each id; None: the id itself.
        shared: [T, H].
    """
    _check_combine(y, weights, ids, position, expert_ids, shared)
    if direct(y, weights, shared):
        return _kernels.of(y).combine(y, weights, ids, position, expert_ids, shared)  # type: ignore[no-any-return]
    return torch.ops.logdiff.moe_combine(y, weights, ids, position, expert_ids, shared)  # type: ignore[no-any-return]


def _check_combine(
    y: Tensor, weights: Tensor, ids: Tensor, position: Tensor, expert_ids: Tensor | None, shared: Tensor | None
) -> None:
    check_fp32("moe", weights)
    check_floats("moe", y, shared)
    fits = (
        y.dim() == ids.dim() == 2
        and ids.shape == weights.shape
        and position.shape == (ids.numel(),)
        and ids.dtype == position.dtype == torch.int64
        and (expert_ids is None or (expert_ids.dim() == 1 and expert_ids.dtype == torch.int64))
        and (shared is None or (shared.shape[0] == ids.shape[0] and shared.shape[1:] == y.shape[1:]))
    )
    expected = "y [rows, H], weights [T, k], ids int64 [T, k], position int64 [T*k], shared [T, H]"
    check_shapes("moe", fits, expected, y, weights, ids, position, expert_ids, shared)


def _activated(fused: Tensor, activation: Activation, interleaved: bool) -> Tensor:
    if interleaved:
        gate, up = fused[:, 0::2], fused[:, 1::2]
    else:
        half = fused.shape[1] // 2
        gate, up = fused[:, :half], fused[:, half:]
    if activation == "swiglu":
        return swiglu(gate, up)
    if activation == "geglu_tanh":
        return geglu_tanh(gate, up)
    if isinstance(activation, tuple) and len(activation) == 3 and activation[0] == "swiglu_clamped":
        return swiglu_clamped(gate, up, activation[1], activation[2])
    raise UnsupportedError(
        "aligned moe: an activation that isn't covered",
        value=activation,
        hint="swiglu, geglu_tanh or (swiglu_clamped, alpha, limit)",
    )


def _sort(ids: Tensor, experts: int, expert_ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if ids.dtype != torch.int64 or not has_kernels(ids):
        raise InputError("aligned moe: ids are int64 on the CPU or an NPU", value=f"{ids.dtype} on {ids.device}")
    if expert_ids is not None and (expert_ids.shape != (experts,) or expert_ids.dtype != torch.int64):
        raise InputError("aligned moe: expert_ids are int64, one per expert", value=tuple(expert_ids.shape))
    if direct(ids, expert_ids):
        offsets, order, position = _kernels.of(ids).sort(ids, experts, expert_ids)
        rows = int(offsets[-1])
        return offsets, order if rows == order.shape[0] else order[:rows], position
    return torch.ops.logdiff.moe_sort(ids, experts, expert_ids)  # type: ignore[no-any-return]


def _gather(x: Tensor, ids: Tensor, order: Tensor, position: Tensor, expert_ids: Tensor | None) -> Tensor:
    if direct(x, order):
        return _kernels.of(x).gather(x, order, ids.shape[1])  # type: ignore[no-any-return]
    return torch.ops.logdiff.moe_gather(x, ids, order, position, expert_ids)  # type: ignore[no-any-return]


def _sort_all(ids: Tensor, experts: int, expert_ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    offsets, order, position = _kernels.of(ids).sort(ids, experts, expert_ids)
    if int(offsets[-1]) != order.shape[0]:
        raise UnsupportedError(
            "aligned moe: ids of other ranks aren't covered in a traced graph", hint="run it without torch.compile"
        )
    return offsets, order, position


def _gather_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _x, ids, _order, position, expert_ids = inputs
    ctx.save_for_backward(ids, position, expert_ids)


def _gather_backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    ids, position, expert_ids = ctx.saved_tensors
    return torch.ops.logdiff.moe_gather_backward(d, ids, position, expert_ids), None, None, None, None


def _combine_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y, weights, _ids, position, _expert_ids, shared = inputs
    ctx.save_for_backward(y, weights, position)
    ctx.shared = None if shared is None else shared.dtype


def _combine_backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    y, weights, position = ctx.saved_tensors
    dy, dweights = torch.ops.logdiff.moe_combine_backward(dout, y, weights, position)
    return dy, dweights, None, None, None, None if ctx.shared is None else dout.to(ctx.shared)


define(
    "moe_sort(Tensor ids, SymInt experts, Tensor? expert_ids) -> (Tensor, Tensor, Tensor)",
    _sort_all,
    lambda ids, experts, expert_ids: (
        ids.new_empty(experts + 1),
        ids.new_empty(ids.numel()),
        ids.new_empty(ids.numel()),
    ),
)
define(
    "moe_gather(Tensor x, Tensor ids, Tensor order, Tensor position, Tensor? expert_ids) -> Tensor",
    lambda x, ids, order, position, expert_ids: _kernels.of(x).gather(x, order, ids.shape[1]),
    lambda x, ids, order, position, expert_ids: x.new_empty((order.shape[0], x.shape[1])),
    _gather_setup,
    _gather_backward,
)
define(
    "moe_gather_backward(Tensor d, Tensor ids, Tensor position, Tensor? expert_ids) -> Tensor",
    lambda d, ids, position, expert_ids: _kernels.of(d).combine(d, None, ids, position, expert_ids, None),
    lambda d, ids, position, expert_ids: d.new_empty((ids.shape[0], d.shape[1])),
)
define(
    "moe_combine(Tensor y, Tensor weights, Tensor ids, Tensor position, Tensor? expert_ids, Tensor? shared) -> Tensor",
    lambda y, *rest: _kernels.of(y).combine(y, *rest),
    lambda y, weights, ids, position, expert_ids, shared: y.new_empty((ids.shape[0], y.shape[1])),
    _combine_setup,
    _combine_backward,
)
define(
    "moe_combine_backward(Tensor dout, Tensor y, Tensor weights, Tensor position) -> (Tensor, Tensor)",
    lambda dout, y, *rest: _kernels.of(y).combine_backward(dout.to(y.dtype), y, *rest),
    lambda dout, y, weights, position: (y.new_empty(y.shape), weights.new_empty(weights.shape)),
)
