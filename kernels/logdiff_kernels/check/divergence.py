"""Where two captures of the same tokens part: boundary by boundary, in execution order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.given import blocks
from logdiff_kernels.observe.boundaries import names

PAIRS = (("decode", "score"), ("prefill", "score"), ("decode", "prefill"))
BLOCK = 1 << 22


def divergence(a: Captured, b: Captured, pair: str) -> Iterator[dict[str, Any]]:
    """Entries of `divergence` in `logdiff-operators/1`: a against b on the tokens that both passed."""
    shared = sorted(set(a.names()) & set(b.names()), key=names.order)
    place_a, place_b = _places(a), _places(b)
    for name in shared:
        at_a, at_b = _matched(place_a, a.index(name), place_b, b.index(name))
        if not len(at_a):
            continue
        x, y = a.at(name, at_a), b.at(name, at_b)
        if x.shape != y.shape:
            continue
        yield {"pair": pair, "boundary": name, **_compared(x, y, a, at_a)}


def _places(c: Captured) -> dict[tuple[str, int], int]:
    ids = c.header.sample_ids
    pairs = zip(c.rows.sample.tolist(), c.rows.position.tolist(), strict=True)
    return {(ids[s], p): i for i, (s, p) in enumerate(pairs)}


def _matched(
    place_a: dict[tuple[str, int], int], rows_a: torch.Tensor, place_b: dict[tuple[str, int], int], rows_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    have_a, have_b = set(rows_a.tolist()), set(rows_b.tolist())
    both = [(i, place_b[key]) for key, i in place_a.items() if i in have_a and place_b.get(key) in have_b]
    pairs = torch.tensor(both, dtype=torch.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _compared(x: torch.Tensor, y: torch.Tensor, a: Captured, at: torch.Tensor) -> dict[str, Any]:
    different = torch.zeros(len(x), dtype=torch.bool)
    error = power = 0.0
    for rows in blocks(torch.arange(len(x)), BLOCK // x.shape[-1]):
        p, q = x[rows], y[rows]
        different[rows] = (p.double() != q.double()).any(-1)
        p, q = p.double(), q.double()
        error += float((p - q).square().sum())
        power += float(q.square().sum())
    first = None
    if bool(different.any()):
        row = int(at[int(different.nonzero()[0, 0])])
        sample = a.header.sample_ids[int(a.rows.sample[row])]
        first = {"sample_id": sample, "position": int(a.rows.position[row])}
    return {
        "rows": len(x),
        "bits_differ": float(different.double().mean()),
        "relative": (error / power) ** 0.5 if power > 0 else (float("inf") if error > 0 else 0.0),
        "first_row": first,
    }
