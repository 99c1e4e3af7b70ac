"""Orders of the reductions: those that kernels rely on, as laws; those that are the chip's own, as facts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from logdiff_kernels.ascendc import probes
from logdiff_kernels.ascendc.probes import ReduceOp
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.build.selftest import bits, inputs, orders
from logdiff_kernels.build.selftest.bits import Array
from logdiff_kernels.build.selftest.elementwise import on_device
from logdiff_kernels.build.selftest.section import Scope, Section
from logdiff_kernels.contract import reductions as contract

LENGTHS = {Scope.QUICK: (64, 576), Scope.DEFAULT: (64, 576, 4096), Scope.FULL: (64, 128, 192, 576, 1024, 4096)}
"""Of rows for R64: one chunk, and several."""

# Of the chip's own sums: operation, addends, results of a row, leaves that are probed (every one up to 64).
_CHIPS_OWN = (
    ("WholeReduceSum", ReduceOp.WHOLE_REDUCE_SUM, 64, 1),
    ("BlockReduceSum", ReduceOp.BLOCK_REDUCE_SUM, 8, 8),
    *(
        (f"ReduceSum {form} of {n}", op, n, 1)
        for form, op in (("by count", ReduceOp.REDUCE_SUM_COUNTED), ("by repeats", ReduceOp.REDUCE_SUM_REPEATED))
        for n in (64, 192, 320)
    ),
)


def section(launcher: Launcher, scope: Scope) -> Section:
    """The order probes of vector reductions."""
    found = Section(
        "reductions",
        "whether PairReduceSum is a single IEEE addition and R64 and T have the contract's order; in which order the"
        " chip's own reductions add, which kernels don't use",
        "for PairReduceSum, R64 and T: sums differ; for the others nothing, no kernel uses them",
    )
    rows = 40 if scope is Scope.QUICK else 300
    _law(found, launcher, "PairReduceSum", ReduceOp.PAIR_REDUCE_SUM, _rows(rows, 128, 11), _pairs, "one IEEE addition")
    for length in LENGTHS[scope]:
        x = np.concatenate([_rows(rows, length, 12), orders.masked(_some_pairs(length), length)])
        _law(found, launcher, f"R64 of {length}", ReduceOp.R64, x, contract.r64, "order of the contract")
    x = np.concatenate([_rows(rows, 64, 13), np.repeat(orders.masked(orders.all_pairs(range(8)), 8), 8, 1)])
    _law(found, launcher, "T(8)", ReduceOp.TREE8, x, _tree8, "order of the contract")
    _law(found, launcher, "WholeReduceMax", ReduceOp.WHOLE_REDUCE_MAX, _rows(rows, 64, 14), _maximum, "the maximum")
    for name, op, n, results in _CHIPS_OWN:
        tried = partial(_order, launcher, found, name, op, n, results)
        found.check(name, "an order that it keeps", tried)
    return found


def _rows(rows: int, length: int, stream: int) -> Array:
    """Values over 40 powers of two and zeros, so that every order has its own sum; the last rows around subnormals."""
    x = inputs.normal((rows, length), stream, 40)
    x[:, ::7] = 0
    x[-rows // 8 :] *= np.float32(2.0**-110)
    return x


def _some_pairs(length: int) -> list[orders.Pair]:
    edges = (0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, length - 65, length - 64, length - 1)
    return orders.all_pairs(sorted({i for i in edges if 0 <= i < length}))


def _pairs(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x[:, ::2] + x[:, 1::2])


def _tree8(x: Array) -> Array:
    return contract.tree(np.moveaxis(x.reshape(-1, 8, 8), 1, 0))


def _maximum(x: Array) -> Array:
    return np.asarray(x.max(-1))


def _run(launcher: Launcher, op: ReduceOp, x: Array) -> Array:
    return bits.array(probes.reduce(launcher, op, on_device(x, launcher)))


def _law(
    section: Section,
    launcher: Launcher,
    name: str,
    op: ReduceOp,
    x: Array,
    reference: Callable[[Array], Any],
    law: str,
) -> None:
    def defined() -> str:
        expected = np.asarray(reference(x)).reshape(len(x), -1)
        found = _run(launcher, op, x)[:, : expected.shape[1]]
        section.record(name, **bits.table(found))
        apart = bits.differ(found, expected)
        if not apart.any():
            return ""
        row = int(np.argwhere(apart)[0][0])
        kinds = bits.how_they_differ((), found[row], expected[row], None, "sum")
        return f"{bits.some(apart.any(1), 'rows')} differ{_looks_like(x, found)}; row {row}: {kinds}"

    def in_any_row() -> str:
        found = _run(launcher, op, x)
        apart = bits.differ(_run(launcher, op, x[::-1])[::-1], found)
        return f"{bits.some(apart.any(1), 'rows')} differ when they come in reverse" if apart.any() else ""

    section.check(name, law, defined)
    section.check(name, "run to run, in any row", in_any_row)


def _looks_like(x: Array, found: Array) -> str:
    """Another order that gives these sums, if one is known."""
    if found.shape[1] != 1:
        return ""
    fitting = [name for name, total in _orders(x.shape[1]).items() if not bits.differ(total(x), found[:, 0]).any()]
    return f" (as if added {fitting[0]})" if fitting else ""


def _orders(n: int) -> dict[str, orders.Sum]:
    known = dict(orders.ORDERS)
    if n & (n - 1):
        del known["halves"]
    if n % 64:
        known = {name: total for name, total in known.items() if "64" not in name}
    return known


def _order(launcher: Launcher, section: Section, name: str, op: ReduceOp, n: int, results: int) -> str:
    """Which order a reduction has: every pair of (some) leaves, and random rows to tell models apart."""
    leaves = list(range(n)) if n <= 64 else sorted({*range(0, n, 16), 1, 2, 63, 65, n - 1})
    pairs = orders.all_pairs(leaves)
    x = np.concatenate([orders.masked(pairs, n), _rows(64, n, 15)])
    given = np.tile(x, (1, results))
    found = _run(launcher, op, given)[:, :results]
    if bits.differ(_run(launcher, op, given[::-1])[::-1][:, :results], found).any():
        return "sums differ from run to run, or with the row"
    if bits.differ(found, np.broadcast_to(found[:, :1], found.shape)).any():
        return f"equal blocks have different sums: one of {results} is added in another order"
    total = found[:, 0]
    meeting = orders.met(pairs, total[: len(pairs)], n)
    known = [order for order, summed in _orders(n).items() if not bits.differ(summed(x), total).any()]
    section.record(name, order=known[0] if known else "unknown", sha256=bits.sha256(total))
    section.record(name, tree=orders.written(orders.tree(leaves, meeting)))
    return ""
