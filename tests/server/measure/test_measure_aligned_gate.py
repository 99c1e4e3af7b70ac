"""The gate over the `aligned` blocks of both fingerprints."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff.measure import RunFacts, aligned_differences
from logdiff.measure.gates import aligned_gate

BLOCK: dict[str, Any] = {
    "contract": "aligned/1",
    "provider": "aligned-cpu",
    "source": "s0",
    "rope": "r0",
    "ops": ["linear", "rope"],
    "providers": [{"name": "aligned-cpu", "isa": "avx2", "binary_hash": "b0"}],
}


def with_provider(**changes: Any) -> dict[str, Any]:
    return {**BLOCK, "providers": [{**BLOCK["providers"][0], **changes}]}


def gate(rollout: Any, train: Any) -> Any:
    return aligned_gate(RunFacts(fingerprints={"rollout": {"aligned": rollout}, "train": {"aligned": train}}))


def test_native_sides_have_no_such_gate() -> None:
    assert gate(None, None) is None
    assert aligned_gate(RunFacts()) is None


def test_one_definition_on_both_sides_holds_and_is_named() -> None:
    found = gate(BLOCK, dict(BLOCK))
    assert found.ok is True
    assert found.detail == "2 operators to aligned/1 by aligned-cpu (avx2) on both sides"


@pytest.mark.parametrize(("side", "other"), [("rollout", "train"), ("train", "rollout")])
def test_one_aligned_side_is_not_judged(side: str, other: str) -> None:
    blocks = {"rollout": None, "train": None, side: BLOCK}
    found = gate(blocks["rollout"], blocks["train"])
    assert found.ok is None
    assert f"on {side} alone; {other} is native" in found.detail


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({**BLOCK, "contract": "aligned/2"}, "contract aligned/1 on rollout, aligned/2 on train"),
        ({**BLOCK, "provider": "aligned-npu"}, "provider"),
        ({**BLOCK, "source": "s1"}, "source s0 on rollout, s1 on train"),
        ({**BLOCK, "rope": "r1"}, "rope"),
        (with_provider(binary_hash="b1"), "binary hash b0 on rollout, b1 on train"),
    ],
)
def test_two_definitions_fail(train: dict[str, Any], words: str) -> None:
    found = gate(BLOCK, train)
    assert found.ok is False
    assert words in found.detail


@pytest.mark.parametrize("key", ["contract", "provider"])
@pytest.mark.parametrize("side", [0, 1])
def test_contract_and_provider_have_to_be_reported(key: str, side: int) -> None:
    blocks = [dict(BLOCK), dict(BLOCK)]
    del blocks[side][key]
    assert f"{key} is not reported by {['rollout', 'train'][side]}" in aligned_differences(*blocks)


NPU: dict[str, Any] = {
    **BLOCK,
    "provider": "aligned-ascendc",
    "providers": [
        *BLOCK["providers"],
        {
            "name": "aligned-ascendc",
            "isa": "",
            "binary_hash": "b7",
            "arch": "dav-2201",
            "chip": "Ascend910B2",
            "exact_exp": False,
        },
    ],
}


def on_npu(**changes: Any) -> dict[str, Any]:
    return {**NPU, "providers": [NPU["providers"][0], {**NPU["providers"][1], **changes}]}


def test_npus_of_one_kind_with_one_binary_are_one_definition() -> None:
    found = gate(NPU, on_npu())
    assert found.ok is True
    assert found.detail == "2 operators to aligned/1 by aligned-ascendc (Ascend910B2) on both sides"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"binary_hash": "b8"}, "binary hash b7 on rollout, b8 on train"),
        ({"arch": "dav-3510"}, "arch dav-2201 on rollout, dav-3510 on train"),
        ({"chip": "Ascend910B3"}, "chip Ascend910B2 on rollout, Ascend910B3 on train"),
        ({"exact_exp": True}, "exact exp False on rollout, True on train"),
        ({"binary_hash": None}, "binary hash is not reported by train"),
        ({"exact_exp": None}, "exact exp is not reported by train"),
    ],
)
def test_another_binary_chip_or_exp_on_an_npu_is_another_definition(changes: dict[str, Any], words: str) -> None:
    found = gate(NPU, on_npu(**changes))
    assert found.ok is False
    assert words in found.detail


def test_a_cpu_and_an_npu_are_two_providers() -> None:
    assert "provider aligned-cpu on rollout, aligned-ascendc on train" in aligned_differences(BLOCK, NPU)


def test_another_instruction_set_of_the_same_source_is_the_same_definition() -> None:
    assert aligned_differences(BLOCK, with_provider(isa="avx512", binary_hash="b1")) == []


def test_a_table_that_one_side_has_no_use_for_is_no_difference() -> None:
    assert aligned_differences({**BLOCK, "rope": []}, BLOCK) == []


def test_operators_of_one_side_alone_are_named() -> None:
    found = gate(BLOCK, {**BLOCK, "ops": ["linear"]})
    assert found.ok is True
    assert found.detail.endswith("on one side alone: rope")
