"""Verdicts that could be true or false for the wrong reason."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from clean import implementation
from logdiff_kernels.errors import InputError
from logdiff_kernels.probes import check as checks
from logdiff_kernels.probes.catalogue import families
from logdiff_kernels.probes.check import Check, Setting
from logdiff_kernels.probes.records import Family, Impl
from logdiff_kernels.probes.session import Wanted, identity, run

FAMILIES = families()
SETTING = Setting(seed=3, dtype="float32", device="cpu")


def checked(check: Check, shapes: list[dict[str, int]], setting: Setting = SETTING) -> tuple[dict[str, Any], list[Any]]:
    refused: list[Any] = []
    entry, _ = checks.run(check, shapes, setting, time.monotonic() + 120, refused)
    return entry, refused


def test_accuracy_sees_an_error_that_only_large_batches_have() -> None:
    family = FAMILIES["rms_norm"]
    call = implementation(family).call

    def tail(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.clone(call(x=x, weight=weight)[0])
        y[64:] *= 1.5
        return y

    entry, _ = checked(Check(family, "tail", Impl(tail, gradients=False), "A"), [{"rows": 100, "n": 64}])
    assert (entry["ok"], entry["control_seen"]) == (False, True)
    assert entry["smallest_failing_shape"]["rows"] == 65
    assert entry["detail"]["accuracy"]["worst"]["row"] == 64


def test_a_shape_too_large_for_fp64_is_told_not_passed_over() -> None:
    family = FAMILIES["linear"]
    shapes = [{"rows": 2, "k": 64, "n": 32}, {"rows": 32, "k": 2048, "n": 2048}]
    entry, refused = checked(Check(family, "clean", implementation(family), "A"), shapes)
    assert entry["detail"]["shapes"] == shapes[:1]
    assert [(shape, checks.told(error)) for shape, error in refused] == [
        (shapes[1], "too large to be computed in fp64 as well")
    ]


def test_a_nan_that_differs_is_no_control() -> None:
    """NaN from a neighbour fails the relation; a control that plants nothing must not count as seen for it."""
    family = FAMILIES["rms_norm"]
    call = implementation(family).call

    def leaking(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.clone(call(x=x, weight=weight)[0])
        return y + 0.0 * x.sum()

    check = Check(family, "leaking", Impl(leaking, gradients=False), "I:neighbours")
    entry, _ = checked(check, [{"rows": 3, "n": 64}], replace(SETTING, plant=lambda name, family, impl: impl))
    assert (entry["ok"], entry["control_seen"]) == (None, False)
    entry, _ = checked(check, [{"rows": 3, "n": 64}])
    assert (entry["ok"], entry["control_seen"]) == (False, True)


def test_the_control_of_two_providers_is_seen_where_every_element_differs_already() -> None:
    family = FAMILIES["swiglu"]
    clean = implementation(family)

    def off(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        y = torch.clone(clean.call(gate=gate, up=up)[0])
        return y * 1.5

    entry, _ = checked(Check(family, "clean", clean, "P", ("off", Impl(off, gradients=False))), [{"rows": 2, "n": 64}])
    assert (entry["ok"], entry["control_seen"]) == (False, True)


def _wanted(family: Family, **task: Any) -> Wanted:
    return Wanted.of({"ops": [family.op], "providers": ["torch"], "seconds": 60.0, **task})


def test_a_plan_without_a_fitting_shape_does_not_take_other_shapes() -> None:
    data = run(_wanted(FAMILIES["rms_norm"], relations=["I:order"], shapes={"rms_norm": []}))
    assert data["results"] == []
    assert [entry["reason"] for entry in data["skipped"]] == ["no shape was planned"]


def test_a_model_shape_that_an_operator_has_not_is_told_and_the_rest_is_probed() -> None:
    odd = {
        "batch": 2, "length": 7, "heads": 2, "kv_heads": 1, "head_dim": 80, "window": 0, "softcap": 0, "sinks": 0,
    }  # fmt: skip
    task: dict[str, Any] = {
        "ops": ["rms_norm", "attention"], "providers": ["torch"], "relations": ["I:order"], "seconds": 60.0,
        "shapes": {"attention": [odd], "rms_norm": [{"rows": 3, "n": 64}]},
    }  # fmt: skip
    data = run(Wanted.of({**task, "model": "somewhere"}))
    assert [(entry["op"], entry["ok"]) for entry in data["results"]] == [("rms_norm", True)]
    assert any(e.get("shapes") == [odd] and "head_dim a multiple of 32" in e["reason"] for e in data["skipped"])
    with pytest.raises(InputError, match="no such shape"):
        Wanted.of(task)


def test_only_known_answers_that_are_asked_for_are_named() -> None:
    family = FAMILIES["rms_norm"]
    known = {("rms_norm", "torch", "I:order", ""), ("rms_norm", "torch_compiled", "I:order", "")}
    data = run(_wanted(family, relations=["I:order"]), known=known)
    assert (data["results"], data["known"]) == ([], [["rms_norm", "torch", "I:order", ""]])
    assert identity(Check(family, "torch", Impl(lambda: None), "I:order")) in known


@pytest.mark.parametrize("op", ["swiglu", "geglu_tanh", "add_rms_norm", "moe"])
def test_strides_that_the_adapter_removes_are_not_asked_of_vllm(op: str) -> None:
    pytest.importorskip("vllm")
    data = run(Wanted.of({"ops": [op], "providers": ["vllm"], "relations": ["I:strides"], "seconds": 60.0}))
    assert data["results"] == []
    assert any("copied" in entry["reason"] or "vLLM" in entry["reason"] for entry in data["skipped"])


@pytest.mark.slow(seconds=180)
@pytest.mark.timeout(900)
def test_eager_against_compiled_is_judged_with_its_control() -> None:
    """I:compile against a brute-force torch.compile, and the compiled provider in a batch."""
    from logdiff_kernels.probes.providers import torch_eager

    task: dict[str, Any] = {"ops": ["swiglu"], "seconds": 600.0, "shapes": {"swiglu": [{"rows": 2, "n": 64}]}}
    (entry,) = run(Wanted.of({**task, "providers": ["torch"], "relations": ["I:compile"]}))["results"]
    assert entry["control_seen"] is True
    compiled = torch.compile(torch_eager.swiglu, dynamic=False)
    different = False
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        gate, up = (torch.randn(2, 64, generator=g).bfloat16() for _ in range(2))
        different |= not torch.equal(compiled(gate, up), torch_eager.swiglu(gate, up))
    assert (entry["ok"] is False) == different
    request = {**task, "providers": ["torch_compiled"], "relations": ["I:batch", "I:threads"]}
    entries = run(Wanted.of(request))["results"]
    assert [(e["relation"], e["control_seen"]) for e in entries] == [("I:batch", True), ("I:threads", True)]
    assert all(isinstance(e["ok"], bool) for e in entries)
