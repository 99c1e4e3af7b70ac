"""Rows by their bits: equality, a 64-bit hash, and eight fixed random projections."""

from __future__ import annotations

import functools

import torch

SKETCH = 8
"""Projections per row."""

_WORDS = 1 << 21
"""8-byte words hashed at a time, so that temporaries stay small."""


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors of rows hold the same bits; none where there are no rows."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a is b:
        return True
    if not len(a) or not torch.equal(_bits(a[:1]), _bits(b[:1])):
        return False
    return torch.equal(_bits(a), _bits(b))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def row_hash(rows: torch.Tensor) -> torch.Tensor:
    """int64 [n]: a hash of each row's bits and width; equal rows of equal dtype size have equal hashes on any device.

    Args:
        rows: [n, F] of any dtype.

    Every 8-byte word is mixed with a constant of its place before the sum, so one changed bit always shows, and other
    changes are missed with a chance of about 2^-64.
    """
    n, width = rows.shape
    size = width * rows.element_size()
    raw = rows.detach().contiguous().view(torch.uint8) if width else rows.new_zeros((n, 0), dtype=torch.uint8)
    if size % 8:
        raw = torch.nn.functional.pad(raw, (0, 8 - size % 8))
    words = raw.view(torch.int64)
    count = words.shape[1]
    add, factor = (c.to(words.device) for c in _constants(count))
    step = max(1, _WORDS // max(count, 1))
    found = torch.empty(n, dtype=torch.int64, device=words.device)
    for start in range(0, n, step):
        mixed = words[start : start + step] + add
        mixed = (mixed ^ ((mixed >> 32) & 0xFFFFFFFF)) * factor
        mixed ^= (mixed >> 29) & 0x7FFFFFFFF
        found[start : start + step] = mixed.sum(-1)
    found = (found ^ ((found >> 32) & 0xFFFFFFFF)) * 0x2545F4914F6CDD1D + size
    return found ^ ((found >> 31) & 0x1FFFFFFFF)


def row_sketch(rows: torch.Tensor) -> torch.Tensor:
    """float32 [n, 8]: products with eight fixed rows of +-1 / sqrt(8); the square of a difference's sketch estimates
    the square of the difference."""
    signs = _signs(rows.shape[1]).to(rows.device)
    step = max(1, _WORDS // max(rows.shape[1], 1))
    parts = [rows[i : i + step].detach().float() @ signs for i in range(0, len(rows), step)]
    return torch.cat(parts) if parts else torch.zeros(0, SKETCH)


@functools.lru_cache(maxsize=64)
def _constants(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0x10D1FF)
    both = torch.randint(-(2**63), 2**63 - 1, (max(count, 1), 2), generator=generator, dtype=torch.int64)[:count]
    return both[:, 0].contiguous(), both[:, 1].contiguous() | 1


@functools.lru_cache(maxsize=64)
def _signs(width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0x5CE7C4)
    bits = torch.randint(0, 2, (width, SKETCH), generator=generator)
    signs: torch.Tensor = (2.0 * bits - 1.0) / SKETCH**0.5
    return signs
