"""Positive controls: the provider wrapped so that one element depends on the very quantity that a relation varies.

Only what such a kernel could really see is used: shapes, contents, strides, threads, layout, whether it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.bits import as_integers, nudged
from logdiff_kernels.probes.records import Family, Impl, Layout, Problem, Sequence

PLACE = 0.6
"""Where in a row the fault sits unless a caller says otherwise, as a share of its last dimension."""


def planted(name: str, family: Family, impl: Impl, place: float = PLACE) -> Impl:
    """`impl` with a fault that breaks relation I `name` and, as far as possible, nothing else.

    Args:
        name: relation without `I:`.
        family: decides how the call looks.
        impl: what is wrapped.
        place: in [0, 1), which element of the last dimension is nudged.
    """
    if name == "tp":
        assert impl.split is not None
        split = impl.split

        def parted(problem: Problem, ranks: int) -> Any:
            found = split(problem, ranks)
            return None if found is None else _mark(found, ranks, place)

        return replace(impl, split=parted)
    if family.kind == "rows":
        return replace(impl, call=_row_call(name, impl.call, place))
    changed = replace(impl, call=_sequence_call(name, impl.call, place))
    if impl.pieces is not None and name in ("chunking", "decode"):
        pieces = impl.pieces

        def cut(one: Sequence, bounds: list[int], fixed: dict[str, Any]) -> Any:
            return _mark(pieces(one, bounds, fixed), len(bounds), place)

        changed = replace(changed, pieces=cut)
    return changed


def nudge(impl: Impl, family: Family, place: float = PLACE) -> Impl:
    """`impl` with one element of every row one unit in the last place away, always: the control of relation P."""
    if family.kind == "rows":
        call = impl.call
        return replace(impl, call=lambda **inputs: _mark(call(**inputs), 1, place))
    call = impl.call
    return replace(impl, call=lambda listed, layout, fixed: [_mark(r, 1, place) for r in call(listed, layout, fixed)])


def _mark(result: Any, amount: int | Tensor, place: float) -> Any:
    """The result with `amount` added to the bits of one element of each row of its first tensor."""
    listed = result if isinstance(result, (tuple, list)) else (result,)
    first = listed[0]
    if first.dim() < 2:
        marked = nudged(first, amount)
    else:
        at = min(int(place * first.shape[-1]), first.shape[-1] - 1)
        marked = first.contiguous().clone()
        column = marked[..., at]
        if isinstance(amount, Tensor):
            amount = amount.to(first.device).view(-1, *[1] * (column.dim() - 1))
        marked[..., at] = nudged(column, amount)
    return (marked, *listed[1:]) if isinstance(result, (tuple, list)) else marked


def _content(tensors: list[Tensor]) -> int:
    return sum(int(as_integers(x.detach()).to(torch.int64).sum()) for x in tensors) % 32749


def _row_call(name: str, call: Callable[..., Any], place: float) -> Callable[..., Any]:
    runs = [0]

    def faulty(**inputs: Any) -> Any:
        if name == "compile":
            return _mark(call(**inputs), 1, place) if torch.compiler.is_compiling() else call(**inputs)
        runs[0] += 1
        tensors = [x for x in inputs.values() if isinstance(x, Tensor)]
        first = tensors[0]
        amount: int | Tensor
        if name == "order":
            amount = torch.arange(first.shape[0])
        elif name == "neighbours":
            amount = _content(tensors)
        elif name == "strides":
            amount = int(not first.is_contiguous())
        elif name == "threads":
            amount = torch.get_num_threads()
        elif name == "rerun":
            amount = runs[0]
        elif name == "packing":
            amount = first.dim() * 64 + first.shape[0] % 64
        else:
            amount = first.shape[0]
        return _mark(call(**inputs), amount, place)

    return faulty


def _sequence_call(name: str, call: Callable[..., Any], place: float) -> Callable[..., Any]:
    runs = [0]

    def faulty(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> Any:
        found = call(listed, layout, fixed)
        if name == "compile":
            return [_mark(x, 1, place) for x in found] if torch.compiler.is_compiling() else found
        runs[0] += 1
        amounts = [0] * len(listed)
        if name == "order":
            amounts = list(range(len(listed)))
        elif name == "neighbours":
            amounts = [_content([x for one in listed for x in one.parts.values()])] * len(listed)
        elif name in ("chunking", "decode"):
            amounts = [one.length for one in listed]
        else:
            key = {
                "padding": layout.width,
                "page_size": layout.page,
                "packing": (layout.kind == "packed") * 64 + len(listed),
                "strides": int(not next(iter(listed[0].parts.values())).is_contiguous()),
                "threads": torch.get_num_threads(),
                "rerun": runs[0],
            }.get(name, len(listed))
            amounts = [key] * len(listed)
        return [_mark(x, amount, place) for x, amount in zip(found, amounts, strict=True)]

    return faulty
