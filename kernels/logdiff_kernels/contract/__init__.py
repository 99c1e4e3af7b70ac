"""The numeric contract as pure functions of shapes and dtypes: plans, leaves, steps, trees and its constants."""

from __future__ import annotations

CONTRACT = "aligned/1"
"""Version: a change to any rule is a new one. Both sides have to report the same."""

STEP = 512
"""Keys per attention step, and tokens per block of a weight gradient."""

CHUNK = 4096
"""Keys per attention chunk: 8 steps."""

R64_LANES = 64
"""Running lanes of the sum R64."""

ROW_LEAVES = 8
"""Most leaves that the K of a row-parallel product is cut into."""

LOGPROB_LEAVES = 8
"""Leaves of the vocabulary in `logprob`."""

OPERATORS = (
    "linear",
    "linear_row",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "swiglu",
    "attention",
    "router",
    "moe",
    "embedding",
    "lm_head",
    "logprob",
    "all_reduce",
    "reduce_scatter",
)
"""Every operator, in the contract's order."""
