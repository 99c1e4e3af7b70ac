"""`logdiff kernels selftest`: the laws of the numeric contract on a small grid, on the machine that will run it.

Bitwise where only shape varies; rounding is judged against the fp64 references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels import laws, ops
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.ops import registry
from logdiff_kernels.ops.reference import activation as exact_activation
from logdiff_kernels.ops.reference import attention as exact_attention
from logdiff_kernels.ops.reference import embedding as exact_embedding
from logdiff_kernels.ops.reference import linear as exact_linear
from logdiff_kernels.ops.reference import logprob as exact_logprob
from logdiff_kernels.ops.reference import moe as exact_moe
from logdiff_kernels.ops.reference import norm as exact_norm
from logdiff_kernels.ops.reference import rope as exact_rope
from logdiff_kernels.ops.reference import router as exact_router

ROWS = 11
_EPSILON = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_SLACK = 4.0
"""Allowed rms error in units of one rounding's greatest relative error; fp32 sums get more, by their length."""


@dataclass(frozen=True)
class Rowwise:
    """An operator whose rows are independent.

    Attributes:
        kernel: name in the report.
        dtype: of its inputs.
        rows: inputs with one row per entry of dimension 0.
        call: rows -> result or results, dimension 0 the same.
        exact: the same in fp64; None: not judged (a choice of ids).
        terms: length of its longest sum.
    """

    kernel: str
    dtype: torch.dtype
    rows: tuple[Tensor, ...]
    call: Callable[..., Any]
    exact: Callable[..., Any] | None
    terms: int


def run(progress: laws.OnProgress | None = None) -> dict[str, Any]:
    """Try every law of every kernel of the CPU library: `laws.report`.

    Raises:
        UnsupportedError: the kernels can't be built or loaded.
    """
    provider = registry.provider("aligned-cpu")
    return laws.report(provider.name, provider.isa, [laws.Check(*check) for check in _checks()], progress)


def _checks() -> Iterator[tuple[str, str, Callable[[], str]]]:
    """(kernel, law, check): a check gives an empty text when the law holds, else what broke it."""
    rowwise: dict[str, Callable[[Rowwise], str]] = {
        "one row = many rows": _alone,
        "any order of rows": _permuted,
        "any neighbours, NaN too": _nan_neighbour,
        "any number of threads": _threads,
        "any strides": _strided,
        "run to run": _again,
    }
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for case in _cases(dtype):
            name = f"{case.kernel}/{str(dtype).removeprefix('torch.')}"
            for law, check in rowwise.items():
                yield name, law, partial(check, case)
            if case.exact is not None:
                yield name, "rounding against fp64", partial(_accuracy, case)
        yield from _attention_checks(dtype)


def _cases(dtype: torch.dtype) -> Iterator[Rowwise]:
    make = _Data(dtype)
    for k, n in ((96, 40), (577, 130)):
        x, w, b = make.rows(k), make.weight(n, k), make.weight(n)

        yield Rowwise(
            f"linear {k}x{n}", dtype, (x,), lambda x, w=w, b=b: ops.linear(x, w, b),
            lambda x, w=w, b=b: exact_linear.linear(x, w, b), k,
        )  # fmt: skip
        yield Rowwise(
            f"linear_row {k}x{n}", dtype, (x,), lambda x, w=w: ops.linear_row(x, w),
            lambda x, w=w: exact_linear.linear_row(x, w), k,
        )  # fmt: skip
    x, w = make.rows(96), make.weight(130, 96)
    head = lambda x, w=w: ops.lm_head(x, w, None, 0.5, 30.0)  # noqa: E731
    yield Rowwise("lm_head", dtype, (x,), head, lambda x, w=w: exact_linear.lm_head(x, w, None, 0.5, 30.0), 96)
    ids, table = torch.randint(0, 130, (ROWS,), generator=make.generator), make.weight(130, 96)
    yield Rowwise(
        "embedding", dtype, (ids,), lambda i, t=table: ops.embedding(i, t),
        lambda i, t=table: exact_embedding.embedding(i, t), 1,
    )  # fmt: skip
    for n in (96, 577):
        x, r, w = make.rows(n), make.rows(n), make.weight(n)
        yield Rowwise(
            f"rms_norm {n}", dtype, (x,), lambda x, w=w: ops.rms_norm(x, w, 1e-6),
            lambda x, w=w: exact_norm.rms_norm(x, w, 1e-6), n,
        )  # fmt: skip
        yield Rowwise(f"add_rms_norm {n}", dtype, (x, r), lambda x, r, w=w: ops.add_rms_norm(x, r, w, 1e-6), None, n)
    x, angle = make.rows(3 * 64).view(ROWS, 3, 64), torch.rand(ROWS, 32, generator=make.generator) * 6
    yield Rowwise("rope", dtype, (x, angle.cos(), angle.sin()), ops.rope, exact_rope.rope, 2)
    gate, up = make.rows(577), make.rows(577)
    yield Rowwise("swiglu", dtype, (gate, up), ops.swiglu, exact_activation.swiglu, 2)
    yield Rowwise("geglu_tanh", dtype, (gate, up), ops.geglu_tanh, exact_activation.geglu_tanh, 2)
    yield Rowwise(
        "swiglu_clamped", dtype, (gate, up), lambda g, u: ops.swiglu_clamped(g, u, 1.702, 7.0),
        lambda g, u: exact_activation.swiglu_clamped(g, u, 1.702, 7.0), 2,
    )  # fmt: skip
    logits = torch.randn(ROWS, 130, generator=make.generator) * 4
    if dtype is torch.float32:
        chosen = torch.randint(0, 130, (ROWS,), generator=make.generator)
        yield Rowwise(
            "logprob", dtype, (logits, chosen), lambda z, i: ops.logprob(z, i, 0.7),
            lambda z, i: exact_logprob.logprob(z, i, 0.7), 130,
        )  # fmt: skip
        rule = RouterSpec(top_k=4, renormalize=True)
        grouped = RouterSpec(top_k=4, scoring="sigmoid", groups=5, topk_groups=2, group_score="top2", scaling=2.5)
        for name, spec in (("router softmax", rule), ("router sigmoid groups", grouped)):
            yield Rowwise(
                name, dtype, (logits[:, :40],), lambda z, s=spec: ops.router(z, s),
                lambda z, s=spec: exact_router.router(z, s)[0], 40,
            )  # fmt: skip
    x, fused, down = make.rows(64), make.weight(8, 96, 64), make.weight(8, 64, 48)
    weights, experts = ops.router(logits[:, :8].contiguous(), RouterSpec(top_k=2, renormalize=True))
    yield Rowwise(
        "moe", dtype, (x, experts, weights), lambda x, i, w: ops.moe(x, i, w, fused, down),
        lambda x, i, w: exact_moe.moe(x, i, w, fused, down), 64,
    )  # fmt: skip


class _Data:
    """Random rows with outliers, signed zeros and subnormals, the same in every process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(20240607)

    def rows(self, width: int) -> Tensor:
        values = torch.randn(ROWS, width, generator=self.generator)
        values[:, 0] *= 50.0
        values[0, 1:5] = torch.tensor([0.0, -0.0, 1e-39, -1e-39])
        return values.to(self.dtype)

    def weight(self, *shape: int) -> Tensor:
        return (torch.randn(*shape, generator=self.generator) * 0.2).to(self.dtype)


def _parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def same_bits(first: Any, second: Any) -> str:
    """Empty when two results have the same bits (any NaN equals any NaN), else where they first differ."""
    for number, (a, b) in enumerate(zip(_parts(first), _parts(second), strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number}: {tuple(a.shape)} {a.dtype} against {tuple(b.shape)} {b.dtype}"
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        differ = a.contiguous().view(kind) != b.contiguous().view(kind)
        if a.is_floating_point():
            differ &= ~(a.isnan() & b.isnan())
        if bool(differ.any()):
            return f"{int(differ.sum())} of {a.numel()} values differ, first at {differ.nonzero()[0].tolist()}"
    return ""


def _take(rows: tuple[Tensor, ...], index: Any) -> tuple[Tensor, ...]:
    return tuple(row[index] for row in rows)


def _alone(case: Rowwise) -> str:
    whole = _parts(case.call(*case.rows))
    for i in range(ROWS):
        found = same_bits(tuple(w[i : i + 1] for w in whole), _parts(case.call(*_take(case.rows, slice(i, i + 1)))))
        if found:
            return f"row {i} alone: {found}"
    return ""


def _permuted(case: Rowwise) -> str:
    order = torch.arange(ROWS).flip(0).roll(4)  # leaves no row at its place but one, and not the first
    whole = _parts(case.call(*case.rows))
    return same_bits(tuple(w[order] for w in whole), _parts(case.call(*_take(case.rows, order))))


def _nan_neighbour(case: Rowwise) -> str:
    spoiled = []
    for row in case.rows:
        copy = row.clone()
        if row.is_floating_point():
            copy[3] = torch.nan
        spoiled.append(copy)
    keep = [i for i in range(ROWS) if i != 3]
    whole, other = _parts(case.call(*case.rows)), _parts(case.call(*spoiled))
    return same_bits(tuple(w[keep] for w in whole), tuple(o[keep] for o in other))


def _threads(case: Rowwise) -> str:
    return _on_one_thread(lambda: case.call(*case.rows))


def _on_one_thread(call: Callable[[], Any]) -> str:
    many = call()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return same_bits(many, call())
    finally:
        torch.set_num_threads(threads)


def _strided(case: Rowwise) -> str:
    views = []
    for row in case.rows:
        wide = torch.zeros(*row.shape[:-1], row.shape[-1] * 2, dtype=row.dtype) if row.dim() > 1 else None
        if wide is None:
            apart = torch.zeros(2 * row.shape[0], dtype=row.dtype)
            apart[::2] = row
            views.append(apart[::2])
        else:
            wide[..., : row.shape[-1]] = row
            views.append(wide[..., : row.shape[-1]])
    return same_bits(case.call(*case.rows), case.call(*views))


def _again(case: Rowwise) -> str:
    return same_bits(case.call(*case.rows), case.call(*case.rows))


def _accuracy(case: Rowwise) -> str:
    assert case.exact is not None
    return _rounding(_parts(case.call(*case.rows))[0], case.exact(*case.rows), case.terms)


def _rounding(found: Tensor, exact: Tensor, terms: int) -> str:
    exact = exact.double()
    error, size = (found.double() - exact).norm(), exact.norm()
    allowed = _SLACK * (_EPSILON[found.dtype] + _EPSILON[torch.float32] * terms**0.5)
    share = float(error / size) if size else float(error)
    return "" if share <= allowed else f"rms error {share:.3g} of the result, allowed {allowed:.3g}"


def _attention_checks(dtype: torch.dtype) -> Iterator[tuple[str, str, Callable[[], str]]]:
    name = f"attention/{str(dtype).removeprefix('torch.')}"
    paged = f"paged_attention/{str(dtype).removeprefix('torch.')}"
    for what, options in (
        ("", {}),
        (" window sinks", {"window": 40, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}),
        (" cap", {"softcap": 20.0}),
    ):
        case = _Sequences(dtype, options)
        yield name + what, "packed = one at a time", case.alone
        yield name + what, "prefill = any chunks", case.chunks
        yield name + what, "any number of threads", partial(_on_one_thread, case.whole)
        yield name + what, "rounding against fp64", case.accuracy
        yield paged + what, "pages = packed", case.pages


class _Sequences:
    """Three sequences, of 1, 70 and 530 tokens (past one step of 512 keys), four query heads over two key heads."""

    LENGTHS = (1, 70, 530)
    BLOCK = 16

    def __init__(self, dtype: torch.dtype, options: dict[str, Any]) -> None:
        generator = torch.Generator().manual_seed(7)
        total = sum(self.LENGTHS)
        self.q = torch.randn(total, 4, 64, generator=generator).to(dtype)
        self.k = torch.randn(total, 2, 64, generator=generator).to(dtype)
        self.v = torch.randn(total, 2, 64, generator=generator).to(dtype)
        starts = [0]
        for length in self.LENGTHS:
            starts.append(starts[-1] + length)
        self.starts = starts
        self.cu = torch.tensor(starts, dtype=torch.int32)
        self.options = {"scale": 0.125, **options}

    def whole(self) -> Tensor:
        found: Tensor = ops.attention(self.q, self.k, self.v, self.cu, **self.options)
        return found

    def alone(self) -> str:
        whole = self.whole()
        for a, b in zip(self.starts, self.starts[1:], strict=False):
            one = torch.tensor([0, b - a], dtype=torch.int32)
            found = same_bits(whole[a:b], ops.attention(self.q[a:b], self.k[a:b], self.v[a:b], one, **self.options))
            if found:
                return f"sequence of {b - a}: {found}"
        return ""

    def chunks(self) -> str:
        """The last sequence in chunks of 1, 100 and the rest, each against all keys so far."""
        whole, start = self.whole(), self.starts[-2]
        at = 0
        for size in (1, 100, self.LENGTHS[-1] - 101):
            q = self.q[start + at : start + at + size]
            at += size
            k, v = self.k[start : start + at], self.v[start : start + at]
            cu_q, cu_k = torch.tensor([0, size], dtype=torch.int32), torch.tensor([0, at], dtype=torch.int32)
            found = same_bits(whole[start + at - size : start + at], ops.attention(q, k, v, cu_q, cu_k, **self.options))
            if found:
                return f"chunk of {size} after {at - size}: {found}"
        return ""

    def pages(self) -> str:
        """Keys and values over pages in shuffled order; the last token of every sequence decoded."""
        blocks = sum(-(-n // self.BLOCK) for n in self.LENGTHS)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(3)).tolist()
        shape = (blocks, self.BLOCK, 2, 64)
        k_cache, v_cache = torch.zeros(shape, dtype=self.q.dtype), torch.zeros(shape, dtype=self.q.dtype)
        width = -(-max(self.LENGTHS) // self.BLOCK)
        table = torch.zeros(len(self.LENGTHS), width, dtype=torch.int32)
        slots = []
        for row, length in enumerate(self.LENGTHS):
            mine = [order.pop() for _ in range(-(-length // self.BLOCK))]
            table[row, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            slots += [mine[p // self.BLOCK] * self.BLOCK + p % self.BLOCK for p in range(length)]
        ops.store_kv(self.k, self.v, k_cache, v_cache, torch.tensor(slots))
        last = torch.tensor(self.starts[1:]) - 1
        cu = torch.arange(len(self.LENGTHS) + 1, dtype=torch.int32)
        lengths = torch.tensor(self.LENGTHS, dtype=torch.int32)
        decoded = ops.paged_attention(self.q[last], k_cache, v_cache, table, cu, lengths, **self.options)
        return same_bits(self.whole()[last], decoded)

    def accuracy(self) -> str:
        exact = exact_attention.attention(self.q, self.k, self.v, self.cu, **self.options)
        assert isinstance(exact, Tensor)
        return _rounding(self.whole(), exact, max(self.LENGTHS))
