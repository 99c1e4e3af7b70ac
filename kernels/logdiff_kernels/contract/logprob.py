"""Plan of `logprob`: the vocabulary in eight leaves, and which ranks hold whole ones."""

from __future__ import annotations

from logdiff_kernels.contract import LOGPROB_LEAVES
from logdiff_kernels.errors import UnsupportedError


def padded_vocabulary(size: int) -> int:
    """The vocabulary size rounded up to a multiple of 64."""
    return -(-size // 64) * 64


def leaf_ranges(size: int) -> list[tuple[int, int]]:
    """Begin and end of each leaf's columns; columns from `size` up are padding (-inf)."""
    columns = padded_vocabulary(size) // LOGPROB_LEAVES
    return [(i * columns, (i + 1) * columns) for i in range(LOGPROB_LEAVES)]


def rank_leaves(size: int, ranks: int, columns_per_rank: int) -> int:
    """Leaves of each of `ranks` vocabulary shards of `columns_per_rank` columns.

    Raises:
        UnsupportedError: the ranks don't hold whole leaves, so columns would have to move first.
    """
    leaf = padded_vocabulary(size) // LOGPROB_LEAVES
    if ranks < 1 or LOGPROB_LEAVES % ranks or columns_per_rank * ranks != leaf * LOGPROB_LEAVES:
        raise UnsupportedError(
            f"logprob: {ranks} shards of {columns_per_rank} columns don't hold whole leaves of {leaf} columns",
            value=[size, ranks, columns_per_rank],
            hint="a tensor-parallel size that divides 8 and a vocabulary padded to a multiple of 64",
        )
    return LOGPROB_LEAVES // ranks
