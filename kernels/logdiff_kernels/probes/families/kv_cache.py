"""What a KV cache keeps of a key: kv_store writes rows into pages and reads them back, in the cache's dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Problem, Shape

PAGE = 32


def _keys(draw: Draw, shape: Shape) -> Problem:
    """k [rows, kv_heads, head_dim]."""
    return Problem(shape, {"k": draw.normal(shape["rows"], shape["kv_heads"], shape["head_dim"]).to(draw.dtype)})


def kept_exact(k: Tensor) -> Tensor:
    """The key itself."""
    return k


def kept_fp8(k: Tensor) -> Tensor:
    """The key rounded to float8_e4m3."""
    return k.float().to(torch.float8_e4m3fn).double()


_COMMON: dict[str, Any] = {
    "dims": ("rows", "kv_heads", "head_dim"), "draw": _keys, "multiples": {"head_dim": 32}, "terms": lambda s: 1,
    "relations": ("batch", "order", "neighbours", "padding", "chunking", "rerun", "threads", "micro_batch", "strides"),
    "cost": lambda s: float(4 * s["rows"] * s["kv_heads"] * s["head_dim"]),
    "defaults": (
        {"rows": 2, "kv_heads": 1, "head_dim": 32}, {"rows": 33, "kv_heads": 2, "head_dim": 64},
        {"rows": 129, "kv_heads": 8, "head_dim": 128},
    ),
}  # fmt: skip

FAMILIES = (
    Family("kv_store", "rows", exact=kept_exact, **_COMMON),
    Family("kv_store_fp8", "rows", exact=kept_fp8, **_COMMON),
)
