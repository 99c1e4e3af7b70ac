"""The self-test of NPU kernels: silent on a clean twin, and the right check names each planted deviation."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.ascendc import cases, probes
from logdiff_kernels.ascendc.probes import ReduceOp, VectorOp
from logdiff_kernels.build import selftest
from logdiff_kernels.build.selftest import bits, elementwise, matrix, models, operators, orders, phases, reductions
from logdiff_kernels.build.selftest.section import Scope, Section
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

ARCHS = (2201, 3510)

Tensors = Sequence[Tensor | None]
Deviation = Callable[[str, Tensors, Any], None]


class Planted(TwinLauncher):
    """A twin that isn't right: `before` may change what a kernel is given, `after` what it gives."""

    def __init__(self, *, before: Deviation | None = None, after: Deviation | None = None, **options: Any) -> None:
        super().__init__(options.pop("arch", 2201), **options)
        self.before, self.after = before, after

    def launch(self, kernel: str, tensors: Tensors, plan: ctypes.Structure, blocks: int) -> None:
        if self.before is not None:
            tensors = [None if x is None else x.clone() if x.is_contiguous() else x for x in tensors[:-1]] + [
                tensors[-1]
            ]
            self.before(kernel, tensors, plan)
        super().launch(kernel, tensors, plan, blocks)
        if self.after is not None:
            self.after(kernel, tensors, plan)


def on(kernel: str, change: Callable[[Tensors, Any], None], **fields: int) -> Deviation:
    """`change` after (or before) launches of `kernel` whose plan has these fields."""

    def planted(launched: str, tensors: Tensors, plan: Any) -> None:
        if launched == kernel and all(getattr(plan, name) == value for name, value in fields.items()):
            change(tensors, plan)

    return planted


def next_value(x: Tensor, where: Any = slice(None)) -> None:
    """Values of a contiguous tensor off by a unit in the last place, where they are finite and not 0."""
    view = x.view(-1)[where] if isinstance(where, slice) else x[where]
    kind = {4: torch.int32, 2: torch.int16}[x.element_size()]
    moved = (view.contiguous().view(kind) + 1).view(x.dtype)
    changed = torch.where(view.isfinite() & (view != 0) & moved.isfinite(), moved, view)
    if isinstance(where, slice):
        x.view(-1)[where] = changed
    else:
        x[where] = changed


def broken(section: Section, *prefixes: str) -> dict[tuple[str, str], str]:
    """Checks of kernels with these names that fail, by kernel and law, with what they say."""
    chosen = [check for check in section.checks if check.kernel.startswith(prefixes or ("",))]
    assert chosen
    said = {(check.kernel, check.law): check.run() for check in chosen}
    return {name: words for name, words in said.items() if words}


# A twin without a deviation


@pytest.mark.parametrize("arch", ARCHS)
def test_clean_twin_has_no_failure_and_no_note(arch: int) -> None:
    launcher = TwinLauncher(arch)
    for part in (elementwise, reductions, matrix):
        section = part.section(launcher, Scope.QUICK)
        assert broken(section) == {}
        assert section.notes == []
        assert set(section.facts) == {check.kernel for check in section.checks} - {
            "exp/exact points",
            "ln/exact points",
        }


@pytest.mark.slow(seconds=90)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("exact_exp", [True, False])
def test_whole_report_of_a_clean_twin(arch: int, exact_exp: bool) -> None:
    found = selftest.run(TwinLauncher(arch, exact_exp=exact_exp))
    assert [law for law in found["laws"] if not law["ok"]] == []
    assert found["notes"] == []
    assert sum(part["checks"] for part in found["sections"]) == len(found["laws"])


@pytest.mark.slow(seconds=10)
def test_every_scope_has_all_that_the_smaller_one_has() -> None:
    launcher = TwinLauncher()
    names = [
        {check.kernel for part in selftest.sections(launcher, scope) for check in part.checks}
        for scope in (Scope.QUICK, Scope.DEFAULT, Scope.FULL)
    ]
    assert names[0] < names[1] < names[2]


def test_reports_of_two_runs_are_the_same() -> None:
    def fingerprint(seed: int) -> str:
        section = reductions.section(TwinLauncher(seed=seed, cores=3 + seed), Scope.QUICK)
        assert broken(section) == {}
        return section.fingerprint

    assert fingerprint(0) == fingerprint(1)


# Bit tables


def test_lane_whose_exp_is_off_by_a_unit_is_named() -> None:
    def one_lane(tensors: Tensors, plan: Any) -> None:
        next_value(tensors[-1], slice(5, None, 64))

    section = elementwise.section(Planted(after=on("probe_vector", one_lane, op=VectorOp.EXP)), Scope.QUICK)
    found = broken(section, "Exp/")
    assert {law for _, law in found} == {"any lane", "any neighbours"}  # a shuffle moves lanes too
    named = [said for (_, law), said in found.items() if law == "any lane"]
    assert len(named) == 3
    assert all("most in lanes 4, 5" in said or "most in lanes 5" in said for said in named)


def test_results_that_depend_on_their_repeat_or_tile_are_named() -> None:
    def third_repeat(tensors: Tensors, plan: Any) -> None:
        next_value(tensors[-1].view(-1, 32, 64), (slice(None), 2))

    def second_tile(tensors: Tensors, plan: Any) -> None:
        next_value(tensors[-1].view(-1, probes.TILE), (1,))

    for change, law in ((third_repeat, "any repeat"), (second_tile, "any tile and core")):
        section = elementwise.section(Planted(after=on("probe_vector", change, op=VectorOp.LN)), Scope.QUICK)
        assert {name for _, name in broken(section, "Ln/")} == {law, "any neighbours"}


def test_results_that_depend_on_the_lane_beside_them_are_named() -> None:
    """A large operand one lane further on: lanes, repeats and tiles move it along, so only a shuffle shows it."""

    def beside(tensors: Tensors, plan: Any) -> None:
        x, out = tensors[0], tensors[-1]
        assert x is not None
        large = (x.view(-1, 64) > 1e30).roll(1, 1).view(-1)
        next_value(out, (large,))

    section = elementwise.section(Planted(after=on("probe_vector", beside, op=VectorOp.LN)), Scope.QUICK)
    assert {law for _, law in broken(section, "Ln/float32")} == {"any neighbours"}


def test_subnormal_results_that_become_zero_are_named_for_every_instruction() -> None:
    def flush(tensors: Tensors, plan: Any) -> None:
        out = tensors[-1]
        if out.dtype == torch.float32:
            out[(out.abs() < 2.0**-126) & out.isfinite()] = 0.0

    section = elementwise.section(Planted(after=on("probe_vector", flush)), Scope.QUICK)
    found = broken(section, "Add/", "Sub/", "Mul/", "Div/", "Muls 1/", "Cast bf16")
    assert {kernel.split("/")[0] for kernel, _ in found} == {"Add", "Sub", "Mul", "Div", "Muls 1", "Cast bf16 to fp32"}
    assert {law for _, law in found} == {"bits of the contract"}
    assert all("subnormal results that became 0" in said for said in found.values())
    assert section.facts["Mul/float32 pairs"]["not_as_defined"] > 100


def test_subnormal_operands_that_are_read_as_zero_are_named() -> None:
    def flush(tensors: Tensors, plan: Any) -> None:
        for x in tensors[:2]:
            assert x is not None
            x[(x.abs() < 2.0**-126)] *= 0.0

    section = elementwise.section(Planted(before=on("probe_vector", flush, op=VectorOp.MUL)), Scope.QUICK)
    found = broken(section, "Mul/")
    assert list(found) == [("Mul/float32 pairs", "bits of the contract")]
    assert "subnormal operands read as 0" in found["Mul/float32 pairs", "bits of the contract"]


def test_cast_that_drops_bits_instead_of_rounding_is_named() -> None:
    def cut(tensors: Tensors, plan: Any) -> None:
        source, out = tensors[0], tensors[-1]
        assert source is not None
        out.view(torch.int16)[:] = (source.view(torch.int32) >> 16).to(torch.int16)

    section = elementwise.section(Planted(after=on("probe_vector", cut, op=VectorOp.TO_BFLOAT16)), Scope.QUICK)
    found = broken(section, "Cast fp32 to bf16")
    assert {law for _, law in found} == {"bits of the contract"}
    assert all("off by one unit in the last place" in said for said in found.values())


def test_run_that_differs_from_the_one_before_is_named() -> None:
    runs = []

    def second_run(tensors: Tensors, plan: Any) -> None:
        runs.append(plan)
        if len(runs) == 2:
            next_value(tensors[-1], slice(3000, 3100))

    section = elementwise.section(Planted(after=on("probe_vector", second_run, op=VectorOp.MUL)), Scope.QUICK)
    ((name, said),) = broken(section, "Mul/").items()
    assert name == ("Mul/float32 pairs", "run to run")
    assert "results differ, first 0x" in said


def test_other_exp_ln_div_and_sqrt_are_notes_and_measured_where_the_build_takes_the_chips() -> None:
    launcher = TwinLauncher(2201, exact_exp=False, perturb=True)
    section = elementwise.section(launcher, Scope.QUICK)
    assert broken(section, "Exp/", "Ln/", "Sqrt/", "Div", "exp/", "ln/") == {}
    for name in ("Div/float32 pairs", "Sqrt/float32 values"):
        (note,) = [note for note in section.notes if note.startswith(f"{name} is not IEEE's")]
        assert "off by one unit in the last place" in note
    assert 0.5 < section.facts["Exp/float32 values"]["max_ulp"] <= 1.0
    clean = elementwise.section(TwinLauncher(2201), Scope.QUICK)
    assert broken(clean, "Exp/") == {}
    assert clean.facts["Exp/float32 values"]["max_ulp"] <= 0.5
    assert clean.facts["Exp/float32 values"]["sha256"] != section.facts["Exp/float32 values"]["sha256"]


def test_build_that_promises_the_cpus_bits_fails_where_div_is_not_ieee() -> None:
    section = elementwise.section(TwinLauncher(2201, exact_exp=True, perturb=True), Scope.QUICK)
    assert {law for _, law in broken(section, "Div", "Sqrt/")} == {"bits of the contract"}
    assert broken(section, "exp of the build", "ln of the build").keys() <= {
        (kernel, "bits of the contract") for kernel in section.facts if kernel.startswith("ln of the build")
    }  # ln1 divides


def test_exp_of_zero_has_to_be_one() -> None:
    def below(tensors: Tensors, plan: Any) -> None:
        out = tensors[-1]
        out[out == 1] = 1 - 2.0**-24

    launcher = Planted(after=on("probe_vector", below, op=VectorOp.EXP1), exact_exp=False)
    (said,) = broken(elementwise.section(launcher, Scope.QUICK), "exp/").values()
    assert "0 gives 0.99999994" in said
    assert "LOGDIFF_EXACT_EXP=1" in said


# Reductions


def test_orders_of_the_twins_reductions_are_those_that_are_documented() -> None:
    """ReduceSum.md: 2201 adds the repeats' trees in order; 3510 up to 1024 bytes lane by lane, then as trees."""
    found = {}
    for arch in ARCHS:
        section = reductions.section(TwinLauncher(arch), Scope.QUICK)
        assert broken(section, "Whole", "Block", "Reduce") == {}
        found[arch] = {name: facts["order"] for name, facts in section.facts.items() if "order" in facts}
    for arch in ARCHS:
        assert found[arch]["WholeReduceSum"] == found[arch]["BlockReduceSum"] == "pairs of neighbours"
    assert found[2201]["ReduceSum by count of 320"] == "pairs of neighbours within 64, then in order"
    assert found[3510]["ReduceSum by count of 192"] == "64 lanes in order, then pairs of neighbours"
    assert found[3510]["ReduceSum by count of 320"] == "pairs of neighbours"


@pytest.mark.parametrize("name", ["ascending", "halves"])
def test_another_order_of_a_chips_own_reduction_is_a_fact(name: str) -> None:
    def other(tensors: Tensors, plan: Any) -> None:
        x, out = tensors
        assert x is not None
        assert out is not None
        out[:, 0] = torch.from_numpy(orders.ORDERS[name](x.numpy()))

    launcher = Planted(after=on("probe_reduce", other, op=ReduceOp.WHOLE_REDUCE_SUM))
    section = reductions.section(launcher, Scope.QUICK)
    assert broken(section, "WholeReduceSum") == {}
    assert section.facts["WholeReduceSum"]["order"] == name


def test_r64_in_another_order_fails_and_the_order_is_named() -> None:
    def other(tensors: Tensors, plan: Any) -> None:
        x, out = tensors
        assert x is not None
        assert out is not None
        out[:, 0] = torch.from_numpy(orders.lanes_first(x.numpy()))

    launcher = Planted(after=on("probe_reduce", other, op=ReduceOp.R64))
    found = broken(reductions.section(launcher, Scope.QUICK), "R64", "T(8)", "PairReduceSum")
    assert set(found) == {("R64 of 64", "order of the contract"), ("R64 of 576", "order of the contract")}
    assert "as if added 64 lanes in order, then pairs of neighbours" in found["R64 of 576", "order of the contract"]


def test_pair_reduce_sum_that_flushes_fails() -> None:
    def flush(tensors: Tensors, plan: Any) -> None:
        out = tensors[-1]
        out[out.abs() < 2.0**-126] = 0.0

    launcher = Planted(after=on("probe_reduce", flush, op=ReduceOp.PAIR_REDUCE_SUM))
    ((name, said),) = broken(reductions.section(launcher, Scope.QUICK), "PairReduceSum").items()
    assert name == ("PairReduceSum", "one IEEE addition")
    assert "subnormal results that became 0" in said


def test_reduction_whose_sum_depends_on_the_row_fails() -> None:
    def first_row(tensors: Tensors, plan: Any) -> None:
        next_value(tensors[-1], (0, slice(0, 1)))

    launcher = Planted(after=on("probe_reduce", first_row, op=ReduceOp.WHOLE_REDUCE_SUM))
    (said,) = broken(reductions.section(launcher, Scope.QUICK), "WholeReduceSum").values()
    assert "with the row" in said


# Mmad


@pytest.mark.parametrize("model", Mmad)
def test_model_of_the_twin_is_recognised(model: Mmad) -> None:
    section = matrix.section(TwinLauncher(3510, mmad=model), Scope.QUICK)
    assert broken(section, "Mmad/bfloat16", "Mmad/float32") == {}
    for dtype in ("bfloat16", "float32"):
        facts = section.facts[f"Mmad/{dtype}"]
        assert facts["order"] == model.name.lower()
        assert facts["rounding"] == "nearest even"
        kept = facts["bits_kept"]["2^p at 0, 1 at 1, -2^p at 2"]
        assert kept == {Mmad.FP64: 52}.get(model, 23)
    (tree,) = section.facts["Mmad/bfloat16"]["trees"].values()
    assert tree.startswith(
        {Mmad.ASCENDING: "(0 > .. > 40", Mmad.PAIRWISE16: "((((((((0 ((((1 2)"}.get(model, "(0 .. 40")
    )


def _descending(x: Any, y: Any, total: Any) -> Any:
    for k in reversed(range(x.shape[-1])):
        total = models.fma(x[..., k], y[..., k], total)
    return total


def _replaced(model: models.Model) -> Callable[[Tensors, Any], None]:
    """Mmad as `model` has it."""

    def change(tensors: Tensors, plan: Any) -> None:
        a, b, c = tensors
        assert a is not None
        assert b is not None
        assert c is not None
        x, y = a.float().numpy(), b.float().numpy()
        c[:] = torch.from_numpy(models.multiply(model, x[:, :, None], y[:, None], plan.steps))

    return change


def test_order_that_nobody_knows_is_unknown_and_its_tree_is_shown() -> None:
    launcher = Planted(after=on("probe_mmad", _replaced(_descending), dtype=0))
    section = matrix.section(launcher, Scope.QUICK)
    (order,) = [check for check in section.checks if check.kernel == "Mmad/float32" and "order" in check.law]
    assert order.run() == ""
    facts = section.facts["Mmad/float32"]
    assert facts["order"] == "unknown"
    (tree,) = facts["trees"].values()
    assert tree.startswith("(0 > 64 > 56 > 48 > 40 > 39")
    assert any("like no known model" in note for note in section.notes)


def test_product_whose_order_changes_with_m_is_noted_and_breaks_no_law() -> None:
    def other(tensors: Tensors, plan: Any) -> None:
        if plan.m < 64:
            _replaced(models.pairwise)(tensors, plan)

    section = matrix.section(Planted(after=on("probe_mmad", other)), Scope.QUICK)
    assert broken(section, "Mmad/bfloat16") == {}
    assert section.facts["Mmad/bfloat16"]["m_that_change_results"] == [2, 16, 33]
    (note,) = section.notes
    assert "results depend on m: at m = 2, 16, 33 they differ" in note


def test_product_that_changes_with_n_is_noted() -> None:
    def other(tensors: Tensors, plan: Any) -> None:
        if plan.n == 48:
            next_value(tensors[-1], slice(0, 1))

    section = matrix.section(Planted(after=on("probe_mmad", other)), Scope.QUICK)
    assert broken(section, "Mmad/float16") == {}
    assert section.facts["Mmad/float16"]["n_that_change_results"] == [48]


def _nan_spreads(tensors: Tensors, plan: Any) -> None:
    a, _, c = tensors
    assert a is not None
    assert c is not None
    c[a.isnan().any(2).roll(1, 1)] = torch.nan


def _row_5(tensors: Tensors, plan: Any) -> None:
    next_value(tensors[-1], (slice(None), slice(5, 6)))


def _column_7(tensors: Tensors, plan: Any) -> None:
    next_value(tensors[-1], (slice(None), slice(None), slice(7, 8)))


def _few_rows(tensors: Tensors, plan: Any) -> None:
    a, _, c = tensors
    assert a is not None
    assert c is not None
    if plan.m == 128 and bool((a[:, 100] == 0).all()) and bool((a[:, 16] != 0).any()):
        next_value(c)


def _other_half(tensors: Tensors, plan: Any) -> None:
    if plan.buffer == 1:
        next_value(tensors[-1], slice(9, 10))


def _fourth_tile(tensors: Tensors, plan: Any) -> None:
    if plan.tiles > 3 and plan.n == plan.m == 128:
        next_value(tensors[-1], (3,))


@pytest.mark.parametrize(
    ("change", "law", "words"),
    [
        (_nan_spreads, "any neighbours of a row", "among NaN"),
        (_row_5, "any place of a row", "first row"),
        (_column_7, "any place of a column", "first"),
        (_few_rows, "any number of rows that exist", "rows and +0"),
        (_other_half, "any buffer", "second half"),
        (_fourth_tile, "any core and any tile", "on blocks [3]"),
    ],
)
def test_product_that_depends_on_what_it_may_not_is_named(change: Any, law: str, words: str) -> None:
    section = matrix.section(Planted(after=on("probe_mmad", change, dtype=1, out_dtype=0), cores=5), Scope.QUICK)
    found = {name: said for (_, name), said in broken(section, "Mmad/bfloat16").items()}
    assert law in found
    assert words in found[law]
    assert set(found) <= {law, "any neighbours of a row"}


def test_hf32_that_is_on_is_named() -> None:
    def cut(tensors: Tensors, plan: Any) -> None:
        for x in tensors[:2]:
            assert x is not None
            x.view(torch.int32).bitwise_and_(~0xFFF)

    section = matrix.section(Planted(before=on("probe_mmad", cut, dtype=0)), Scope.QUICK)
    found = broken(section, "Mmad/float32")
    assert [law for _, law in found] == ["operands keep all 24 bits (HF32 is off)"]


def test_fixpipe_that_cuts_off_instead_of_rounding_is_named() -> None:
    def cut(tensors: Tensors, plan: Any) -> None:
        a, b, c = tensors
        assert a is not None
        assert b is not None
        assert c is not None
        exact = a.float() @ b.float().mT
        c.view(torch.int16)[:] = (exact.view(torch.int32) >> 16).to(torch.int16)

    section = matrix.section(Planted(after=on("probe_mmad", cut, out_dtype=1)), Scope.QUICK)
    found = broken(section, "Mmad/bfloat16")
    assert [law for _, law in found] == ["results are rounded to nearest even on their way out"]


def test_accumulator_that_flushes_subnormals_is_noted() -> None:
    def flush(tensors: Tensors, plan: Any) -> None:
        c = tensors[-1]
        c[c.abs() < 2.0**-126] = 0.0

    section = matrix.section(Planted(after=on("probe_mmad", flush, out_dtype=0)), Scope.QUICK)
    assert broken(section, "Mmad/bfloat16") == {}
    assert "Mmad/bfloat16: not as IEEE has it: subnormal product, subnormal sum" in section.notes
    assert section.facts["Mmad/bfloat16"]["special"]["subnormal product"] == "0x00000000, IEEE 0x00000200"


def test_ways_of_rounding_are_told_apart() -> None:
    """Expected sums from exact arithmetic: a fp32 between 1 and 2 or their negatives has a unit of 2^-23."""
    from fractions import Fraction
    from math import ceil, floor

    unit = Fraction(1, 2**23)
    ways: dict[str, Callable[[Fraction], int]] = {
        "nearest even": lambda x: round(x),
        "nearest, ties away from 0": lambda x: floor(x + Fraction(1, 2)) if x > 0 else ceil(x - Fraction(1, 2)),
        "towards 0": lambda x: floor(x) if x > 0 else ceil(x),
        "up": lambda x: ceil(x),
        "down": lambda x: floor(x),
    }
    x, y = matrix._rounding_factors()
    exact = [
        sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(*row, strict=True))
        for row in zip(x, y, strict=True)
    ]
    for said, way in ways.items():
        sums = np.array([float(way(total / unit) * unit) for total in exact], np.float32)
        assert matrix._rounding(sums) == said


# Orders


def _random_tree(leaves: list[int], generator: np.random.Generator) -> Any:
    if len(leaves) == 1:
        return leaves[0]
    cut = int(generator.integers(1, len(leaves)))
    shuffled = list(generator.permutation(leaves))
    return (
        _random_tree([int(x) for x in shuffled[:cut]], generator),
        _random_tree([int(x) for x in shuffled[cut:]], generator),
    )


def _summed(tree: Any, x: Any) -> Any:
    if isinstance(tree, int):
        return x[:, tree]
    first, *rest = tree
    total = _summed(first, x)
    for part in rest:
        total = (total + _summed(part, x)).astype(np.float32)
    return total


def _unordered(tree: Any) -> Any:
    return tree if isinstance(tree, int) else frozenset(_unordered(part) for part in tree)


@pytest.mark.parametrize("seed", range(8))
def test_any_tree_is_found_again_by_masking(seed: int) -> None:
    n = 3 + 5 * seed
    tree = _random_tree(list(range(n)), np.random.default_rng(seed))
    pairs = orders.all_pairs(range(n))
    meeting = orders.met(pairs, _summed(tree, orders.masked(pairs, n)), n)
    assert _unordered(orders.tree(range(n), meeting)) == _unordered(tree)


def test_sizes_of_no_tree_are_said_to_be_none() -> None:
    assert orders.tree((0, 1, 2), {(0, 1): 2.0, (0, 2): 2.0, (1, 2): 3.0}) is None
    assert orders.written(None).startswith("no tree")


def test_trees_are_written_short() -> None:
    assert orders.written(((0, 1), (2, 3))) == "((0 1) (2 3))"
    assert orders.written(((((0, 1), 2), 3), 9)) == "(0 > .. > 3 > 9)"
    assert orders.written((0, 1, 2, 3, 4)) == "(0 .. 4)"


# Operators and phases


def _named(section: Section, *names: str) -> Section:
    section.checks = [check for check in section.checks if check.kernel.split("/")[0] in names]
    return section


def test_operator_that_depends_on_the_batch_is_named() -> None:
    def single(tensors: Tensors, plan: Any) -> None:
        if plan.rows.rows == 1:
            next_value(tensors[-3], slice(0, 1))

    launcher = Planted(after=on("rms_norm", single))
    section = _named(operators.section(launcher, Scope.QUICK, lambda: True), "rms_norm")
    found = broken(section)
    assert {law for _, law in found} == {"a row alone = among others, length 64"}


def test_operator_that_is_not_the_same_again_is_named() -> None:
    runs: list[int] = []

    def sometimes(tensors: Tensors, plan: Any) -> None:
        runs.append(1)
        if len(runs) == 2:
            next_value(tensors[-1], slice(3, 4))

    section = _named(operators.section(Planted(after=on("glu", sometimes)), Scope.QUICK, lambda: True), "swiglu")
    ((name, said),) = broken(section).items()
    assert name[1] == "run to run, length 64"
    assert "1 of " in said


def test_wrong_bit_of_an_operator_is_named_where_the_cpus_bits_are_due() -> None:
    def wrong(tensors: Tensors, plan: Any) -> None:
        next_value(tensors[-1])

    section = _named(operators.section(Planted(after=on("rope", wrong)), Scope.QUICK, lambda: False), "rope_neox")
    assert list(broken(section)) == [("rope_neox/float32", "the CPU library's results, length 64")]


def test_result_that_is_far_off_is_named_where_no_bits_are_due() -> None:
    def wrong(tensors: Tensors, plan: Any) -> None:
        tensors[-1].view(-1)[::9] *= 1.5

    section = _named(operators.section(Planted(after=on("linear", wrong)), Scope.QUICK, lambda: False), "linear")
    assert any("rms error" in said for (_, law), said in broken(section).items() if law.startswith("the CPU"))


@pytest.mark.slow(seconds=90)
def test_other_mmad_and_exp_than_the_cpus_break_no_law_of_an_operator() -> None:
    launcher = TwinLauncher(2201, mmad=Mmad.PAIRWISE16, exact_exp=False, perturb=True)
    section = operators.section(launcher, Scope.DEFAULT, lambda: False)
    assert broken(section) == {}
    assert section.facts["linear/float32"]["bits of the CPU at length 64"] is False


def test_every_function_whose_rows_are_independent_is_tried_for_it() -> None:
    functions = {f"{case.part}.{case.function}" for case in cases.CASES}
    sums_over_rows = {"linear.grouped_outer", "linear.grouped_row_sum", "embedding.embedding_backward"}
    rows_in_groups = {"linear.grouped_matmul", "moe.combine_backward"}
    others = {name for name in functions - set(operators.ROWS) if not name.startswith("attention.")}
    assert others == sums_over_rows | rows_in_groups


def test_decode_that_differs_from_training_is_named() -> None:
    def paged(tensors: Tensors, plan: Any) -> None:
        if plan.block_size:
            next_value(tensors[-3], slice(0, 1))

    section = phases.section(Planted(after=on("attention", paged)), Scope.QUICK)
    found = broken(section, "attention/", "linear", "decoder layer")
    assert {law for kernel, law in found if kernel.startswith("attention")} == {
        "prefill over pages = training",
        "decode = training",
        "decode, one sequence at a time = training",
    }
    assert {kernel for kernel, _ in found} == {"attention/bfloat16", "decoder layer/bfloat16"}


def test_linear_that_differs_for_one_row_is_named() -> None:
    def single(tensors: Tensors, plan: Any) -> None:
        if plan.m == 1:
            next_value(tensors[-2], slice(0, 1))

    section = phases.section(Planted(after=on("linear_mix", single)), Scope.QUICK)
    found = broken(section, "linear")
    assert set(found) == {
        ("linear/bfloat16", "decode = prefill = training"),
        ("linear_row/bfloat16", "decode = prefill = training"),
    }


def test_bits_are_hashed_with_one_nan() -> None:
    quiet, other = (np.array([bit, 0x3F800000], np.uint32).view(np.float32) for bit in (0x7FC00000, 0xFFC00001))
    assert bits.sha256(quiet) == bits.sha256(other)
    assert bits.sha256(quiet) != bits.sha256(np.array([0x7FC0, 0x3F800000], np.uint32).view(np.float32))
    zeros = np.array([0.0, -0.0], np.float32)
    assert bits.sha256(zeros[:1]) != bits.sha256(zeros[1:])


def test_choices_are_compared_where_their_weights_count() -> None:
    weights = torch.tensor([[0.5, 0.5, 1e-30]] * 40)
    ids = torch.tensor([[3, 1, 2]] * 40)
    close = operators._far
    assert close([weights, ids], [weights, ids], torch.float32, 64) == ""
    other = torch.tensor([[3, 1, 9]] * 40)  # a choice of no weight
    assert close([weights, other], [weights, ids], torch.float32, 64) == ""
    wrong = torch.tensor([[3, 7, 2]] * 40)
    assert "40 of 80 choices differ" in close([weights, wrong], [weights, ids], torch.float32, 64)
    assert "choices differ" in close([ids + 1], [ids], torch.float32, 64)


def test_results_that_are_infinite_on_one_side_only_are_far() -> None:
    values = torch.linspace(1, 2, 100)
    assert operators._far([values * (1 + 1e-6)], [values], torch.float32, 64) == ""
    spoiled = values.clone()
    spoiled[:11] = torch.inf
    assert "11 of 100 values are NaN or infinite" in operators._far([spoiled], [values], torch.float32, 64)
    assert "rms error" in operators._far([values * 1.01], [values], torch.float32, 64)
