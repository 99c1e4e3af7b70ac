"""Bits of arrays: equal or not, hashes for comparing hosts, and words for how results differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

PARTS = 16
"""Ranges of a table that are hashed by themselves, so that a comparison can say where two tables differ."""

_SHOWN = 3
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def array(x: Tensor) -> Array:
    """A tensor's values on the host; bf16 as its bits in uint16."""
    x = x.detach().cpu().contiguous()
    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()


def is_nan(x: Array) -> NDArray[np.bool_]:
    """Where a value is NaN; uint16 is read as bf16."""
    if x.dtype == np.uint16:
        return np.asarray((x & 0x7FFF) > 0x7F80)
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def words(x: Array) -> Array:
    """The bits of a float array, as unsigned words."""
    return x if x.dtype.kind == "u" else np.ascontiguousarray(x).view(_WORDS[x.dtype.itemsize])


def differ(a: Array, b: Array) -> NDArray[np.bool_]:
    """Where the bits differ; any NaN equals any NaN."""
    return np.asarray((words(a) != words(b)) & ~(is_nan(a) & is_nan(b)))


def sha256(x: Array) -> str:
    """SHA-256 over the bits, every NaN counted as the same one."""
    bits = words(x)
    nan = is_nan(x)
    if nan.any():
        bits = np.where(nan, bits.dtype.type(0x7FC0 << 8 * (bits.dtype.itemsize - 2)), bits)
    return hashlib.sha256(bits.astype(bits.dtype.newbyteorder("<")).tobytes()).hexdigest()


def table(x: Array) -> dict[str, Any]:
    """Facts of a table of results: `values`, `sha256` and short hashes of its `parts`."""
    return {"values": int(x.size), "sha256": sha256(x), "parts": [sha256(x)[:8] for x in np.array_split(x, PARTS)]}


def some(found: Any, of: str = "values") -> str:
    """`3 of 9 values`, for an array of truths."""
    return f"{int(found.sum())} of {found.size} {of}"


def tensors_differ(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """Empty when all have equal bits (any NaN equals any NaN), else which differ and where first."""
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"result {i}: {tuple(x.shape)} {x.dtype} against {tuple(y.shape)} {y.dtype}"
        apart = differ(array(x), array(y))
        if apart.any():
            return f"result {i}: {some(apart)} differ, first at {np.argwhere(apart)[0].tolist()}"
    return ""


def ordinals(x: Array) -> NDArray[np.int64]:
    """fp32 as integers in the order of their values: neighbours differ by 1."""
    bits = words(x.astype(np.float32)).astype(np.int64)
    return np.asarray(np.where(bits >> 31 != 0, -(bits & 0x7FFFFFFF), bits))


def subnormal(x: Array) -> NDArray[np.bool_]:
    """Where a float is subnormal; uint16 is read as bf16."""
    if x.dtype == np.uint16:
        return np.asarray(((x & 0x7F80) == 0) & ((x & 0x7F) != 0))
    return np.asarray((x != 0) & (np.abs(x) < np.finfo(x.dtype).smallest_normal))


def flushed(x: Array) -> Array:
    """fp32 with subnormals as zeros of their sign."""
    return np.where(subnormal(x), np.copysign(np.float32(0), x), x).astype(np.float32)


def how_they_differ(
    operands: Sequence[Array], found: Array, expected: Array, again: Callable[..., Array] | None, sign: str
) -> str:
    """Empty when the bits are equal, else how many differ, in which ways, and the first few.

    Args:
        operands: of each result.
        found: results.
        expected: what they should be.
        again: gives `expected` from operands: tells whether a chip reads subnormals as 0.
        sign: for the examples: `a sign b = found`.
    """
    apart = differ(found, expected)
    if not apart.any():
        return ""
    kinds = _kinds(apart, operands, found, expected, again)
    said = ", ".join(f"{int(where.sum())} {words_}" for words_, where in kinds if where.any())
    shown = "; ".join(_example(i, operands, found, expected, sign) for i in np.flatnonzero(apart)[:_SHOWN])
    return f"{some(apart, 'results')} differ: {said}; first: {shown}"


def _kinds(
    apart: NDArray[np.bool_],
    operands: Sequence[Array],
    found: Array,
    expected: Array,
    again: Callable[..., Array] | None,
) -> list[tuple[str, NDArray[np.bool_]]]:
    """Every difference once, under the first of these that fits."""
    kinds: list[tuple[str, NDArray[np.bool_]]] = []
    left = apart.copy()

    def take(words_: str, where: Any) -> None:
        kinds.append((words_, left & where))
        left[kinds[-1][1]] = False

    with np.errstate(all="ignore"):
        take("NaN where a number is due", is_nan(found))
        take("a number where NaN is due", is_nan(expected))
        if found.dtype.kind != "i":
            zero = (found & 0x7FFF if found.dtype == np.uint16 else found) == 0
            take("subnormal results that became 0", subnormal(expected) & zero)
        if found.dtype == np.float32:
            inputs = [x for x in operands if x.dtype == np.float32]
            if again is not None and inputs and len(inputs) == len(operands):
                tiny = np.logical_or.reduce([subnormal(x) for x in inputs])
                wrong = again(*(flushed(x) for x in inputs))
                take("subnormal operands read as 0", tiny & ~(differ(found, wrong) & differ(found, flushed(wrong))))
            take("infinite where a finite number is due", np.isinf(found) & ~np.isinf(expected))
            take("finite where an infinity is due", np.isinf(expected) & ~np.isinf(found))
            take("zeros of the other sign", (found == 0) & (expected == 0))
            take("off by one unit in the last place", np.abs(ordinals(found) - ordinals(expected)) == 1)
        elif found.dtype.itemsize == 2:
            step = np.abs(words(found).astype(np.int64) - words(expected).astype(np.int64))
            take("off by one unit in the last place", step == 1)
        take("otherwise", True)
    return kinds


def _example(i: np.intp, operands: Sequence[Array], found: Array, expected: Array, sign: str) -> str:
    values = f" {sign} ".join(hexadecimal(x.reshape(-1)[i]) for x in operands)
    written = values if len(operands) > 1 else f"{sign}({values})"
    return f"{written} = {hexadecimal(found.reshape(-1)[i])}, not {hexadecimal(expected.reshape(-1)[i])}"


def hexadecimal(x: Any) -> str:
    """The bits of one value."""
    value = np.asarray(x)
    return f"0x{int(words(value.reshape(1)).view(_WORDS[value.dtype.itemsize])[0]):0{2 * value.dtype.itemsize}x}"
