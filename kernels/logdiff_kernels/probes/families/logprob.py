"""From logits to log-probabilities: log_softmax, logprob (of one id per row), sampler_logprob (after a sampler)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.families.linear import ROW_RELATIONS
from logdiff_kernels.probes.records import Family, Problem, Shape

TEMPERATURE = 0.7
TOP_K = 40


def _logits(draw: Draw, shape: Shape) -> Problem:
    """logits [rows, vocab] in the storage dtype."""
    return Problem(shape, {"logits": draw.logits(shape["rows"], shape["vocab"]).to(draw.dtype)})


def _chosen(draw: Draw, shape: Shape) -> Problem:
    made = _logits(draw, shape)
    made.rows["ids"] = draw.integers(shape["vocab"], shape["rows"])
    return made


def _sampled(draw: Draw, shape: Shape) -> Problem:
    """ids are the most likely ones, which every sampler keeps."""
    made = _logits(draw, shape)
    made.rows["ids"] = made.rows["logits"].float().argmax(-1)
    return made


def log_softmax_exact(logits: Tensor) -> Tensor:
    """[rows, vocab]."""
    return torch.log_softmax(logits, dim=-1)


def logprob_exact(logits: Tensor, ids: Tensor) -> Tensor:
    """[rows]."""
    return torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0]


def sampler_exact(logits: Tensor, ids: Tensor) -> Tensor:
    """Temperature, then top-k by value, then log_softmax: [rows]."""
    z = logits / TEMPERATURE
    least = z.topk(min(TOP_K, z.shape[-1]), dim=-1).values[:, -1:]
    return logprob_exact(z.masked_fill(z < least, -torch.inf), ids)


_ROWS: dict[str, Any] = {
    "dims": ("rows", "vocab"), "terms": lambda s: s["vocab"], "cost": lambda s: float(16 * s["rows"] * s["vocab"]),
    "roundings": 2,
    "defaults": tuple({"rows": r, "vocab": v} for r, v in ((2, 65), (9, 515), (33, 2050), (65, 32000))),
}  # fmt: skip
_WITHOUT_BATCH = tuple(r for r in ROW_RELATIONS if r != "packing")

FAMILIES = (
    Family(
        "log_softmax", "rows", draw=_logits, exact=log_softmax_exact, relations=ROW_RELATIONS, wrt=("logits",), **_ROWS
    ),
    Family(
        "logprob", "rows", draw=_chosen, exact=logprob_exact, relations=(*_WITHOUT_BATCH, "tp"), wrt=("logits",),
        **_ROWS,
    ),
    Family(
        "sampler_logprob", "rows", draw=_sampled, exact=sampler_exact,
        relations=tuple(r for r in _WITHOUT_BATCH if r not in ("compile", "strides")), **_ROWS,
    ),
)  # fmt: skip
