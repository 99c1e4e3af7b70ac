"""Causal attention over sequences: prefill, decode, chunks, pages, prefixes are layouts of one definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.ops.reference.attention import attention as reference
from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Layout, Problem, Sequence, Shape

FP8 = "fp8_e4m3"


def _draw(kv_dtype: str) -> Any:
    def attention(draw: Draw, shape: Shape) -> Problem:
        """q [batch, length, heads, head_dim], k and v [batch, length, kv_heads, head_dim]."""
        batch, length, width = shape["batch"], shape["length"], shape["head_dim"]
        rows = {
            "q": draw.normal(batch, length, shape["heads"], width).to(draw.dtype),
            "k": draw.normal(batch, length, shape["kv_heads"], width).to(draw.dtype),
            "v": draw.activations(batch, length, shape["kv_heads"], width),
        }
        fixed: dict[str, Any] = {
            "scale": width**-0.5, "window": shape["window"], "softcap": float(shape["softcap"]),
            "sinks": draw.normal(shape["heads"]).to(draw.dtype) if shape["sinks"] else None,
        }  # fmt: skip
        if kv_dtype:
            fixed["kv_dtype"] = kv_dtype
        return Problem(shape, rows, fixed)

    return attention


def attention_exact(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
    """From the formula; keys and values first rounded to the cache's dtype where there is one."""
    found = []
    for one in listed:
        q, k, v = (one.parts[name] for name in "qkv")
        if fixed.get("kv_dtype") == FP8:
            k, v = (x.float().to(torch.float8_e4m3fn).double() for x in (k, v))
        cu_q, cu_k = torch.tensor([0, q.shape[0]]), torch.tensor([0, k.shape[0]])
        out = reference(
            q, k, v, cu_q, cu_k, scale=fixed["scale"], window=fixed["window"], softcap=fixed["softcap"],
            sinks=fixed["sinks"],
        )  # fmt: skip
        assert isinstance(out, Tensor)
        found.append(out)
    return found


def cancelling_terms(rows: dict[str, Tensor], fixed: dict[str, Any]) -> tuple[float, ...]:
    """dS = P (dP - D) cancels where a query sees one key: dP and D are at most |dO||v|, dq and dk that times k or q."""
    given = next(x for name, x in rows.items() if name not in ("q", "k", "v"))
    heads = given.shape[-2] ** 0.5  # a row holds all heads
    dout, q, k, v = (float(x.double().norm(dim=-1).max()) for x in (given, rows["q"], rows["k"], rows["v"]))
    return heads * dout * v * k * fixed["scale"], heads * dout * v * q * fixed["scale"], 0.0


def visible(queries: int, keys: int, window: int, device: Any = "cpu") -> Tensor:
    """bool [queries, keys]: which keys the last `queries` positions of `keys` see."""
    position = torch.arange(queries, device=device)[:, None] + keys - queries
    key = torch.arange(keys, device=device)[None, :]
    seen = key <= position
    return seen & (key > position - window) if window > 0 else seen


def _shape(batch: int, length: int, heads: int, kv_heads: int, head_dim: int, **options: int) -> Shape:
    return {
        "batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": 0,
        "softcap": 0, "sinks": 0, **options,
    }  # fmt: skip


_RELATIONS = (
    "batch", "order", "neighbours", "padding", "chunking", "decode", "page_size", "rerun", "threads", "micro_batch",
    "tp", "packing", "strides", "compile",
)  # fmt: skip
_COMMON: dict[str, Any] = {
    "kind": "sequences",
    "dims": ("batch", "length", "heads", "kv_heads", "head_dim", "window", "softcap", "sinks"),
    "exact": attention_exact,
    "roundings": 4,
    "terms": lambda s: max(s["length"], s["head_dim"]),
    "cost": lambda s: float(2 * s["batch"] * s["length"] ** 2 * s["heads"] * s["head_dim"]),
    "least": {"window": 0, "softcap": 0, "sinks": 0},
    "multiples": {"head_dim": 32},
    "legal": lambda s: s["heads"] % s["kv_heads"] == 0 and s["sinks"] <= 1,
}

FAMILIES = (
    Family(
        "attention", draw=_draw(""), relations=_RELATIONS, wrt=("q", "k", "v"), cancelling=cancelling_terms,
        defaults=(
            _shape(2, 7, 2, 1, 32),
            _shape(3, 65, 4, 2, 64),
            _shape(2, 130, 8, 1, 64),
            _shape(2, 129, 4, 2, 64, window=40),
            _shape(2, 513, 4, 2, 64),
        ),
        **_COMMON,
    ),
    Family(
        "attention_fp8_kv", draw=_draw(FP8),
        relations=tuple(r for r in _RELATIONS if r not in ("tp", "compile", "packing", "padding", "strides")),
        defaults=(_shape(2, 7, 2, 1, 32), _shape(3, 65, 4, 2, 64), _shape(2, 257, 4, 2, 64)),
        **_COMMON,
    ),
)  # fmt: skip
