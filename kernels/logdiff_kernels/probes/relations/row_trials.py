"""Trials of row families: what a row gives must not depend on what else is in the call, or on how it is laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.bits import parts
from logdiff_kernels.probes.records import Impl, Problem, Result
from logdiff_kernels.probes.relations.trial import Trial, spread


def whole(impl: Impl, problem: Problem) -> Result:
    """The result of one call with all rows."""
    return parts(impl.call(**problem.rows, **problem.fixed))


def rows_of(result: Result, index: list[int]) -> list[Result]:
    """One result per row."""
    return [tuple(x[i : i + 1] for x in result) for i in index]


def _compared(variant: str, index: list[int], base: Result, varied: Result) -> Trial:
    """The same rows of two results."""
    return Trial(variant, index, rows_of(base, index), rows_of(varied, index))


def compiled(impl: Impl) -> Callable[..., Any]:
    """The call, compiled anew for the shapes that it gets."""
    torch._dynamo.reset()
    return torch.compile(impl.call, dynamic=False)


def _batch(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    if count < 2:
        return
    full = whole(impl, problem)
    kept = spread(count)
    alone = [whole(impl, problem.take(slice(i, i + 1))) for i in kept]
    yield Trial(f"{count} rows against each alone", kept, rows_of(full, kept), alone)
    for fewer in sorted({count // 2, count - 1} - {0, 1}):
        part = whole(impl, problem.take(slice(0, fewer)))
        index = spread(fewer)
        yield _compared(f"{count} rows against {fewer}", index, full, part)


def _order(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    if count < 2:
        return
    full = whole(impl, problem)
    index = list(range(count))
    for name, order in (
        ("reversed", torch.arange(count).flip(0)),
        ("rotated", torch.arange(count).roll(max(1, count // 3))),
    ):
        moved = whole(impl, problem.take(order))
        back = torch.empty(count, dtype=torch.int64)
        back[order] = torch.arange(count)
        again = tuple(x[back] for x in moved)
        yield _compared(f"rows {name}", index, full, again)


def _neighbours(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    if count < 2:
        return
    full = whole(impl, problem)
    kept = sorted({0, count // 2} if count > 2 else {0})
    others = [i for i in range(count) if i not in kept]
    changes = [("other values", _halved)]
    if any(rows.is_floating_point() for rows in problem.rows.values()):
        changes.append(("NaN", _spoiled))
    for name, change in changes:
        changed = {key: change(rows, others) for key, rows in problem.rows.items()}
        result = whole(impl, problem.with_rows(changed))
        yield Trial(f"{name} in the other {len(others)} rows", kept, rows_of(full, kept), rows_of(result, kept))


def _halved(rows: Tensor, others: list[int]) -> Tensor:
    """Floats halved and shifted; whole numbers, which may be ids, become those of the first row."""
    changed = rows.clone()
    changed[others] = (rows[others] * 0.5 + 0.25).to(rows.dtype) if rows.is_floating_point() else rows[0]
    return changed


def _spoiled(rows: Tensor, others: list[int]) -> Tensor:
    if not rows.is_floating_point():
        return rows
    changed = rows.clone()
    changed[others] = torch.nan
    return changed


def _padding(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    full = whole(impl, problem)
    index = list(range(count))
    for extra in sorted({1, 7, -count % 64 or 64}):
        for side in ("after", "before"):
            padded = {key: _padded(rows, extra, side) for key, rows in problem.rows.items()}
            result = whole(impl, problem.with_rows(padded))
            kept = tuple(x[:count] if side == "after" else x[extra:] for x in result)
            yield _compared(f"{extra} zero rows {side}", index, full, kept)


def _padded(rows: Tensor, extra: int, side: str) -> Tensor:
    zeros = rows.new_zeros((extra, *rows.shape[1:]))
    if not rows.is_floating_point():
        zeros = rows[:1].expand(extra, *rows.shape[1:])  # ids that are legal
    return torch.cat([rows, zeros] if side == "after" else [zeros, rows])


def _in_pieces(impl: Impl, problem: Problem, bounds: list[int]) -> Result:
    pieces = [whole(impl, problem.take(slice(a, b))) for a, b in pairwise(bounds)]
    return tuple(torch.cat(of) for of in zip(*pieces, strict=True))


def _micro_batch(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    sizes = [size for size in (2, 8, 64, 512) if size < count][-2:]
    if not sizes:
        return
    full = whole(impl, problem)
    index = spread(count, 64)
    for size in sizes:
        again = _in_pieces(impl, problem, [*range(0, count, size), count])
        yield _compared(f"calls of {size} rows", index, full, again)


def _chunking(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    if count < 3:
        return
    full = whole(impl, problem)
    index = spread(count, 64)
    for first in sorted({1, count // 3 or 1, count - 1}):
        again = _in_pieces(impl, problem, [0, first, count])
        yield _compared(f"{first} rows, then {count - first}", index, full, again)


def _rerun(impl: Impl, problem: Problem) -> Iterator[Trial]:
    full = whole(impl, problem)
    index = spread(problem.count, 64)
    for number in (2, 3):
        yield _compared(f"run {number}", index, full, whole(impl, problem))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """That many threads for torch and for libraries on its OpenMP runtime."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_counts() -> list[int]:
    """Numbers of threads to try beside the present one."""
    now = torch.get_num_threads()
    return [n for n in (1, 2, 3, 4) if n != now and n <= max(2, 2 * now)]


def _threads(impl: Impl, problem: Problem) -> Iterator[Trial]:
    full = whole(impl, problem)
    index = spread(problem.count, 64)
    now = torch.get_num_threads()
    for number in thread_counts():
        with threads(number):
            again = whole(impl, problem)
        yield _compared(f"{now} threads against {number}", index, full, again)


def _tp(impl: Impl, problem: Problem) -> Iterator[Trial]:
    assert impl.split is not None
    full = whole(impl, problem)
    index = spread(problem.count, 64)
    for ranks in (2, 4):
        again = impl.split(problem, ranks)
        if again is not None:
            yield _compared(f"1 rank against {ranks}", index, full, parts(again))


def _packing(impl: Impl, problem: Problem) -> Iterator[Trial]:
    count = problem.count
    full = whole(impl, problem)
    index = spread(count, 64)
    for batch in [1, *([2] if count % 2 == 0 else []), *([count] if count > 2 else [])]:
        folded = {key: rows.reshape(batch, count // batch, *rows.shape[1:]) for key, rows in problem.rows.items()}
        result = tuple(x.flatten(0, 1) for x in whole(impl, problem.with_rows(folded)))
        name = f"[{count}, n] against [{batch}, {count // batch}, n]"
        yield _compared(name, index, full, result)


def _strides(impl: Impl, problem: Problem) -> Iterator[Trial]:
    full = whole(impl, problem)
    index = spread(problem.count, 64)
    views = {key: apart(rows) for key, rows in problem.rows.items()}
    yield _compared("rows apart", index, full, whole(impl, problem.with_rows(views)))


def apart(rows: Tensor) -> Tensor:
    """The same values in a tensor twice as wide, as slices of a fused projection lie."""
    if rows.dim() < 2:
        wide = rows.new_zeros(2 * rows.shape[0])
        wide[::2] = rows
        return wide[::2]
    wide = rows.new_zeros((*rows.shape[:-1], 2 * rows.shape[-1]))
    wide[..., : rows.shape[-1]] = rows
    return wide[..., : rows.shape[-1]]


def _compile(impl: Impl, problem: Problem) -> Iterator[Trial]:
    full = whole(impl, problem)
    index = spread(problem.count, 64)
    again = parts(compiled(impl)(**problem.rows, **problem.fixed))
    yield _compared("eager against compiled", index, full, again)


TRIALS: dict[str, Callable[[Impl, Problem], Iterator[Trial]]] = {
    "batch": _batch,
    "order": _order,
    "neighbours": _neighbours,
    "padding": _padding,
    "chunking": _chunking,
    "rerun": _rerun,
    "threads": _threads,
    "micro_batch": _micro_batch,
    "tp": _tp,
    "packing": _packing,
    "strides": _strides,
    "compile": _compile,
}
