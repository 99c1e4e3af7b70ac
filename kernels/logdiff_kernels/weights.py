"""Checksums of weights on logical names (`logdiff-weights/1`, docs/architecture.md).

The checksum of a tensor is two sums modulo 2^64 over its elements. For the element with row-major logical index i and
canonical bits b (fp32-widened; -0 as +0, every NaN as 0x7fc00000):

    h = mix(((b << 32) xor i) + 0x9e3779b97f4a7c15),    sums += h, mix2(h)

where `mix` is the finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
and mix2(h) = (h xor (h >>> 29)) * 0xd6e8feb86659fd93. Sums do not depend on order, so shards, chunks, strides and
tensor-parallel ranks add up; below 2^32 elements (b, i) -> h is a bijection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

CHUNK = 1 << 15
"""Elements per step on a CPU: the int64 temporaries stay in cache, and torch starts no threads for so few."""

DEVICE_CHUNK = 1 << 22
"""Elements per step on an accelerator, where each step costs some kernel launches."""

_MASK = (1 << 64) - 1
_NARROWER = {torch.float32: ("bfloat16", "float16")}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_A = _signed(0xBF58476D1CE4E5B9)
_MIX_B = _signed(0x94D049BB133111EB)
_MIX_C = _signed(0xD6E8FEB86659FD93)


def _xorshift_(h: torch.Tensor, scratch: torch.Tensor, bits: int) -> torch.Tensor:
    torch.bitwise_right_shift(h, bits, out=scratch)  # arithmetic: the copies of the sign are masked away
    scratch.bitwise_and_((1 << (64 - bits)) - 1)
    return h.bitwise_xor_(scratch)


def canonical_bits(values: torch.Tensor) -> torch.Tensor:
    """Canonical bits as int64, elementwise: fp32-widened for floats of up to 32 bits; else the value's own bits.

    Floats: -0 becomes +0 and every NaN 0x7fc00000. float64 and int64 are folded to 32 bits by xor of their halves
    (float64 that fp32 holds exactly counts as fp32).
    """
    if values.dtype == torch.float64:
        narrow = values.float()
        wide = values.view(torch.int64) if values.is_contiguous() else values.contiguous().view(torch.int64)
        folded = (wide ^ (wide >> 32)) & 0xFFFFFFFF
        exact = (narrow.double() == values) | values.isnan()
        return torch.where(exact, canonical_bits(narrow), folded)
    if values.dtype.is_floating_point:
        wide32 = values.float() + 0.0  # -0 + 0 is +0 in round-to-nearest
        bits = wide32.view(torch.int32).to(torch.int64).bitwise_and_(0xFFFFFFFF)
        return bits.masked_fill_(wide32.isnan(), 0x7FC00000)
    if values.dtype == torch.int64:
        return (values ^ (values >> 32)) & 0xFFFFFFFF
    return values.to(torch.int64).bitwise_and_(0xFFFFFFFF)


def _sums(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    h = bits.bitwise_left_shift_(32).bitwise_xor_(index).add_(_GOLDEN)
    scratch = torch.empty_like(h)
    _xorshift_(h, scratch, 30).mul_(_MIX_A)
    _xorshift_(h, scratch, 27).mul_(_MIX_B)
    _xorshift_(h, scratch, 31)
    first = h.sum()
    _xorshift_(h, scratch, 29).mul_(_MIX_C)
    return torch.stack((first, h.sum()))


@dataclass(slots=True)
class TensorSum:
    """The checksum of one logical tensor, added up shard by shard.

    Args:
        shape: full logical shape.
        dtype: the dtype that the tensor has in memory, as torch names it without `torch.`.
        how: "memory" (the memory that kernels read), "unpacked" (brought back from a packed layout) or "probe".
    """

    shape: tuple[int, ...]
    dtype: str
    how: str = "memory"
    count: int = 0
    sums: list[int] = field(default_factory=lambda: [0, 0])
    narrower: dict[str, list[int]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether as many elements were added as the shape has."""
        total = 1
        for size in self.shape:
            total *= size
        return self.count == total

    def add(self, values: torch.Tensor, index: Sequence[slice] | None = None) -> TensorSum:
        """Add a shard.

        Args:
            values: any device, dtype and strides; its shape is that of `index` applied to the full shape.
            index: one slice per dimension of the full shape (steps allowed, no negative steps); None: all of it.

        Raises:
            ValueError: the shard does not fit the index or the shape.
        """
        ranges = self._ranges(index)
        if tuple(values.shape) != tuple(len(r) for r in ranges):
            raise ValueError(f"shard {tuple(values.shape)} does not fit {index} of {self.shape}")
        names = _NARROWER.get(values.dtype, ())
        values = values.detach()
        totals: dict[str, torch.Tensor] = {}
        for block, positions in _blocks(values, ranges, self.shape):
            for name in ("", *names):
                part = block.to(getattr(torch, name)) if name else block
                found = _sums(canonical_bits(part), positions)
                totals[name] = totals[name].add_(found) if name in totals else found
        for name, total in totals.items():
            target = self.narrower.setdefault(name, [0, 0]) if name else self.sums
            for i, value in enumerate(total.tolist()):
                target[i] = (target[i] + value) & _MASK
        self.count += values.numel()
        return self

    def merge(self, other: TensorSum) -> TensorSum:
        """Add the shards that another rank added. Raises `ValueError` when shape or dtype differ."""
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            raise ValueError(f"{self.dtype}{self.shape} and {other.dtype}{other.shape} are not one tensor")
        self.count += other.count
        self.sums = [(a + b) & _MASK for a, b in zip(self.sums, other.sums, strict=True)]
        for name, sums in other.narrower.items():
            mine = self.narrower.get(name, [0, 0])
            self.narrower[name] = [(a + b) & _MASK for a, b in zip(mine, sums, strict=True)]
        if other.how != self.how:
            self.how = "unpacked" if "unpacked" in (self.how, other.how) else self.how
        return self

    def as_dict(self) -> dict[str, Any]:
        """The entry of `logdiff-weights/1`."""
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "sum": _hex(self.sums),
            "as": {name: _hex(sums) for name, sums in sorted(self.narrower.items())},
            "how": self.how,
        }

    def state(self) -> dict[str, Any]:
        """Plain values from which `from_state` makes this sum again, for another rank or process."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "how": self.how,
            "count": self.count,
            "sums": list(self.sums),
            "narrower": {k: list(v) for k, v in self.narrower.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TensorSum:
        """The inverse of `state`."""
        return cls(**{**state, "shape": tuple(state["shape"])})

    def _ranges(self, index: Sequence[slice] | None) -> list[range]:
        slices = [slice(None)] * len(self.shape) if index is None else list(index)
        if len(slices) != len(self.shape):
            raise ValueError(f"{len(slices)} slices for shape {self.shape}")
        return [range(size)[part] for size, part in zip(self.shape, slices, strict=True)]


def tensor_sum(values: torch.Tensor, *, how: str = "memory") -> TensorSum:
    """The checksum of a whole tensor."""
    return TensorSum(tuple(values.shape), dtype_name(values.dtype), how).add(values)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` of `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _hex(sums: list[int]) -> str:
    return "".join(f"{value:016x}" for value in sums)


def _blocks(
    values: torch.Tensor, ranges: list[range], shape: tuple[int, ...]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Blocks of a bounded number of elements, each with its row-major logical indices (int64, same shape)."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    device = values.device
    if not ranges:
        yield values.reshape(1), torch.zeros(1, dtype=torch.int64, device=device)
        return
    axes = [
        torch.arange(r.start, r.stop, r.step, dtype=torch.int64, device=device).mul_(s)
        for r, s in zip(ranges, strides, strict=True)
    ]
    yield from _split(values, axes, torch.zeros((), dtype=torch.int64, device=device))


def _split(
    values: torch.Tensor, axes: list[torch.Tensor], base: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if values.numel() == 0:
        return
    chunk = CHUNK if values.device.type == "cpu" else DEVICE_CHUNK
    inner = values[0].numel()
    if len(axes) > 1 and inner > chunk:
        for i in range(len(values)):
            yield from _split(values[i], axes[1:], base + axes[0][i])
        return
    step = max(1, chunk // inner)
    tail = torch.zeros((), dtype=torch.int64, device=values.device)
    for axis in axes[1:]:
        tail = tail.unsqueeze(-1) + axis
    for start in range(0, len(values), step):
        head = (base + axes[0][start : start + step]).reshape(-1, *[1] * (len(axes) - 1))
        yield values[start : start + step], head + tail


@dataclass(slots=True)
class WeightsReport:
    """One side's `logdiff-weights/1`.

    `tied` maps a name to the name whose memory it shares; `not_covered` lists {"name", "why"}; `quantization` is the
    method's name; `adapters` lists adapters that change the weights (LoRA and the like).
    """

    tensors: dict[str, TensorSum] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    not_covered: list[dict[str, str]] = field(default_factory=list)
    quantization: str | None = None
    adapters: list[Any] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The JSON document. A tensor of which not every element was seen goes to `not_covered`."""
        missing = [
            {"name": name, "why": f"{tensor.count} elements seen for shape {list(tensor.shape)}"}
            for name, tensor in self.tensors.items()
            if not tensor.complete
        ]
        return {
            "format": "logdiff-weights/1",
            "tensors": {name: t.as_dict() for name, t in sorted(self.tensors.items()) if t.complete},
            "tied": dict(sorted(self.tied.items())),
            "not_covered": self.not_covered + missing,
            "quantization": self.quantization,
            "adapters": list(self.adapters),
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON document atomically. Returns the path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.as_dict(), indent=1), encoding="utf-8")
        temporary.replace(target)
        return target
