"""Every row of the pairwise design; `make pairwise` runs it on two cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from tests.kernels.ascendc import covering
from tests.kernels.ascendc.covering_laws import check


def _rows() -> Iterator[ParameterSet]:
    for row in covering.design():
        slow = row.length == covering.EDGE and covering.quadratic(row.case)
        yield pytest.param(row, marks=pytest.mark.slow(seconds=15 if slow else 0.4, alone=True), id=str(row))


@pytest.mark.parametrize("row", list(_rows()))
def test_pairwise(row: covering.Row) -> None:
    check(row)
