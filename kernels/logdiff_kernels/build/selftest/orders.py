"""The order of a sum, found out by masking, and the orders that are recognised.

Of n addends two are +M and -M, so large that what is added to either alone is lost; all others are 1. What is left of
the sum are the addends that met M and -M only after these had cancelled: n less the addends below the node where the
two leaves meet. All pairs together give the tree (Xie et al., "FPRev: Revealing the Order of Floating-Point Summation",
USENIX ATC 2025).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logdiff_kernels.build.selftest.bits import Array

Pair = tuple[int, int]
Sum = Callable[[Array], Array]

LARGE, ONE = np.float32(2.0**30), np.float32(2.0**-12)
"""M and 1: 512 ones on M are lost in fp32, and their products' factors are representable in fp16."""

_SHOWN = 300


def all_pairs(leaves: Sequence[int]) -> list[Pair]:
    """Every two of them, the first one in front."""
    return [(i, j) for a, i in enumerate(leaves) for j in leaves[a + 1 :]]


def masked(pairs: Sequence[Pair], n: int) -> NDArray[np.float32]:
    """One row of n addends for each pair."""
    rows = np.full((len(pairs), n), ONE, np.float32)
    for row, (i, j) in zip(rows, pairs, strict=True):
        row[i], row[j] = LARGE, -LARGE
    return rows


def met(pairs: Sequence[Pair], sums: Array, n: int) -> dict[Pair, float]:
    """Addends below the node where a pair meets, from the sums of its row. Not whole where a rounding interferes."""
    return {pair: n - float(left) / float(ONE) for pair, left in zip(pairs, sums, strict=True)}


def tree(leaves: Sequence[int], meeting: dict[Pair, float]) -> Any:
    """Nested tuples of leaves in the order of the sum; None where the sizes are those of no tree.

    A node has more than two parts where its addends cancel whatever else is there: they are summed at once, exactly.
    """
    if len(leaves) == 1:
        return leaves[0]
    size = {pair: meeting[pair] for pair in all_pairs(leaves)}
    top = max(size.values())
    parts: list[list[int]] = []
    for leaf in leaves:
        for part in parts:
            if size[part[0], leaf] < top:
                part.append(leaf)
                break
        else:
            parts.append([leaf])
    where = {leaf: i for i, part in enumerate(parts) for leaf in part}
    if any((size[i, j] < top) != (where[i] == where[j]) for i, j in size):
        return None
    made = [tree(part, meeting) for part in parts]
    return None if any(part is None for part in made) else tuple(made)


def written(node: Any) -> str:
    """A tree as text, `((0 1) (2 3))`, with `(0 > 1 > 2)` for `((0 1) 2)`; long ones cut."""
    if node is None:
        return "no tree: partial sums are kept wider, or cut off"
    text = _written(node)
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]} ... sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _written(node: Any) -> str:
    if isinstance(node, int):
        return str(node)
    chain: list[str] = []
    while isinstance(node, tuple) and len(node) == 2 and isinstance(node[1], int):  # not as many brackets
        chain.append(str(node[1]))
        node = node[0]
    first = str(node) if isinstance(node, int) else "(" + " ".join(_runs([_written(part) for part in node])) + ")"
    if not chain:
        return first
    if len(chain) == 1:
        return f"({first} {chain[0]})"
    return f"({' > '.join(_runs([first, *reversed(chain)]))})"


def _runs(chain: list[str]) -> list[str]:
    """Parts of a node, four or more leaves that count up as `a .. b`."""
    short: list[str] = []
    begin = 0
    for i in range(1, len(chain) + 1):
        if i < len(chain) and chain[i - 1].isdigit() and chain[i] == str(int(chain[i - 1]) + 1):
            continue
        run = chain[begin:i]
        short += run if len(run) < 4 else [run[0], "..", run[-1]]
        begin = i
    return short


def neighbours(x: Array) -> Array:
    """((x0 + x1) + (x2 + x3)) + ..., padded with +0 to a power of two."""
    size = 1
    while size < x.shape[-1]:
        size *= 2
    level = np.zeros((*x.shape[:-1], size), np.float32)
    level[..., : x.shape[-1]] = x
    with np.errstate(all="ignore"):
        while level.shape[-1] > 1:
            level = level[..., ::2] + level[..., 1::2]
    return np.asarray(level[..., 0])


def halves(x: Array) -> Array:
    """Lane l + n/2 added to lane l, until one is left; n a power of two."""
    level = x
    with np.errstate(all="ignore"):
        while level.shape[-1] > 1:
            half = level.shape[-1] // 2
            level = level[..., :half] + level[..., half:]
    return np.asarray(level[..., 0])


def ascending(x: Array) -> Array:
    """(x0 + x1) + x2 and so on."""
    total = x[..., 0].astype(np.float32)
    with np.errstate(all="ignore"):
        for i in range(1, x.shape[-1]):
            total = total + x[..., i]
    return np.asarray(total)


def exact(x: Array) -> Array:
    """In fp64, rounded once."""
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(np.float64).sum(-1).astype(np.float32))


def _repeats(x: Array) -> Array:
    return x.reshape(*x.shape[:-1], -1, 64)


def trees_in_order(x: Array) -> Array:
    """Neighbours within each repeat of 64, the repeats' sums ascending."""
    return ascending(neighbours(_repeats(x)))


def tree_of_trees(x: Array) -> Array:
    """Neighbours within each repeat of 64, then neighbours of the repeats' sums."""
    return neighbours(neighbours(_repeats(x)))


def lanes_first(x: Array) -> Array:
    """Repeats ascending lane by lane, then neighbours of the 64 lanes."""
    return neighbours(ascending(np.moveaxis(_repeats(x), -2, -1)))


ORDERS: dict[str, Sum] = {
    "pairs of neighbours": neighbours,
    "halves": halves,
    "ascending": ascending,
    "pairs of neighbours within 64, then in order": trees_in_order,
    "pairs of neighbours within 64, then of these": tree_of_trees,
    "64 lanes in order, then pairs of neighbours": lanes_first,
    "exact, rounded once": exact,
}
"""Orders by name; the first that fits is named."""
