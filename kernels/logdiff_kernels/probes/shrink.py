"""From a failing shape to a small one: dimension after dimension, the smallest value first, until none gets smaller."""

from __future__ import annotations

from collections.abc import Callable

from logdiff_kernels.probes.records import Difference, Family, Shape

WHOLE = 17
"""Every value up to here is tried; above, powers of two, one beside them, and three quarters of them."""


def values(below: int, least: int, multiple: int) -> list[int]:
    """Values of one dimension to try, ascending, all under `below`."""
    found = {n * multiple for n in range(1, WHOLE + 1)}
    step = 1
    while step <= below:
        found |= {step - 1, step, step + 1, 3 * step // 4}
        step *= 2
    return sorted(n for n in found if least <= n < below and n % multiple == 0)


def shrink(
    family: Family,
    shape: Shape,
    difference: Difference,
    fails: Callable[[Shape], Difference | None],
    out_of_time: Callable[[], bool],
) -> tuple[Shape, Difference, bool]:
    """The smallest failing shape reachable by lowering one dimension at a time.

    Args:
        family: gives the order of dimensions and which shapes are legal.
        shape: a failing shape.
        difference: what failed there.
        fails: the relation at a shape: its first difference, or None.
        out_of_time: asked before each try.

    Returns:
        (shape, its difference, whether the search came to its end). In the returned shape no single dimension can
        take one of `values` and still fail.
    """
    shape = dict(shape)
    moved = True
    while moved:
        moved = False
        for dim in family.dims:
            for value in values(shape[dim], family.least.get(dim, 1), family.multiples.get(dim, 1)):
                smaller = {**shape, dim: value}
                if not family.fits(smaller):
                    continue
                if out_of_time():
                    return shape, difference, False
                found = fails(smaller)
                if found is not None:
                    shape, difference, moved = smaller, found, True
                    break
    return shape, difference, True
