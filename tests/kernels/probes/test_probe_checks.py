"""A check finds what is planted, wherever it is planted, and says "not proven" where it could not have."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from clean import implementation
from logdiff_kernels.probes import accuracy, control, relations
from logdiff_kernels.probes import check as checks
from logdiff_kernels.probes.catalogue import families
from logdiff_kernels.probes.check import Check, Setting
from logdiff_kernels.probes.records import Difference, Family, Impl, Problem
from logdiff_kernels.probes.shrink import shrink, values

FAMILIES = families()
OPERATORS = [op for op, family in FAMILIES.items() if not family.world]
SETTING = Setting(seed=3, dtype="float32", device="cpu")


def run(family: Family, impl: Impl, relation: str, setting: Setting = SETTING, shapes: int = 1) -> dict[str, Any]:
    entry, _ = checks.run(
        Check(family, "clean", impl, relation), list(family.defaults[:shapes]), setting, time.monotonic() + 60, []
    )
    return entry


def varied(family: Family, impl: Impl) -> list[str]:
    """Relations that can be asked of the clean implementation at its first shape."""
    return [
        name
        for name in family.relations
        if name not in ("compile", "tp") and not relations.possible(name, family, impl)
    ]


@pytest.mark.parametrize("op", OPERATORS)
def test_a_fault_planted_anywhere_in_a_family_is_found_and_a_clean_one_is_not(op: str) -> None:
    family = FAMILIES[op]
    clean = implementation(family)
    choice = random.Random(f"{op} 7")
    name, place = choice.choice(varied(family, clean)), choice.random()
    held = run(family, clean, f"I:{name}")
    if held["ok"] is None:  # two rows leave no chunks
        name = "batch"
        held = run(family, clean, "I:batch")
    assert (held["ok"], held["control_seen"]) == (True, True)
    found = run(family, control.planted(name, family, clean, place), f"I:{name}")
    assert (found["ok"], found["control_seen"]) == (False, True)
    assert family.fits(found["smallest_failing_shape"])
    difference = found["detail"]["difference"]
    assert difference["bits"][0] != difference["bits"][1]
    assert found["detail"]["inputs"]
    assert f"probe run {op} " in found["detail"]["repeat"]


@pytest.mark.parametrize("op", ["linear", "attention", "logprob"])
def test_every_relation_of_a_family_sees_its_own_control(op: str) -> None:
    family = FAMILIES[op]
    clean = implementation(family)
    for name in varied(family, clean):
        entry, _ = checks.run(
            Check(family, "clean", clean, f"I:{name}"), list(family.defaults[:2]), SETTING, time.monotonic() + 60, []
        )
        assert (entry["ok"], entry["control_seen"]) == (True, True), name


def test_a_check_without_its_control_is_not_proven() -> None:
    family = FAMILIES["rms_norm"]
    entry = run(family, implementation(family), "I:batch", replace(SETTING, plant=None))
    assert (entry["ok"], entry["control_seen"]) == (None, False)
    assert entry["detail"]["not_proven"] == "no control"
    assert run(family, implementation(family), "A", replace(SETTING, plant=None))["ok"] is None


def test_a_control_that_plants_nothing_leaves_a_check_not_proven() -> None:
    family = FAMILIES["rms_norm"]
    entry = run(family, implementation(family), "I:order", replace(SETTING, plant=lambda name, family, impl: impl))
    assert (entry["ok"], entry["control_seen"]) == (None, False)
    assert "not seen" in entry["detail"]["not_proven"]


def test_another_order_of_summation_in_a_batch_is_found_whatever_the_dtype() -> None:
    """A fault of another kind than the controls': k descending when there are more rows than one."""
    family = FAMILIES["linear"]

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        terms = x[:, None, :].float() * weight.float()
        order = torch.arange(x.shape[-1])
        if x.shape[0] > 1:
            order = order.flip(0)
        total = torch.zeros(terms.shape[:2])
        for k in order:
            total = total + terms[..., k]
        return total.to(x.dtype)

    for dtype in ("float32", "bfloat16"):
        entry = run(family, Impl(call, gradients=False), "I:batch", replace(SETTING, dtype=dtype))
        assert entry["ok"] is False
        small = entry["smallest_failing_shape"]
        assert small["rows"] == 2
        assert small["n"] == 1
        assert 3 <= small["k"] <= 8  # two terms have one sum; a handful suffice to tell two orders apart


def test_accuracy_passes_the_exact_and_names_what_is_off() -> None:
    family = FAMILIES["rms_norm"]
    clean = implementation(family)
    assert run(family, clean, "A")["ok"] is True
    call = clean.call
    without_weight = replace(clean, call=lambda x, weight: call(x=x, weight=torch.ones_like(weight)))
    wrong = run(family, without_weight, "A")
    assert (wrong["ok"], wrong["control_seen"]) == (False, True)
    assert wrong["detail"]["accuracy"]["error_in_bars"] > 1


def test_the_bar_of_accuracy_is_crossed_by_a_factor_just_above_it() -> None:
    family = FAMILIES["linear"]
    clean = implementation(family)
    check = Check(family, "clean", clean, "A")
    given, draw = checks.problem(check, family.defaults[0], SETTING)
    verdict = accuracy.judge(family, clean, given, draw)
    assert verdict.ok
    assert not accuracy.judge(family, accuracy.planted(family, clean, verdict.share), given, draw).ok


def test_shrinking_ends_at_the_corner_of_a_failing_region() -> None:
    family = FAMILIES["linear"]
    difference = Difference("", 0, 0, (), ("", ""), (0.0, 0.0), 0, 0, 0, 0)

    def fails(shape: dict[str, int]) -> Difference | None:
        return difference if shape["rows"] >= 3 and shape["k"] >= 33 and shape["n"] >= 5 else None

    start = {"rows": 513, "k": 1000, "n": 96}
    shape, _, whole = shrink(family, start, difference, fails, lambda: False)
    assert (shape, whole) == ({"rows": 3, "k": 33, "n": 5}, True)
    assert shrink(family, start, difference, fails, lambda: True) == (start, difference, False)


def test_values_to_shrink_to_are_ascending_multiples() -> None:
    assert values(40, 1, 16) == [16, 32]
    assert values(20, 2, 1) == list(range(2, 18))
    assert 33 in values(40, 1, 1)
    assert 24 in values(40, 1, 1)


def test_the_same_seed_gives_the_same_inputs_and_another_does_not() -> None:
    family = FAMILIES["attention"]
    check = Check(family, "clean", implementation(family), "I:batch")

    def drawn(seed: int) -> Problem:
        return checks.problem(check, family.defaults[0], replace(SETTING, seed=seed))[0]

    assert torch.equal(drawn(1).rows["q"], drawn(1).rows["q"])
    assert not torch.equal(drawn(1).rows["q"], drawn(2).rows["q"])


def test_a_shape_that_an_implementation_refuses_is_told_and_the_others_are_tried() -> None:
    family = FAMILIES["rms_norm"]
    call = implementation(family).call

    def picky(x: torch.Tensor, weight: torch.Tensor) -> Any:
        if x.shape[1] == 64:
            raise RuntimeError("64 is refused")
        return call(x=x, weight=weight)

    refused: list[Any] = []
    shapes = [{"rows": 2, "n": 64}, {"rows": 2, "n": 65}]
    check = Check(family, "picky", Impl(picky, gradients=False), "I:batch")
    entry, _ = checks.run(check, shapes, SETTING, time.monotonic() + 60, refused)
    assert entry["ok"] is True
    assert entry["detail"]["shapes"] == [{"rows": 2, "n": 65}]
    assert [shape for shape, _ in refused] == [{"rows": 2, "n": 64}]
    with pytest.raises(checks.RefusedError, match="64 is refused"):
        checks.run(check, shapes[:1], SETTING, time.monotonic() + 60, [])


def test_a_check_that_had_no_time_for_every_shape_is_not_proven() -> None:
    family = FAMILIES["rms_norm"]
    check = Check(family, "clean", implementation(family), "I:batch")
    entry, left = checks.run(check, list(family.defaults[:3]), SETTING, time.monotonic() - 1, [])
    assert left == list(family.defaults[1:3])
    assert (entry["ok"], entry["control_seen"]) == (None, True)
    assert entry["detail"]["not_proven"] == "out of time: 1 of 3 shapes were tried, and held"


def test_gradients_that_cancel_exactly_are_held_to_the_terms_that_cancel() -> None:
    """One key: the gradients of q and k are 0, and what rounding leaves of dP - D is no error."""
    from logdiff_kernels.probes.catalogue import providers

    family = FAMILIES["attention"]
    shape = {**family.defaults[0], "batch": 1, "length": 1, "heads": 1, "kv_heads": 1}
    impl = providers()["aligned"].ops["attention"]("cpu", "float32")
    check = Check(family, "aligned", impl, "grad-A")
    entry, _ = checks.run(check, [shape], SETTING, time.monotonic() + 60, [])
    assert (entry["ok"], entry["control_seen"]) == (True, True)
