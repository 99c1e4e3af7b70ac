"""Sums over tensor-parallel ranks: fp32 partials in rank order by the contract's tree, on every rank."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace the all-reduce of vLLM's process groups.

    With `linear_row` aligned, the reductions that a model needs happen inside the row-parallel layers, in fp32. What
    is left then are sums of rounded partials, whose bits depend on the number of ranks: those are refused. Without
    `linear_row` the sum is the tree over the partials that the stock layers give.

    Raises (in the forward pass):
        UnsupportedError: a reduction that no aligned operator owns.
    """
    from vllm.distributed.parallel_state import GroupCoordinator

    def total(group: Any, partial: torch.Tensor) -> torch.Tensor:
        if "linear_row" in spec:
            raise UnsupportedError(
                f"a sum over the ranks of group {group.unique_name} that no aligned operator owns",
                value=str(partial.dtype),
                hint="leave linear_row out of the aligned operators, or use tensor_parallel_size 1",
            )
        return ops.tree_combine(_over(group, partial.to(torch.float32)), None, partial.dtype)

    def all_reduce(stock: Any) -> Any:
        def all_reduce(self: Any, input_: torch.Tensor) -> torch.Tensor:
            if self.world_size == 1 or not input_.is_floating_point():
                untouched: torch.Tensor = stock(self, input_)
                return untouched
            return total(self, input_)

        return all_reduce

    def reduce_scatter(stock: Any) -> Any:
        def reduce_scatter(self: Any, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
            if self.world_size == 1 or not input_.is_floating_point():
                untouched: torch.Tensor = stock(self, input_, dim)
                return untouched
            whole = total(self, input_)
            width = whole.shape[dim] // self.world_size
            return whole.narrow(dim, self.rank_in_group * width, width).contiguous()

        return reduce_scatter

    if "all_reduce" in spec:
        patches.wrap(GroupCoordinator, "all_reduce", all_reduce)
    if "reduce_scatter" in spec:
        patches.wrap(GroupCoordinator, "reduce_scatter", reduce_scatter)


def gathered(partial: torch.Tensor) -> torch.Tensor:
    """The tensors of all tensor-parallel ranks, [ranks, *partial.shape], in rank order."""
    from vllm.distributed.parallel_state import get_tp_group

    return _over(get_tp_group(), partial)


def _over(group: Any, partial: torch.Tensor) -> torch.Tensor:
    size = group.world_size
    flat = partial.contiguous().reshape(1, -1) if partial.dim() == 0 else partial.contiguous().unsqueeze(0)
    whole: torch.Tensor = group.all_gather(flat, 0)
    return whole.reshape(size, *partial.shape)
