"""The contract's operators for torch: one public function each, with autograd and fake implementations.

Operators that are called outside torch.compile and need no gradient go straight to their kernel.
"""

from __future__ import annotations

from logdiff_kernels.ops.activation import geglu_tanh, swiglu, swiglu_clamped
from logdiff_kernels.ops.attention import attention, paged_attention, store_kv
from logdiff_kernels.ops.embedding import embedding
from logdiff_kernels.ops.linear import (
    grouped_linear,
    linear,
    linear_row,
    linear_row_partial,
    lm_head,
    tree_combine,
)
from logdiff_kernels.ops.logprob import log_softmax, logprob, logprob_merge, logprob_partial
from logdiff_kernels.ops.moe import moe, moe_combine, moe_combine_slots, moe_rows
from logdiff_kernels.ops.norm import add_rms_norm, rms_norm
from logdiff_kernels.ops.rope import rope
from logdiff_kernels.ops.router import router

__all__ = [
    "add_rms_norm",
    "attention",
    "embedding",
    "geglu_tanh",
    "grouped_linear",
    "linear",
    "linear_row",
    "linear_row_partial",
    "lm_head",
    "log_softmax",
    "logprob",
    "logprob_merge",
    "logprob_partial",
    "moe",
    "moe_combine",
    "moe_combine_slots",
    "moe_rows",
    "paged_attention",
    "rms_norm",
    "rope",
    "router",
    "store_kv",
    "swiglu",
    "swiglu_clamped",
    "tree_combine",
]
