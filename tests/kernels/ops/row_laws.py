"""Laws that hold for every operator whose rows are independent, checked bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tests.kernels.oracle import differing

Rows = Callable[..., Tensor | tuple[Tensor, ...]]


def _all(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def same(a: Tensor | tuple[Tensor, ...], b: Tensor | tuple[Tensor, ...], what: str = "") -> None:
    """Fail with the number of elements that differ."""
    for x, y in zip(_all(a), _all(b), strict=True):
        if x.dtype == torch.int64:
            assert torch.equal(x, y), what
        else:
            assert differing(x, y) == 0, (what, differing(x, y), x.numel())


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_rows(fn: Rows, *rows: Tensor) -> None:
    """Laws 1, 5 and 8 for `fn` of tensors [T, ...] that share their first dimension."""
    whole = _all(fn(*rows))
    count = rows[0].shape[0]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    same(_all(fn(*(r[order] for r in rows))), tuple(w[order] for w in whole), "a permutation of the rows")
    for i in range(0, count, max(1, count // 3)):
        same(_all(fn(*(r[i : i + 1] for r in rows))), tuple(w[i : i + 1] for w in whole), "one row alone")
    poisoned = [torch.cat([_poison(r), r, _poison(r)]) for r in rows]
    n = poisoned[0].shape[0] - count
    around = _all(fn(*poisoned))
    same(tuple(a[n // 2 : n // 2 + count] for a in around), whole, "NaN rows as neighbours")
    for number in (1, 3):
        with threads(number):
            same(fn(*rows), whole, f"{number} threads")
    same(fn(*rows), whole, "run to run")
    same(fn(*(strided(r) for r in rows)), whole, "strided rows")
    same(fn(*(scattered(r) for r in rows)), whole, "no unit stride")


def _poison(r: Tensor) -> Tensor:
    return torch.full_like(r[:2], float("nan")) if r.is_floating_point() else r[:2]


def strided(x: Tensor) -> Tensor:
    """The same values inside a wider tensor: rows with gaps and an odd offset."""
    shape = list(x.shape)
    shape[-1] += 5
    wide = torch.full(shape, 77, dtype=x.dtype) if not x.is_floating_point() else x.new_full(shape, float("nan"))
    view = wide[..., 3 : 3 + x.shape[-1]]
    view.copy_(x)
    return view


def scattered(x: Tensor) -> Tensor:
    """The same values with a last dimension that isn't next to each other in memory."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1) if x.dim() > 1 else torch.stack([x, x], dim=1)[:, 0]


def rms(error: Tensor) -> float:
    return float(error.double().square().mean().sqrt())


def check_accuracy(ours: Tensor, stock: Tensor, reference: Tensor) -> None:
    """Law 10: bf16 and fp16 at most 1.05 times the stock error; fp32 twice, or 2^-22 relative."""
    scale = rms(reference)
    error, theirs = rms(ours.double() - reference), rms(stock.double() - reference)
    if ours.dtype == torch.float32:
        assert error <= max(2 * theirs, 2.0**-22 * scale), (error, theirs, scale)
    else:
        assert error <= 1.05 * theirs, (error, theirs)
