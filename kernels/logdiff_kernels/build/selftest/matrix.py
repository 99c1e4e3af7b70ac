"""The matrix unit: whether a row of a product depends on anything but its operands, and how Mmad sums over k.

Kernels rely on the first (contract, G2 and G6). The second is not documented: it is found out and recorded, so that two
hosts can be compared, and so that the twin can be run with the model that a chip follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial

import numpy as np
import torch

from logdiff_kernels.ascendc import probes
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.build.selftest import bits, inputs, orders
from logdiff_kernels.build.selftest.bits import Array
from logdiff_kernels.build.selftest.elementwise import nearest_bfloat16
from logdiff_kernels.build.selftest.models import MODELS, multiply
from logdiff_kernels.build.selftest.section import Scope, Section

TILE = 128
STEPS = 2
M_SIZES = {
    Scope.QUICK: (2, 16, 33, 127),
    Scope.DEFAULT: (2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 112, 127),
    Scope.FULL: tuple(range(2, 128)),
}
N_SIZES = (16, 32, 48, 64, 80, 96, 112)
FEWER = (1, 2, 5, 16, 17, 64, 100, 127)
"""Rows that exist of a tile's 128; the others are +0, as in every kernel."""

DTYPES = {"bfloat16": 128, "float16": 128, "float32": 64}
"""k of one Mmad by dtype (plan/csrc/arch.h)."""

NEIGHBOURS: dict[str, Callable[[tuple[int, ...]], Array]] = {
    "+0": lambda shape: np.zeros(shape, np.float32),
    "other values": lambda shape: inputs.normal(shape, 31, 30),
    "NaN": lambda shape: np.full(shape, np.nan, np.float32),
    "infinities": lambda shape: np.full(shape, -np.inf, np.float32),
    "the largest values": lambda shape: np.full(shape, 3.3e38, np.float32),
    "subnormals": lambda shape: np.full(shape, 9.5e-41, np.float32),
}


def section(launcher: Launcher, scope: Scope) -> Section:
    """The probes of Mmad."""
    found = Section(
        "mmad",
        "whether a row of a matrix product depends on the other rows, its place, the columns, the buffer or the core;"
        " in which order and how widely Mmad sums, and what it makes of subnormals",
        "matrix products of the two hosts differ in their last bits: don't share work between them",
    )
    for dtype in DTYPES:
        unit = _Unit(launcher, dtype, scope, found)
        for law, run in unit.laws():
            found.check(f"Mmad/{dtype}", law, run)
    return found


def order_of(section: Section, dtype: str) -> str:
    """The model that a chip follows in `dtype`, once the section's checks have run; "" before."""
    return str(section.facts.get(f"Mmad/{dtype}", {}).get("order", ""))


class _Unit:
    """The matrix unit with operands of one dtype."""

    def __init__(self, launcher: Launcher, dtype: str, scope: Scope, section: Section) -> None:
        self.launcher = launcher
        self.dtype = dtype
        self.name = f"Mmad/{dtype}"
        self.k = DTYPES[dtype]
        self.scope = scope
        self.section = section

    def laws(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "run to run", self._again
        yield "any place of a row", self._places
        yield "any neighbours of a row", partial(self._neighbours, True)
        yield "any number of rows that exist", self._fewer
        yield "any place of a column", self._column_places
        yield "any neighbours of a column", partial(self._neighbours, False)
        yield "any buffer", self._buffers
        yield "any core and any tile", self._cores
        yield "any m, or a note", self._m_sizes
        yield "any n, or a note", self._n_sizes
        if self.dtype == "float32":
            yield "operands keep all 24 bits (HF32 is off)", self._all_bits
        else:
            yield "results are rounded to nearest even on their way out", self._casts
        yield "an order that it keeps", self._order

    # Running

    def _run(self, a: Array, b: Array, steps: int = STEPS, **more: int | torch.dtype) -> Array:
        """a and b fp32 [m, K] or [tiles, m, K], representable in the dtype or rounded to it."""
        one = a.ndim == 2
        left, right = (x[None] if one else x for x in (a, b))
        kind = getattr(torch, self.dtype)
        # rounded on the host, whose casts are known
        given = [torch.from_numpy(x.astype(np.float32)).to(kind).to(self.launcher.device) for x in (left, right)]
        c = bits.array(probes.mmad(self.launcher, *given, steps=steps, **more))  # type: ignore[arg-type]
        return c[0] if one else c

    def _rounded(self, x: Array) -> Array:
        """fp32 values as the dtype has them."""
        return torch.from_numpy(x).to(getattr(torch, self.dtype)).float().numpy()

    @cached_property
    def a(self) -> Array:
        return self._rounded(inputs.normal((TILE, STEPS * self.k), 21, 12))

    @cached_property
    def b(self) -> Array:
        return self._rounded(inputs.normal((TILE, STEPS * self.k), 22, 12))

    @cached_property
    def c(self) -> Array:
        """The product that all others are held against: m and n 128, buffer 0, one tile."""
        return self._run(self.a, self.b)

    # Independence

    def _again(self) -> str:
        apart = bits.differ(self._run(self.a, self.b), self.c)
        return f"{bits.some(apart)} differ" if apart.any() else ""

    def _places(self) -> str:
        for by in (1, 16, 37):
            apart = bits.differ(np.roll(self._run(np.roll(self.a, by, 0), self.b), -by, 0), self.c)
            if apart.any():
                return f"{bits.some(apart.any(1), 'rows')} change when they move by {by}, first row {_first(apart)}"
        return ""

    def _column_places(self) -> str:
        for by in (1, 16, 37):
            apart = bits.differ(np.roll(self._run(self.a, np.roll(self.b, by, 0)), -by, 1), self.c).T
            if apart.any():
                return f"{bits.some(apart.any(1), 'columns')} change when they move by {by}, first {_first(apart)}"
        return ""

    def _neighbours(self, rows: bool) -> str:
        axis, word = (0, "row") if rows else (1, "column")
        for said, make in NEIGHBOURS.items():
            for kept in (0, 5, 16, 127):
                operand = make((TILE, STEPS * self.k))
                operand[kept] = (self.a if rows else self.b)[kept]
                found = self._run(operand, self.b) if rows else self._run(self.a, operand)
                apart = bits.differ(found.take(kept, axis), self.c.take(kept, axis))
                if apart.any():
                    return f"{word} {kept} among {said}: {bits.some(apart)} differ"
        return ""

    def _fewer(self) -> str:
        for rows in FEWER:
            operand = np.zeros_like(self.a)
            operand[:rows] = self.a[:rows]
            apart = bits.differ(self._run(operand, self.b)[:rows], self.c[:rows])
            if apart.any():
                return f"{rows} rows and +0: {bits.some(apart)} differ, first row {_first(apart)}"
        return ""

    def _buffers(self) -> str:
        apart = bits.differ(self._run(self.a, self.b, buffer=1), self.c)
        return f"{bits.some(apart)} differ in the second half of L0A, L0B and L0C" if apart.any() else ""

    def _cores(self) -> str:
        count = 2 * self.launcher.cores + 1
        a, b = (np.broadcast_to(x, (count, *x.shape)) for x in (self.a, self.b))
        for blocks in (self.launcher.cores, 1):
            apart = bits.differ(self._run(a, b, blocks=blocks), np.broadcast_to(self.c, (count, TILE, TILE)))
            if apart.any():
                tiles = sorted({int(tile) % blocks for tile in np.flatnonzero(apart.any((1, 2)))})
                return f"on {blocks} cores: {bits.some(apart.any((1, 2)), 'tiles')} differ, on blocks {tiles[:8]}"
        return ""

    def _m_sizes(self) -> str:
        return self._sizes("m", M_SIZES[self.scope], lambda m: self._run(self.a[:m], self.b), lambda m: self.c[:m])

    def _n_sizes(self) -> str:
        return self._sizes("n", N_SIZES, lambda n: self._run(self.a, self.b[:n]), lambda n: self.c[:, :n])

    def _sizes(
        self, word: str, sizes: tuple[int, ...], run: Callable[[int], Array], whole: Callable[[int], Array]
    ) -> str:
        """A result that depends on m or n breaks no law, as kernels keep both: a fact, and a note."""
        wrong = {size: bits.differ(run(size), whole(size)) for size in sizes}
        changed = [size for size, apart in wrong.items() if apart.any()]
        self.section.record(self.name, **{f"{word}_that_change_results": changed})
        if changed:
            first = wrong[changed[0]]
            self.section.note(
                f"{self.name}: results depend on {word}: at {word} = {', '.join(map(str, changed[:12]))} they differ"
                f" from {word} = {TILE} ({bits.some(first)} at {changed[0]}). Kernels keep m = 128 and one n for each"
                " operator, so no law of theirs is broken"
            )
        return ""

    # Rounding

    def _all_bits(self) -> str:
        x = np.zeros((TILE, 16), np.float32)
        x[:, 0] = 1 + inputs.random_words(TILE, 24).astype(np.float64) % 2**23 * 2.0**-23
        one = np.zeros((16, 16), np.float32)
        one[:, 0] = 1
        apart = bits.differ(self._run(x, one, 1)[:, 0], x[:, 0])
        return f"{bits.some(apart)} times 1 are not themselves" if apart.any() else ""

    def _casts(self) -> str:
        """Values between neighbours of the dtype, ties among them: 1 + i 2^-13, scaled to results of several sizes."""
        high, low = np.divmod(np.arange(16 * TILE, dtype=np.float64), 64)
        for scale_x, scale_y in _CAST_SCALES[self.dtype]:
            x, y = np.zeros((32, TILE, 16)), np.zeros((32, 16, 16))
            x[:16, :, 0] = (1 + high / 128).reshape(16, TILE) * scale_x
            x[:16, :, 1] = (low * 2.0**-13).reshape(16, TILE) * scale_x
            x[16:] = -x[:16]
            y[:, :, :2] = scale_y
            with np.errstate(over="ignore"):
                given = ((x[:, :, 0] + x[:, :, 1]) * scale_y).reshape(-1).astype(np.float32)
                expected = nearest_bfloat16(given) if self.dtype == "bfloat16" else given.astype(np.float16)
            kind = getattr(torch, self.dtype)
            found = self._run(x, y, 1, out_dtype=kind)[:, :, 0].reshape(-1)
            said = bits.how_they_differ((given,), found, expected, None, "Fixpipe")
            if said:
                return said
        return ""

    # Order

    def _order(self) -> str:
        """Which model all probes agree with; everything that was seen is recorded."""
        seen: list[tuple[str, Array, Array, int, Array]] = []  # probe, x, y, steps, sums
        for probe, x, y, steps in self._probes():
            sums = self._along(x, y, steps)
            if bits.differ(self._along(x, y, steps), sums).any():
                return f"{probe}: sums differ from run to run"
            seen.append((probe, x, y, steps, sums))
        wide = self.c
        agrees, wrong = [], {}
        for name, model in MODELS.items():
            fits = all(not bits.differ(multiply(model, x, y, n), sums).any() for _, x, y, n, sums in seen)
            apart = bits.differ(multiply(model, self.a[:, None], self.b[None], STEPS), wide) if fits else None
            if apart is not None:
                wrong[name] = int(apart.sum())
            if fits and not wrong[name]:
                agrees.append(name)
        order = agrees[0] if agrees else "unknown"
        sums_of = {probe: sums for probe, *_, sums in seen}
        leaves = sorted({leaf for pair in self._pairs for leaf in pair})
        masks = f"masks of {len(leaves)} leaves"  # fewer in a quick run: not to be compared with all
        self.section.record(
            self.name,
            order=order,
            random_sums=bits.sha256(wide),
            trees={masks: self._tree(leaves, sums_of["masks"])},
            probes={masks if probe == "masks" else probe: bits.sha256(sums) for probe, sums in sums_of.items()},
            bits_kept=self._kept(sums_of["width"]),
            rounding=_rounding(sums_of["rounding"]),
            special=self._special(sums_of["special"]),
        )
        if order == "unknown":
            near = f"; the order of the sum is that of {', '.join(wrong)}" if wrong else ""
            self.section.note(f"{self.name}: sums like no known model{near}: see trees and probes among the facts")
        return ""

    def _probes(self) -> Iterator[tuple[str, Array, Array, int]]:
        """Name, factors x and y [probes, K], steps."""
        yield ("masks", *self._masks(), 2)
        yield ("width", *self._widths(), 1)
        yield ("rounding", *_rounding_factors(), 2)
        yield ("special", *self._special_factors(), 1)

    def _along(self, x: Array, y: Array, steps: int) -> Array:
        """Sums of x times y row by row: the diagonals of tiles of 128."""
        count = -(-len(x) // TILE)
        padded = np.zeros((2, count * TILE, x.shape[1]), np.float32)
        padded[0, : len(x)], padded[1, : len(x)] = x, y
        left, right = padded.reshape(2, count, TILE, -1)
        return np.diagonal(self._run(left, right, steps), axis1=1, axis2=2).reshape(-1)[: len(x)].copy()

    @cached_property
    def _pairs(self) -> list[orders.Pair]:
        """Leaf 0 is the accumulator, 1 to k the products; every pair, in QUICK those of the first 40 and every 8th."""
        if self.scope is Scope.QUICK:
            return orders.all_pairs(sorted({*range(min(41, self.k)), *range(0, self.k + 1, 8)}))
        return orders.all_pairs(range(self.k + 1))

    def _masks(self) -> tuple[Array, Array]:
        """The first instruction gives the accumulator its value, by one product; the second is probed."""
        rows = orders.masked(self._pairs, self.k + 1)
        size = np.sqrt(np.abs(rows))
        x, y = (np.zeros((len(rows), 2 * self.k), np.float32) for _ in range(2))
        x[:, 0], y[:, 0] = size[:, 0], size[:, 0] * np.sign(rows[:, 0])
        x[:, self.k :], y[:, self.k :] = size[:, 1:], (size * np.sign(rows))[:, 1:]
        return x, y

    def _tree(self, leaves: list[int], sums: Array) -> str:
        meeting = orders.met(self._pairs, sums, self.k + 1)
        return orders.written(orders.tree(leaves, meeting))

    _WIDTHS = range(1, 57)
    _PLACES = ((0, 1, 2), (1, 0, 2), (0, 2, 1), (0, 15, 31), (0, 16, 32), (0, 32, 63))
    """Where the large value, the small one and the large one's negative lie along k."""

    def _widths(self) -> tuple[Array, Array]:
        """2^p, 1 and -2^p for growing p, scaled so that fp16 can have the factors."""
        x, y = (np.zeros((len(self._PLACES) * len(self._WIDTHS), self.k), np.float32) for _ in range(2))
        for row, (place, p) in enumerate((place, p) for place in self._PLACES for p in self._WIDTHS):
            large, small, negative = place
            low, high = -(p // 2) - p % 2, p // 2  # the product of the large value is 2^high, of the small one 2^low
            for at, size, sign in ((large, high, 1), (small, low, 1), (negative, high, -1)):
                x[row, at], y[row, at] = 2.0 ** (size // 2), sign * 2.0 ** (size - size // 2)
        return x, y

    def _kept(self, sums: Array) -> dict[str, int]:
        """The largest p at which the small value survives, by the three places."""
        found = {}
        for place, left in zip(self._PLACES, sums.reshape(len(self._PLACES), -1), strict=True):
            lost = [p for p, x in zip(self._WIDTHS, left, strict=True) if x != 2.0 ** (-(p // 2) - p % 2)]
            large, small, negative = place
            found[f"2^p at {large}, 1 at {small}, -2^p at {negative}"] = lost[0] - 1 if lost else self._WIDTHS[-1]
        return found

    def _special_factors(self) -> tuple[Array, Array]:
        rows = [[(x, y) for x, y in terms] for terms in _SPECIAL[self.dtype].values()]
        x, y = (np.zeros((len(rows), self.k), np.float32) for _ in range(2))
        for row, terms in enumerate(rows):
            for k, (left, right) in enumerate(terms):
                x[row, k], y[row, k] = left, right
        return x, y

    def _special(self, sums: Array) -> dict[str, str]:
        """By name: the bits, and what IEEE has instead where that differs."""
        x, y = self._special_factors()
        with np.errstate(all="ignore"):
            ieee = (x.astype(np.float64) * y.astype(np.float64)).sum(1).astype(np.float32)
        wrong = bits.differ(sums, ieee)
        said = {}
        for i, name in enumerate(_SPECIAL[self.dtype]):
            value = "NaN" if np.isnan(sums[i]) else bits.hexadecimal(sums[i])
            said[name] = f"{value}, IEEE {bits.hexadecimal(ieee[i])}" if wrong[i] else value
        if wrong.any():
            names = ", ".join(name for i, name in enumerate(said) if wrong[i])
            self.section.note(f"{self.name}: not as IEEE has it: {names}")
        return said


def _first(apart: Array) -> int:
    return int(np.flatnonzero(apart.any(1))[0])


_CAST_SCALES = {
    "bfloat16": ((1.0, 1.0), (2.0**-118, 2.0**-10), (2.0**100, 2.0**27)),
    "float16": ((1.0, 1.0), (2.0**-8, 2.0**-10), (2.0**5, 2.0**11)),
}
"""Factors of x and y, so that results are normal, subnormal, and close to or beyond the largest."""

Terms = tuple[tuple[float, float], ...]

_WIDE_RANGE: dict[str, Terms] = {
    "subnormal operand": ((2.0**-130, 2.0**20),),
    "subnormal product": ((2.0**-70, 2.0**-70),),
    "subnormal sum": ((1.5 * 2.0**-63, 2.0**-63), (-(2.0**-63), 2.0**-63)),
    "overflow": ((2.0**64, 2.0**63), (2.0**64, 2.0**63)),
    "product overflows": ((2.0**100, 2.0**100),),
}
_ANY_RANGE: dict[str, Terms] = {
    "-0": ((-1.0, 0.0),),
    "infinity": ((np.inf, 1.0), (1.0, 1.0)),
    "infinity times 0": ((np.inf, 0.0),),
    "infinity less infinity": ((np.inf, 1.0), (-np.inf, 1.0)),
    "NaN": ((np.nan, 1.0),),
}
_SPECIAL: dict[str, dict[str, Terms]] = {
    "bfloat16": {**_WIDE_RANGE, **_ANY_RANGE},
    "float16": {"subnormal operand": ((2.0**-20, 1.0),), "two of them": ((2.0**-24, 2.0**-24),), **_ANY_RANGE},
    "float32": {**_WIDE_RANGE, **_ANY_RANGE},
}
"""Products whose sum shows what becomes of subnormals, infinities and NaN: by name, factors."""

_UNIT = 2.0**-23
_ROUNDINGS: tuple[tuple[float, float, dict[str, float]], ...] = (
    (1.0, _UNIT / 2, {"up": 1 + _UNIT, "away": 1 + _UNIT}),
    (1 + _UNIT, _UNIT / 2, {"even": 1 + 2 * _UNIT, "away": 1 + 2 * _UNIT, "up": 1 + 2 * _UNIT}),
    (1.0, 0.75 * _UNIT, {"even": 1 + _UNIT, "away": 1 + _UNIT, "up": 1 + _UNIT}),
    (-1.0, -0.75 * _UNIT, {"even": -1 - _UNIT, "away": -1 - _UNIT, "down": -1 - _UNIT}),
    (-1.0, -_UNIT / 2, {"away": -1 - _UNIT, "down": -1 - _UNIT}),
    (1.0, 0.25 * _UNIT, {"up": 1 + _UNIT}),
)
"""Accumulator, product, and the sum by way of rounding; where none is given it is the accumulator."""


def _rounding_factors() -> tuple[Array, Array]:
    """The first of two instructions of 16 makes the accumulator, the second adds the product."""
    x, y = (np.zeros((len(_ROUNDINGS), 32), np.float32) for _ in range(2))
    for row, (start, product, _) in enumerate(_ROUNDINGS):
        x[row, 0], y[row, 0] = np.sign(start), 1
        x[row, 1], y[row, 1] = (abs(start) - 1) * 2.0**12, 2.0**-12
        x[row, 16], y[row, 16] = product * 2.0**12, 2.0**-12
    return x, y


def _rounding(sums: Array) -> str:
    """`nearest even`, or what else the sums are rounded like."""
    ways = {
        "even": "nearest even",
        "away": "nearest, ties away from 0",
        "zero": "towards 0",
        "up": "up",
        "down": "down",
    }
    for way, said in ways.items():
        expected = [np.float32(results.get(way, start)) for start, _, results in _ROUNDINGS]
        if not bits.differ(sums, np.array(expected, np.float32)).any():
            return said
    return f"unknown: {' '.join(bits.hexadecimal(x) for x in sums)}"
