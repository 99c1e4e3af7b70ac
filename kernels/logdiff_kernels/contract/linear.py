"""Plans of the matrix products: leaves of `linear_row`, and which layers are row-parallel."""

from __future__ import annotations

from collections.abc import Mapping

from logdiff_kernels.contract import ROW_LEAVES
from logdiff_kernels.errors import UnsupportedError

ROW_PARALLEL_NAMES = frozenset({"o_proj", "down_proj", "out_proj", "wo", "w2", "c_proj", "dense_4h_to_h"})
"""Last names of layers that tensor parallelism shards over K when a model has no plan of its own."""


def row_leaves(k: int) -> int:
    """Number of leaves that `linear_row` cuts K into: the largest of 8, 4, 2, 1 whose 16-fold divides K, or 1."""
    leaves = ROW_LEAVES
    while leaves > 1 and k % (16 * leaves):
        leaves //= 2
    return leaves


def leaf_ranges(k: int) -> list[tuple[int, int]]:
    """Begin and end of every leaf of `linear_row` for that K, in the tree's order."""
    leaves = row_leaves(k)
    size = k // leaves
    return [(i * size, (i + 1) * size) for i in range(leaves)]


def rank_leaves(k: int, ranks: int) -> int:
    """Leaves of each of `ranks` tensor-parallel ranks for the whole K.

    Raises:
        UnsupportedError: the number of ranks doesn't divide the number of leaves.
    """
    leaves = row_leaves(k)
    if ranks < 1 or leaves % ranks:
        raise UnsupportedError(
            f"linear_row with K = {k} has {leaves} leaves, which {ranks} tensor-parallel ranks can't share",
            value=ranks,
            hint=f"a tensor-parallel size that divides {leaves}",
        )
    return leaves // ranks


def is_row_parallel(name: str, plan: Mapping[str, str] | None = None) -> bool:
    """Whether the layer of that module path is row-parallel, so that its product is `linear_row`.

    Args:
        name: dotted module path, for example `model.layers.3.self_attn.o_proj`.
        plan: a Hugging Face `base_model_tp_plan` (`layers.*.self_attn.o_proj` -> `rowwise`); where it names the layer
            it decides, else the layer's last name does.
    """
    style = _planned(name, plan or {})
    if style is not None:
        return "rowwise" in style
    return name.rsplit(".", 1)[-1] in ROW_PARALLEL_NAMES


def _planned(name: str, plan: Mapping[str, str]) -> str | None:
    parts = name.split(".")
    for pattern, style in plan.items():
        wanted = pattern.split(".")
        tail = parts[-len(wanted) :]
        if len(tail) == len(wanted) and all(
            w == t or (w == "*" and t.isdecimal()) for w, t in zip(wanted, tail, strict=True)
        ):
            return style
    return None
