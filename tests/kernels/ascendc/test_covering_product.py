"""The product of cases, laws, architectures, cores, Mmad models and length classes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from _pytest.mark import ParameterSet
from logdiff_kernels.ascendc import cases
from logdiff_kernels.twin.library import Mmad

from tests.kernels.ascendc import covering
from tests.kernels.ascendc.covering_laws import check


def _product() -> Iterator[ParameterSet]:
    for case, arch, mmad in product(cases.CASES, covering.ARCHS, Mmad):
        backward = case.name.startswith("attention_backward")
        seconds = (250 if backward else 80) if covering.quadratic(case.name) else 5
        mark = pytest.mark.slow(seconds=seconds, alone=True)
        yield pytest.param(case, arch, mmad, marks=mark, id=f"{case.name}-{arch}-{mmad.name.lower()}")


@pytest.mark.parametrize(("case", "arch", "mmad"), list(_product()))
def test_full_product(case: cases.Case, arch: int, mmad: Mmad) -> None:
    for row in covering.full(case, arch, mmad):
        check(row)
