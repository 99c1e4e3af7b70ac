"""The covering design, its laws, and of its rows those of the default suite: every kernel at 4095, 4096 and 4097.

All rows: `test_covering_pairs.py` (`make pairwise`). The whole product: `test_covering_product.py`.
"""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import pytest
import torch
from logdiff_kernels.ascendc import cases
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

from tests.kernels.ascendc import covering, pairwise
from tests.kernels.ascendc.covering import CASES, FACTORS, Row
from tests.kernels.ascendc.covering_laws import BOUNDS, Probe, check
from tests.kernels.ascendc.fp64_bounds import outside
from tests.kernels.ascendc.row_independence import function_name, known

# --- the design


def test_every_pair_is_in_the_design_but_those_that_no_case_has() -> None:
    found = set()
    for row in covering.design():
        assert covering.allowed({name: getattr(row, name) for name in FACTORS})
        assert row.n in covering.LENGTHS[row.length]
        found |= {(one, getattr(row, one), other, getattr(row, other)) for one, other in combinations(FACTORS, 2)}
    pairs = {
        (one, a, other, b) for one, other in combinations(FACTORS, 2) for a in FACTORS[one] for b in FACTORS[other]
    }
    vectors = {case.name for case in cases.CASES if all(kernels()[name].kind == "vector" for name in case.kernels)}
    none = {("case", name, "law", "bounds") for name in vectors}
    none |= {("case", c.name, "dtype", d) for c in cases.CASES for d in cases.DTYPES if d not in c.dtypes}
    assert found == pairs - none


def test_the_design_is_small_and_always_the_same() -> None:
    rows = covering.design()
    covering.design.cache_clear()
    assert covering.design() == rows
    assert len(set(rows)) == len(rows)
    whole = math.prod(len(values) for values in FACTORS.values())
    assert len(rows) < whole / 100


def test_a_design_holds_every_pair_that_its_rules_leave() -> None:
    factors = {"a": range(4), "b": range(3), "c": range(3), "d": "xyz"}

    def allowed(row: pairwise.Values) -> bool:
        if row.get("a") == 0 and row.get("b") == 1:
            return False
        # x needs c = 0, and c = 0 rules out b = 2: the pair (x, b = 2) is in no row
        if row.get("d") == "x" and row.get("c", 0) != 0:
            return False
        return not (row.get("c") == 0 and row.get("b") == 2)

    rows = pairwise.design(factors, allowed)
    every = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    possible = {pair for row in every if allowed(row) for pair in pairwise.pairs(row, list(factors))}
    assert {pair for row in rows for pair in pairwise.pairs(row, list(factors))} == possible
    assert all(allowed(row) for row in rows)
    assert len(rows) < len(every) / 2


def test_every_kernel_has_a_case_and_every_case_its_rows_and_bounds() -> None:
    assert {name for case in cases.CASES for name in case.kernels} == set(covering.KERNELS)
    for case in cases.CASES:
        assert known(case), f"{case.name}: say in row_independence.py which rows {function_name(case)} has"
        if covering.uses_mmad(case):
            assert function_name(case) in BOUNDS, f"{case.name}: {function_name(case)} has no fp64 bound"


# --- the laws notice what they are for


@pytest.mark.parametrize("name", ["linear", "grouped_weight_grad", "attention_decode", "attention_backward_chunked"])
def test_a_bound_is_no_wider_than_a_term(name: str) -> None:
    """Inputs without their last row of k, or their last key, lie outside."""
    case, n, dtype = CASES[name], 65, torch.bfloat16
    right, wrong = case.arguments(n, dtype, 1), case.arguments(n, dtype, 1)
    parts = list(BOUNDS[function_name(case)](*right))
    assert sum(outside(case.on_cpu(right), part) for part in parts) == 0
    if name == "linear":
        wrong[0][:, -1] = 0
    elif name == "grouped_weight_grad":
        wrong[0][-1] = 0
    elif name == "attention_decode":
        wrong[2][:] = torch.where(wrong[2].isnan(), wrong[2], 0)
    else:
        wrong[3][n - 1] = 0
    assert sum(outside(case.on_cpu(wrong), part) for part in parts) > 0


class _Planted(cases.Case):
    """rms_norm whose results depend on what they must not, and nothing else."""

    def on_launcher(self, launcher: Launcher, arguments: tuple[Any, ...]) -> list[Tensor]:
        x = arguments[0].float()
        assert isinstance(launcher, Probe)
        depends = {
            "bits": x * 0 + 1,
            "cores": x + launcher.cores,
            "rows": x + x[:1],
            "again": x + launcher.stale,
            "turns": x + launcher.options.switch_every,
        }
        return [depends[self.name]]

    def on_cpu(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        return [arguments[0].float()]


@pytest.mark.parametrize("law", ["bits", "cores", "rows", "again", "turns"])
def test_a_law_notices_what_breaks_it(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, law, _Planted(law, "norm", "rms_norm", CASES["rms_norm"].make, ()))
    row = Row(law, law, 2201, 20, Mmad.ASCENDING, "tail", torch.float32, 17)
    with pytest.raises(AssertionError, match="result 0"):
        check(row)


# --- the edge


@pytest.mark.parametrize("kernel", covering.KERNELS)
def test_every_kernel_at_the_edge_of_4096(kernel: str) -> None:
    rows = [row for row in covering.edge_rows() if row.case == covering.edge_case(kernel).name]
    assert {row.n for row in rows} == {4095, 4096, 4097}
    assert kernel in set().union(*map(check, rows))
