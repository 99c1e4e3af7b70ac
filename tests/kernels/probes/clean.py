"""Implementations whose rows are independent by construction: each row or sequence by itself, in fp64."""

from __future__ import annotations

from typing import Any

import torch
from logdiff_kernels.probes.records import Family, Impl, Layout, Sequence
from torch import Tensor

LAYOUTS = ("single", "stacked", "right", "left", "packed", "paged")


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def implementation(family: Family) -> Impl:
    if family.kind == "rows":
        return Impl(rowwise(family), leading=False, gradients=False)
    return Impl(sequencewise(family), layouts=LAYOUTS, gradients=False)


def rowwise(family: Family) -> Any:
    def call(**inputs: Any) -> Any:
        rows = next(x for x in inputs.values() if isinstance(x, Tensor)).shape[0]
        names = set(inputs) - SHARED
        found = []
        for i in range(rows):
            one = {k: wide(x[i : i + 1] if k in names else x) for k, x in inputs.items()}
            result = family.exact(**one)
            found.append(result if isinstance(result, tuple) else (result,))
        return tuple(torch.cat(parts).float() for parts in zip(*found, strict=True))

    return call


SHARED = {"weight", "bias", "cos", "sin", "gate_up", "down", "top_k", "experts"}


def sequencewise(family: Family) -> Any:
    def call(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        widened = {k: wide(x) for k, x in fixed.items()}
        return [
            family.exact([Sequence({k: wide(x) for k, x in one.parts.items()})], layout, widened)[0].float()
            for one in listed
        ]

    return call
