"""How a row of the covering design is tried: launches in the twin whose results have to agree."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from logdiff_kernels.ascendc import cases
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

from tests.kernels.ascendc.covering import CASES, CORES, Row
from tests.kernels.ascendc.fp64_attention import ATTENTION
from tests.kernels.ascendc.fp64_bounds import PRODUCTS, Expected, outside
from tests.kernels.ascendc.row_independence import function_name, moved

BOUNDS = {**PRODUCTS, **ATTENTION}
"""fp64 bounds of every function that uses Mmad."""


class Probe(TwinLauncher):
    """Notes which kernels it has launched; with `stale` a workspace comes full of NaN."""

    def __init__(self, arch: int, cores: int, seed: int, mmad: Mmad, *, stale: bool = False) -> None:
        super().__init__(arch, cores, seed, mmad)
        self.launched: set[str] = set()
        self.stale = stale

    def launch(self, kernel: str, tensors: Sequence[Tensor | None], plan: ctypes.Structure, blocks: int) -> None:
        self.launched.add(kernel)
        super().launch(kernel, tensors, plan, blocks)

    def workspace(self, size: int) -> Tensor:
        found = super().workspace(size)
        return found.fill_(0xFF) if self.stale else found


def check(row: Row) -> set[str]:
    """Try a row: the kernels that it has launched.

    Raises:
        AssertionError: its law doesn't hold.
        TwinError: a kernel did what an NPU does not allow.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    try:
        found, launched = _first(row.case, row.arch, row.cores, row.mmad, row.n, row.dtype)
        _LAWS[row.law](row, found)
    finally:
        torch.set_num_threads(threads)
    return set(launched)


@lru_cache(maxsize=24)
def _first(
    case: str, arch: int, cores: int, mmad: Mmad, n: int, dtype: torch.dtype
) -> tuple[list[Tensor], frozenset[str]]:
    """Results that the laws compare with, and the kernels launched for them."""
    probe = Probe(arch, cores, cores + n, mmad)
    return CASES[case].on_launcher(probe, _arguments(case, n, dtype)), frozenset(probe.launched)


@lru_cache(maxsize=4)
def _on_cpu(case: str, n: int, dtype: torch.dtype) -> list[Tensor]:
    return CASES[case].on_cpu(_arguments(case, n, dtype))


@lru_cache(maxsize=4)
def _expected(case: str, n: int, dtype: torch.dtype) -> list[Expected]:
    return list(BOUNDS[function_name(CASES[case])](*_arguments(case, n, dtype)))


def _arguments(case: str, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Fresh for each call, as some functions write into their arguments."""
    return CASES[case].arguments(n, dtype, n)


def _same(row: Row, got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    assert want, f"{row}: no results to compare"
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert cases.same_bits(x, y), f"{row}: result {i}: {int((x != y).sum())} of {x.numel()} differ"


def _bits(row: Row, found: list[Tensor]) -> None:
    _same(row, found, _on_cpu(row.case, row.n, row.dtype))


def _bounds(row: Row, found: list[Tensor]) -> None:
    parts = _expected(row.case, row.n, row.dtype)
    assert parts, f"{row}: nothing to compare"
    for part in parts:
        count = outside(found, part)
        assert count == 0, f"{row}: result {part.result}: {count} of {part.value.numel()} outside of the bound"


def _cores(row: Row, found: list[Tensor]) -> None:
    other = CORES[(CORES.index(row.cores) + 1) % len(CORES)]
    _same(row, _first(row.case, row.arch, other, row.mmad, row.n, row.dtype)[0], found)


def _rows(row: Row, found: list[Tensor]) -> None:
    case, seed = CASES[row.case], row.cores + row.n
    for other in moved(case, _arguments(row.case, row.n, row.dtype), seed):
        got = case.on_launcher(Probe(row.arch, row.cores, seed + 1, row.mmad), other.arguments)
        compared = [i for i in (*other.results, *other.same) if i < len(found)]
        assert compared, f"{row}: no results to compare"
        for i in compared:
            x, y = got[i], found[i]
            if i in other.results:
                dim, new, old = other.results[i]
                x, y = x.index_select(dim, new), y.index_select(dim, old)
            assert cases.same_bits(x, y), f"{row}: result {i}: {int((x != y).sum())} of {x.numel()} differ"


def _again(row: Row, found: list[Tensor]) -> None:
    probe = Probe(row.arch, row.cores, row.cores + row.n + 7, row.mmad, stale=True)
    _same(row, CASES[row.case].on_launcher(probe, _arguments(row.case, row.n, row.dtype)), found)


def _turns(row: Row, found: list[Tensor]) -> None:
    probe = Probe(row.arch, row.cores, row.cores + row.n, row.mmad)
    probe.options = replace(probe.options, switch_every=1)
    _same(row, CASES[row.case].on_launcher(probe, _arguments(row.case, row.n, row.dtype)), found)


_LAWS = {"bits": _bits, "bounds": _bounds, "cores": _cores, "rows": _rows, "again": _again, "turns": _turns}
