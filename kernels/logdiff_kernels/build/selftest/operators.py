"""Every case of every driver: run to run, the CPU library's results, and rows that are independent of each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.ascendc import cases
from logdiff_kernels.ascendc.kernels import kernel
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.build.selftest import bits
from logdiff_kernels.build.selftest.section import Scope, Section

LENGTHS = {Scope.QUICK: (64,), Scope.DEFAULT: (64, 577), Scope.FULL: (1, 63, 64, 65, 577, 1025, 4097)}
"""Of rows or sums: one chunk of R64; nine with a short last one."""

SEED = 20

PLAIN = {
    *("rope", "gather_rows", "row_sum", "tree_combine", "moe_combine", "moe_combine_backward"),
    *("embedding_backward", "store_kv"),
}
"""Kernels of additions, products and casts alone: the CPU library's bits on every chip (contract, G6)."""

_EPSILON = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_SLACK = 16.0
"""How many roundings two correct results may lie apart, rms: a wrong kernel is off by thousands."""

_ODD = 0.1
"""Share of choices that may be others, and of values that may be finite on one of two chips only: where exp or ln of
one flushes subnormals, scores of the other's are equal, and ln has another end."""

_WEIGHT = 2.0**-60
"""Choices of less than that aren't compared."""


@dataclass(frozen=True)
class Rows:
    """Which arguments and results of a function have its rows, along dimension 0 unless said.

    Attributes:
        arguments: positions.
        results: positions.
        dims: dimension by argument where it is not 0.
    """

    arguments: tuple[int, ...] = (0,)
    results: tuple[int, ...] = (0,)
    dims: tuple[tuple[int, int], ...] = ()

    def taken(self, arguments: tuple[Any, ...], rows: Tensor, nan: int = -1) -> tuple[Any, ...]:
        """A call with these rows; row `nan` of the new ones is NaN in the arguments that are floats."""
        found, count = list(arguments), self.count(arguments)
        for i in self.arguments:
            x = arguments[i] if i < len(arguments) else None
            if x is None:
                continue
            dim = dict(self.dims).get(i, 0)
            entries = x.unflatten(dim, (count, x.shape[dim] // count)).index_select(dim, rows)
            if nan >= 0 and x.is_floating_point():
                entries.select(dim, nan).fill_(torch.nan)
            found[i] = entries.flatten(dim, dim + 1)
        return tuple(found)

    def count(self, arguments: tuple[Any, ...]) -> int:
        """How many rows a call has: entries of the first argument; others may have several for each."""
        i = self.arguments[0]
        return int(arguments[i].shape[dict(self.dims).get(i, 0)])


ROWS = {
    "norm.rms_norm": Rows((0,), (0, 1)),
    "norm.add_rms_norm": Rows((0, 1), (0, 1)),
    "norm.rms_norm_backward": Rows((0, 1, 3, 4)),
    "rope.rope": Rows((0, 1, 2)),
    "linear.matmul": Rows(),
    "linear.tree_combine": Rows(dims=((0, 1),)),
    "linear.scale_cap_": Rows(),
    "activation.glu": Rows((0, 1)),
    "activation.glu_backward": Rows((0, 1, 2), (0, 1)),
    "logprob.logprob": Rows((0, 1, 2), (0, 1, 2)),
    "logprob.stats": Rows((0, 1)),
    "logprob.target": Rows((0, 1, 2), (0, 1)),
    "logprob.merge": Rows(),
    "logprob.finish": Rows((0, 1), (0, 1)),
    "logprob.log_softmax": Rows((0, 1, 2)),
    "logprob.logprob_backward": Rows((0, 1, 2, 3, 4, 5, 6)),
    "logprob.log_softmax_backward": Rows((0, 1, 2, 3)),
    "router.router": Rows((0,), (0, 1)),
    "router.router_backward": Rows((0, 1, 2)),
    "moe.gather": Rows((1,)),
    "moe.combine": Rows((2, 1, 3, 5)),
    "embedding.embedding": Rows(),
}
"""By module and function. Attention's rows are sequences (phases.py); sums over rows have none."""


def section(launcher: Launcher, scope: Scope, ascending: Callable[[], bool]) -> Section:
    """The checks of every case.

    Args:
        launcher: runs them.
        scope: which lengths.
        ascending: whether Mmad was found to be the contract's, asked when a check runs.
    """
    found = Section(
        "operators",
        "whether every kernel gives the same bits again, the CPU library's results (its bits, unless the chip's own"
        " Mmad, exp, ln, Div or Sqrt is in it) and rows that don't depend on the batch",
        "the operator's results differ between the hosts: a trainer on one and a rollout on the other don't agree",
    )
    for case in cases.CASES:
        for dtype in case.dtypes[:1] if scope is Scope.QUICK else case.dtypes:
            for length in LENGTHS[scope]:
                tried = _Tried(launcher, case, length, dtype, found, ascending)
                *some, (last, run_last) = tried.laws()
                for law, run in some:
                    found.check(tried.name, f"{law}, length {length}", run)
                found.check(tried.name, f"{last}, length {length}", partial(tried.last, run_last))
    return found


class _Tried:
    """A case on a launcher, in one dtype and length. Its inputs are made anew for each call: some write to them."""

    def __init__(
        self,
        launcher: Launcher,
        case: cases.Case,
        length: int,
        dtype: torch.dtype,
        section: Section,
        ascending: Callable[[], bool],
    ) -> None:
        self.launcher = launcher
        self.case = case
        self.length = length
        self.dtype = dtype
        self.section = section
        self.ascending = ascending
        self.name = f"{case.name}/{str(dtype).removeprefix('torch.')}"
        rows = ROWS.get(f"{case.part}.{case.function}")
        # An argument that is the result too is no row of the new call.
        self.rows = None if case.name == "rope_in_place" else rows

    def laws(self) -> list[tuple[str, Callable[[], str]]]:
        found = [("run to run", self._again), ("the CPU library's results", self._as_cpu)]
        if self.rows is not None:
            found += [("a row alone = among others", self._alone), ("any place, any neighbours", self._moved)]
        return found

    def last(self, run: Callable[[], str]) -> str:
        """The last check of a case: its results are given up."""
        said = run()
        self.__dict__.pop("first", None)
        return said

    def _inputs(self) -> tuple[Any, ...]:
        return self.case.arguments(self.length, self.dtype, SEED)

    def _run(self, inputs: tuple[Any, ...]) -> list[Tensor]:
        given = tuple(x.to(self.launcher.device) if isinstance(x, Tensor) else x for x in inputs)
        return [x.cpu().clone() for x in self.case.on_launcher(self.launcher, given)]

    @cached_property
    def first(self) -> list[Tensor]:
        return self._run(self._inputs())

    def _again(self) -> str:
        self.section.record(self.name, **{f"results of length {self.length}": _sha256(self.first)})
        return bits.tensors_differ(self._run(self._inputs()), self.first)

    def _as_cpu(self) -> str:
        expected = self.case.on_cpu(self._inputs())
        apart = bits.tensors_differ(self.first, expected)
        self.section.record(self.name, **{f"bits of the CPU at length {self.length}": not apart})
        if not apart:
            return ""
        used = [kernel(name) for name in self.case.kernels]
        if all(one.name in PLAIN for one in used):
            return apart
        if self.launcher.exact_exp and (self.ascending() or all(one.kind == "vector" for one in used)):
            return apart
        return _far(self.first, expected, self.dtype, self.length)

    def _alone(self) -> str:
        assert self.rows is not None
        inputs = self._inputs()
        count = self.rows.count(inputs)
        for some in ([0], [count - 1], list(range(min(3, count)))):
            rows = torch.tensor(some)
            said = self._same(self._run(self.rows.taken(self._inputs(), rows)), torch.arange(len(some)), rows)
            if said:
                return f"row {', '.join(map(str, some))} alone: {said}"
        return ""

    def _moved(self) -> str:
        """Backwards, and a row of NaN in the middle."""
        assert self.rows is not None
        inputs = self._inputs()
        count = self.rows.count(inputs)
        rows = torch.arange(count).flip(0)
        middle = count // 2
        with_nan = torch.cat([rows[:middle], torch.tensor([0]), rows[middle:]])
        at = torch.cat([torch.arange(middle), torch.arange(middle + 1, count + 1)])
        return self._same(self._run(self.rows.taken(inputs, with_nan, nan=middle)), at, rows)

    def _same(self, found: list[Tensor], at: Tensor, rows: Tensor) -> str:
        """Rows `at` of these results against `rows` of the first ones."""
        assert self.rows is not None
        which = [i for i in self.rows.results if i < len(self.first)]
        return bits.tensors_differ([found[i][at] for i in which], [self.first[i][rows] for i in which])


def _sha256(results: list[Tensor]) -> str:
    return hashlib.sha256("".join(bits.sha256(bits.array(x)) for x in results).encode()).hexdigest()


def _far(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype, length: int) -> str:
    """Empty when the results are close, as those of two correct chips are."""
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"result {i}: {tuple(x.shape)} {x.dtype} against {tuple(y.shape)} {y.dtype}"
        if not x.is_floating_point():
            said = _other_choices(x, y, expected)
            if said:
                return f"result {i}: {said}"
            continue
        odd = (x.isnan() != y.isnan()) | (x.isfinite() != y.isfinite())
        if odd.sum() > _ODD * odd.numel():
            return f"result {i}: {bits.some(odd.numpy())} are NaN or infinite on one side"
        finite = x.isfinite() & y.isfinite()
        error, size = (x - y)[finite].double().norm(), y[finite].double().norm()
        allowed = _SLACK * (_EPSILON[dtype] + _EPSILON[x.dtype] + _EPSILON[torch.float32] * length**0.5)
        if float(error) > allowed * float(size):
            return f"result {i}: rms error {float(error / size):.3g} of the result, allowed {allowed:.3g}"
    return ""


def _other_choices(found: Tensor, expected: Tensor, results: list[Tensor]) -> str:
    """Integers against each other, where a float result of their shape, their weight, isn't next to nothing."""
    weights = [x for x in results if x.is_floating_point() and x.shape == expected.shape]
    counts = weights[0].abs() > _WEIGHT if weights else torch.ones_like(expected, dtype=torch.bool)
    apart = (found != expected) & counts
    return f"{int(apart.sum())} of {int(counts.sum())} choices differ" if apart.sum() > _ODD * counts.sum() else ""
