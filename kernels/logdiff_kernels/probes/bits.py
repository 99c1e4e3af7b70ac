"""Comparing results bit by bit: first difference, distance in units in the last place, hashes of inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logdiff_kernels.probes.records import Difference, Result

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ARRAYS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def parts(result: Any) -> Result:
    """A result as a tuple of tensors on the CPU, without gradient."""
    listed = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(x.detach().to("cpu") for x in listed)


def as_integers(x: Tensor) -> Tensor:
    """The bit patterns of a contiguous copy of x, as signed integers of its width (bytes: unsigned)."""
    return x.contiguous().view(_INTEGERS[x.element_size()])


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Which elements have other bits; a NaN equals any NaN."""
    found = as_integers(a) != as_integers(b)
    if a.is_floating_point():
        found &= ~(a.isnan() & b.isnan())
    return found


def ordinals(x: Tensor) -> Tensor:
    """int64 numbers that count representable values: neighbours differ by 1, -0 and +0 by nothing; NaN far away."""
    bits = as_integers(x).to(torch.int64)
    width = 8 * x.element_size()
    if not x.is_floating_point():
        return bits
    magnitude = bits & ((1 << (width - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def ulp(a: Tensor, b: Tensor) -> Tensor:
    """|distance| in representable values, int64."""
    return (ordinals(a) - ordinals(b)).abs()


def first_difference(
    base: Iterable[Result], varied: Iterable[Result], rows: list[int], variant: str
) -> Difference | None:
    """The first element that differs between two lists of results, one entry per row (or sequence) of `rows`.

    Raises:
        ValueError: results of other shapes, dtypes or number.
    """
    first: tuple[int, int, tuple[int, ...], Tensor, Tensor] | None = None
    count, compared, furthest = 0, 0, 0
    for row, a_parts, b_parts in zip(rows, base, varied, strict=True):
        for number, (a, b) in enumerate(zip(a_parts, b_parts, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise ValueError(f"{variant}: {tuple(a.shape)} {a.dtype} against {tuple(b.shape)} {b.dtype}")
            compared += a.numel()
            mask = differing(a, b)
            if not bool(mask.any()):
                continue
            count += int(mask.sum())
            furthest = max(furthest, int(ulp(a, b)[mask].max()))
            if first is None:
                index = tuple(int(i) for i in mask.nonzero()[0])
                first = (number, row, index, a[index], b[index])
    if first is None:
        if compared == 0:
            raise ValueError(f"{variant}: nothing was compared")
        return None
    number, row, index, a, b = first
    return Difference(
        variant, number, row, index, (hexadecimal(a), hexadecimal(b)), (float(a), float(b)), int(ulp(a, b)), furthest,
        count, compared,
    )  # fmt: skip


def signature(base: Iterable[Result], varied: Iterable[Result]) -> str:
    """SHA-256 over every difference of two lists of results, places and bits of both sides; empty: none differs."""
    total, any_found = hashlib.sha256(), False
    for a_parts, b_parts in zip(base, varied, strict=True):
        for a, b in zip(a_parts, b_parts, strict=True):
            mask = differing(a, b)
            places = mask.nonzero()
            any_found |= bool(len(places))
            total.update(str(len(places)).encode())
            for x in (places, as_integers(a)[mask], as_integers(b)[mask]):
                total.update(x.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest() if any_found else ""


def hexadecimal(x: Tensor) -> str:
    """The bits of one element, `0x` and two digits per byte."""
    size = x.element_size()
    value = int(as_integers(x.reshape(1))[0]) & ((1 << (8 * size)) - 1)
    return f"0x{value:0{2 * size}x}"


def nudged(x: Tensor, amount: Tensor | int) -> Tensor:
    """x with `amount` added to the bit pattern of every element (wrapping); for planting faults."""
    kind = _INTEGERS[x.element_size()]
    return (x.contiguous().view(kind) + torch.as_tensor(amount, device=x.device).to(kind)).view(x.dtype)


def digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """SHA-256 (first 16 digits) over names, dtypes, shapes and bits of named tensors and plain values."""
    total = hashlib.sha256()
    for name, value in tensors:
        total.update(name.encode())
        if isinstance(value, Tensor):
            x = value.detach().to("cpu").contiguous()
            total.update(f"{x.dtype}{tuple(x.shape)}".encode())
            total.update(x.flatten().view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(value).encode())
    return total.hexdigest()[:16]
