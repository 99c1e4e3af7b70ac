"""Bit tables of the vector instructions that kernels are made of, against IEEE where it defines the answer.

Each table is made once, then again with its operands moved to other lanes, other repeats and other tiles: a result may
depend on nothing but its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logdiff_kernels.ascendc import probes
from logdiff_kernels.ascendc.probes import VectorOp
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.build.selftest import bits, inputs
from logdiff_kernels.build.selftest.bits import Array
from logdiff_kernels.build.selftest.section import Scope, Section
from logdiff_kernels.contract.exp import exp1, ln1

SAMPLES = {Scope.QUICK: 6_000, Scope.DEFAULT: 60_000, Scope.FULL: 2_000_000}
"""fp32 operands of a table, about."""

_LANES = 64
"""fp32 lanes of a repeat."""

MOVES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "any lane": ((0, 0, 1), (0, 0, 37)),
    "any repeat": ((0, 5, 0),),
    "any tile and core": ((3, 0, 0),),
}
"""How operands move: by tiles, by repeats within their tile, by lanes within their repeat."""


@dataclass(frozen=True)
class Table:
    """One instruction on one set of operands.

    Attributes:
        name: of the instruction, as the report has it.
        of: the operands, in words.
        op: the probe.
        operands: one or two arrays.
        reference: operands -> the results that IEEE or the contract defines; None: there is no such definition.
        required: the numeric contract asks for exactly these results; else a difference is noted.
        sign: for examples.
        scalar: second operand of Adds, Muls, Maxs and Mins.
        repeated: told by mask and repeats.
        defined: operands -> where the reference counts; None: everywhere.
        exact: fp64 function whose distance is measured in units in the last place.
    """

    name: str
    of: str
    op: VectorOp
    operands: Callable[[], tuple[Array, ...]]
    reference: Callable[..., Array] | None
    required: bool = True
    sign: str = ""
    scalar: float = 0.0
    repeated: bool = False
    defined: Callable[..., Array] | None = None
    exact: Callable[[Array], Array] | None = None

    @property
    def title(self) -> str:
        """Name in the report."""
        return f"{self.name}/{self.of}"


def section(launcher: Launcher, scope: Scope) -> Section:
    """The bit tables."""
    found = Section(
        "elementwise",
        "whether the vector unit computes IEEE fp32: subnormals, NaN, rounding, casts; how exact Exp, Ln, Div and Sqrt"
        " are; whether a result depends on its lane, repeat, tile or core",
        "results of the same kernel on the same inputs can differ",
    )
    for table in tables(scope, launcher.exact_exp):
        tried = _Tried(launcher, table, found)
        checks: list[tuple[str, Callable[[], str]]] = [("run to run", tried.again)]
        checks += [(law, partial(tried.moved, moves)) for law, moves in MOVES.items()]
        checks.append(("any neighbours", tried.shuffled))
        if table.reference is not None or table.exact is not None:
            checks.insert(0, ("results" if table.reference is None else _law(table), tried.results))
        law, last = checks.pop()
        for name, run in checks:
            found.check(table.title, name, run)
        found.check(table.title, law, partial(tried.last, last))
    for name, op, points in _POINTS:
        found.check(f"{name}/exact points", _said(points), partial(_exact_points, launcher, op, points))
    return found


def _law(table: Table) -> str:
    return "bits of the contract" if table.required else "bits of IEEE, or a note"


def tables(scope: Scope, exact_exp: bool) -> Iterator[Table]:
    """Every table.

    Args:
        scope: how many operands.
        exact_exp: exp and ln of this build are the contract's.
    """
    yield from _arithmetic(SAMPLES[scope], exact_exp)
    yield from _choices(SAMPLES[scope])
    yield from _functions(SAMPLES[scope], exact_exp)
    yield from _casts(SAMPLES[scope])


def _arithmetic(count: int, exact_exp: bool) -> Iterator[Table]:
    def of(towards: tuple[int, int]) -> Callable[[], tuple[Array, ...]]:
        return partial(inputs.pairs, count, towards)

    binary: tuple[tuple[str, VectorOp, Callable[..., Array], str, tuple[int, int], bool], ...] = (
        ("Add", VectorOp.ADD, np.add, "+", inputs.SUMS, True),
        ("Sub", VectorOp.SUB, np.subtract, "-", inputs.SUMS, True),
        ("Mul", VectorOp.MUL, np.multiply, "*", inputs.PRODUCTS, True),
        # The contract leaves Div to the chip (G6); builds with exact exp and ln promise the CPU library's bits.
        ("Div", VectorOp.DIV, np.divide, "/", inputs.QUOTIENTS, exact_exp),
    )
    for name, op, reference, sign, towards, required in binary:
        made = Table(name, "float32 pairs", op, of(towards), _quietly(reference), required, sign)
        yield made
        yield Table(f"{name} by repeats", made.of, op, made.operands, made.reference, required, sign, repeated=True)
    for scalar in (1.0, 1.4426950408889634, -2.0, 2.0**-100, 2.0**25):
        yield _with_scalar("Muls", VectorOp.MULS, np.multiply, "*", scalar, count)
    for scalar in (0.0, 1.0, -0.69314718):
        yield _with_scalar("Adds", VectorOp.ADDS, np.add, "+", scalar, count)


def _with_scalar(
    name: str, op: VectorOp, reference: Callable[..., Array], sign: str, scalar: float, count: int, **more: Any
) -> Table:
    value = np.float32(scalar)
    return Table(
        f"{name} {float(value):.9g}",
        "float32 values",
        op,
        lambda: (inputs.sample(count),),
        _quietly(lambda x: reference(x, value)),
        sign=f"{name} {float(value):.9g} ",
        scalar=scalar,
        **more,
    )


def _quietly(reference: Callable[..., Any]) -> Callable[..., Array]:
    def call(*operands: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(reference(*operands))

    return call


def _choices(count: int) -> Iterator[Table]:
    def operands() -> tuple[Array, ...]:
        return inputs.pairs(count, inputs.SUMS)

    # NaN and zeros of two signs: no rule of the contract relies on what Max and Min make of them (G5).
    for name, op, better in (("Max", VectorOp.MAX, np.maximum), ("Min", VectorOp.MIN, np.minimum)):
        yield Table(name, "float32 pairs", op, operands, _quietly(better), sign=name, defined=_ordered)
        yield _with_scalar(
            f"{name}s", VectorOp[f"{name.upper()}S"], better, name, -87.33654, count, defined=lambda x: ~np.isnan(x)
        )
    yield Table("Abs", "float32 values", VectorOp.ABS, lambda: (inputs.sample(count),), np.abs, sign="Abs")
    compare: tuple[tuple[VectorOp, Callable[..., Any], str], ...] = (
        (VectorOp.EQUAL, np.equal, "=="),
        (VectorOp.NOT_EQUAL, np.not_equal, "!="),
        (VectorOp.LESS, np.less, "<"),
        (VectorOp.LESS_EQUAL, np.less_equal, "<="),
        (VectorOp.GREATER, np.greater, ">"),
        (VectorOp.GREATER_EQUAL, np.greater_equal, ">="),
    )
    for op, chosen, sign in compare:
        reference = _quietly(partial(_as_floats, chosen))
        yield Table(f"Compare {sign} and Select", "float32 pairs", op, operands, reference, sign=sign)


def _ordered(a: Array, b: Array) -> Array:
    return np.asarray(~np.isnan(a) & ~np.isnan(b) & ~((a == 0) & (b == 0)))


def _as_floats(chosen: Callable[..., Any], a: Array, b: Array) -> Array:
    return np.asarray(chosen(a, b)).astype(np.float32)


def _functions(count: int, exact_exp: bool) -> Iterator[Table]:
    def sets(low: float, high: float) -> dict[str, Callable[[], tuple[Array, ...]]]:
        return {
            "all bfloat16": lambda: (inputs.widened_bfloat16(),),
            "all float16": lambda: (inputs.widened_float16(),),
            "float32 values": lambda: (
                np.concatenate([inputs.sample(count // 2), inputs.around(low, high, count // 2, 4)]),
            ),
        }

    for of, operands in sets(0.0, 4.0).items():
        yield Table("Sqrt", of, VectorOp.SQRT, operands, _quietly(np.sqrt), exact_exp, "Sqrt", exact=_quietly(np.sqrt))
    for name, op, exact, low, high in (
        ("Exp", VectorOp.EXP, np.exp, -104.0, 89.0),
        ("Ln", VectorOp.LN, np.log, 0.0, 4.0),
    ):
        for of, operands in sets(low, high).items():
            yield Table(name, of, op, operands, None, sign=name, exact=_quietly(exact))
    if exact_exp:
        for name, op, reference, low, high in (
            ("exp of the build", VectorOp.EXP1, exp1, -104.0, 89.0),
            ("ln of the build", VectorOp.LN1, ln1, 0.0, 4.0),
        ):
            for of, operands in sets(low, high).items():
                yield Table(name, of, op, operands, _quietly(reference), sign=name)


def _casts(count: int) -> Iterator[Table]:
    whole = partial(inputs.uniform, count, low=-(2.0**31) + 128, high=2.0**31 - 128)
    halves = np.arange(-3000, 3000, dtype=np.float32) / 2
    sets: tuple[tuple[str, VectorOp, str, Callable[[], Array], Callable[..., Array]], ...] = (
        ("fp32 to bf16", VectorOp.TO_BFLOAT16, "around all bfloat16", inputs.around_bfloat16, nearest_bfloat16),
        ("fp32 to bf16", VectorOp.TO_BFLOAT16, "float32 values", lambda: inputs.sample(count), nearest_bfloat16),
        ("fp32 to fp16", VectorOp.TO_FLOAT16, "around all float16", inputs.around_float16, _nearest_float16),
        ("fp32 to fp16", VectorOp.TO_FLOAT16, "float32 values", lambda: inputs.sample(count), _nearest_float16),
        ("bf16 to fp32", VectorOp.FROM_BFLOAT16, "all bfloat16", inputs.all_bfloat16, lambda _: _widened()),
        ("fp16 to fp32", VectorOp.FROM_FLOAT16, "all float16", inputs.all_float16, lambda x: x.astype(np.float32)),
        (
            "fp32 to int32",
            VectorOp.ROUND_TO_INT,
            "float32 within int32",
            lambda: np.concatenate([halves, whole(stream=5), inputs.uniform(count, 6, -200.0, 200.0)]),
            lambda x: np.rint(x).astype(np.int32),
        ),
        (
            "int32 to fp32",
            VectorOp.FROM_INT,
            "int32 values",
            lambda: inputs.random_words(count, 7).view(np.int32) >> (np.arange(count, dtype=np.int32) % 16),
            lambda x: x.astype(np.float32),
        ),
        (
            "fp32 down to whole",
            VectorOp.FLOOR,
            "float32 values",
            lambda: np.concatenate([halves, inputs.uniform(count, 6, -600.0, 600.0)]),
            np.floor,
        ),
    )
    for name, op, of, operand, reference in sets:
        yield Table(f"Cast {name}", of, op, partial(_alone, operand), _quietly(reference), sign="Cast")


def _alone(operand: Callable[[], Array]) -> tuple[Array, ...]:
    return (operand(),)


def _widened() -> Array:
    return inputs.widened_bfloat16()


def nearest_bfloat16(x: Array) -> Array:
    """fp32 to the bits of bf16, nearest even, NaN quiet."""
    word = bits.words(x).astype(np.uint64)
    rounded = (word + 0x7FFF + ((word >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(x), np.uint64(0x7FC0), rounded).astype(np.uint16)


def _nearest_float16(x: Array) -> Array:
    return x.astype(np.float16)


class _Tried:
    """A table on a launcher."""

    def __init__(self, launcher: Launcher, table: Table, section: Section) -> None:
        self.launcher = launcher
        self.table = table
        self.section = section

    @cached_property
    def operands(self) -> tuple[Array, ...]:
        return self.table.operands()

    @cached_property
    def first(self) -> Array:
        """Results in the operands' own order."""
        return self._run(self.operands)

    def _run(self, operands: tuple[Array, ...]) -> Array:
        table = self.table
        given = [on_device(x, self.launcher) for x in operands]
        return bits.array(probes.vector(self.launcher, table.op, *given, scalar=table.scalar, repeated=table.repeated))

    def results(self) -> str:
        """Against the reference; facts are recorded."""
        table, operands, found = self.table, self.operands, self.first
        if table.defined is not None:
            counts = table.defined(*operands)
            operands, found = tuple(x[counts] for x in operands), found[counts]
        self.section.record(table.title, **bits.table(found))
        said = ""
        if table.reference is not None:
            expected = table.reference(*operands)
            said = bits.how_they_differ(operands, found, expected, table.reference, table.sign)
            self.section.record(table.title, not_as_defined=int(bits.differ(found, expected).sum()))
        if table.exact is not None:
            self._measure(table.exact)
        if said and not table.required:
            self.section.note(f"{table.title} is not IEEE's: {said}")
            return ""
        return said

    def _measure(self, exact: Callable[[Array], Array]) -> None:
        """How far results lie from exact ones, and what becomes of subnormals: facts, not laws."""
        (x,), found = self.operands, self.first
        with np.errstate(all="ignore"):
            true = exact(x.astype(np.float64))
            nearest = true.astype(np.float32)
            counted = np.isfinite(nearest) & (nearest != 0) & ~bits.subnormal(nearest) & ~bits.subnormal(x)
            unit = np.spacing(np.abs(nearest[counted])).astype(np.float64)
            apart = np.abs(found[counted].astype(np.float64) - true[counted]) / unit
        worst = round(float(apart.max(initial=0.0)), 3) if np.isfinite(apart).all() else "not finite"
        tiny = bits.subnormal(nearest)
        self.section.record(self.table.title, max_ulp=worst, subnormal_results=int(tiny.sum()))
        self.section.record(self.table.title, subnormal_results_that_are_0=int((found[tiny] == 0).sum()))
        special = ~np.isfinite(nearest) | ~np.isfinite(x)
        wrong = bits.differ(found[special], nearest[special])
        self.section.record(self.table.title, infinities_and_nan_that_differ=int(wrong.sum()))

    def again(self) -> str:
        """The same operands a second time."""
        return self._against(self._run(self.operands))

    def moved(self, moves: tuple[tuple[int, int, int], ...]) -> str:
        """The operands in other places."""
        count = self.first.size
        for by in moves:
            found = self._run(tuple(_roll(x, by) for x in self.operands))
            back = _roll(found, tuple(-step for step in by))[:count]
            said = self._against(back)
            if said:
                return f"{said}; {self._lanes(back, by[2])}" if by[2] else said
        return ""

    def shuffled(self) -> str:
        """The operands in an order of no meaning."""
        order = np.argsort(inputs.random_words(self.first.size, 8), kind="stable")
        found = np.empty_like(self.first)
        found[order] = self._run(tuple(x[order] for x in self.operands))
        return self._against(found)

    def last(self, run: Callable[[], str]) -> str:
        """The last check of a table: its arrays are given up."""
        said = run()
        for name in ("operands", "first"):
            self.__dict__.pop(name, None)
        return said

    def _against(self, found: Array) -> str:
        apart = bits.differ(found, self.first)
        if not apart.any():
            return ""
        i = int(np.flatnonzero(apart)[0])
        operands = " and ".join(bits.hexadecimal(x[i]) for x in self.operands)
        values = f"{bits.hexadecimal(self.first[i])} and {bits.hexadecimal(found[i])}"
        return f"{bits.some(apart, 'results')} differ, first {values} from the same {operands}"

    def _lanes(self, found: Array, by: int) -> str:
        """Which lanes are behind it: a lane that is wrong shows in every result that was or came to be there."""
        at = np.flatnonzero(bits.differ(found, self.first)) % _LANES
        seen = np.bincount(np.concatenate([at, (at + by) % _LANES]), minlength=_LANES)
        worst = np.flatnonzero(seen * 2 > seen.max())
        return f"most in lanes {', '.join(map(str, worst))}" if len(worst) <= 8 else "in all lanes"


def _roll(x: Array, by: tuple[int, ...]) -> Array:
    """Whole tiles of `x`, ones behind it, rolled by tiles, repeats and lanes."""
    whole = np.ones(-(-x.size // probes.TILE) * probes.TILE, x.dtype)
    if x.dtype == np.uint16:
        whole[:] = 0x3F80  # bf16
    whole[: x.size] = x
    return np.roll(whole.reshape(-1, probes.TILE // _LANES, _LANES), by, (0, 1, 2)).reshape(-1)


def on_device(x: Array, launcher: Launcher) -> Tensor:
    """An array as a tensor where the launcher runs; uint16 is bf16."""
    made = torch.from_numpy(np.array(x.view(np.int16) if x.dtype == np.uint16 else x))
    return (made.view(torch.bfloat16) if x.dtype == np.uint16 else made).to(launcher.device)


Points = tuple[tuple[float, float], ...]

_POINTS: tuple[tuple[str, VectorOp, Points], ...] = (
    ("exp", VectorOp.EXP1, ((0.0, 1.0), (-0.0, 1.0), (-np.inf, 0.0), (np.inf, np.inf), (np.nan, np.nan))),
    ("ln", VectorOp.LN1, ((1.0, 0.0), (0.0, -np.inf), (np.inf, np.inf), (np.nan, np.nan), (-1.0, np.nan))),
)
"""Values of exp and ln, as built, that kernels rely on (contract, G6)."""


def _said(points: Points) -> str:
    return ", ".join(f"{x:g} gives {y:g}" for x, y in points)


def _exact_points(launcher: Launcher, op: VectorOp, points: Points) -> str:
    x, expected = (np.array(side, np.float32) for side in zip(*points, strict=True))
    found = bits.array(probes.vector(launcher, op, on_device(np.tile(x, 301), launcher))).reshape(301, -1)
    wrong = bits.differ(found, np.broadcast_to(expected, found.shape)).any(0)
    if not wrong.any():
        return ""
    said = ", ".join(f"{x[i]:g} gives {found[0, i]:.9g}, not {expected[i]:g}" for i in np.flatnonzero(wrong))
    return said if launcher.exact_exp else f"{said}: build with LOGDIFF_EXACT_EXP=1"
