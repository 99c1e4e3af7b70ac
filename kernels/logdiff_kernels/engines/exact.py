"""Which tensor operations have the same bits in any batch and in either engine without an aligned operator."""

from __future__ import annotations

from typing import Any

import torch

EXACT = frozenset(
    """
    _to_copy _unsafe_view abs add add_ alias arange as_strided bitwise_and cat clamp clamp_ clamp_max clamp_min clone
    constant_pad_nd contiguous copy_ detach div div_ embedding empty empty_like empty_strided expand fill_ full
    full_like gather index index_put_ index_select lift_fresh masked_fill masked_fill_ maximum minimum mul mul_ narrow
    neg new_empty new_empty_strided new_full new_ones new_zeros ones ones_like permute relu repeat reshape resize_
    scalar_tensor scatter_ select set_ slice split split_with_sizes squeeze stack sub sub_ t transpose unbind unsqueeze
    view where zero_ zeros zeros_like
    """.split()  # noqa: SIM905
)
"""Names of operators that move data, or round the result of one exact operation per element."""


def floating(result: Any) -> bool:
    """Whether an operator's result is, or holds, a floating-point tensor."""
    if isinstance(result, torch.Tensor):
        return result.is_floating_point()
    return isinstance(result, (list, tuple)) and any(map(floating, result))
