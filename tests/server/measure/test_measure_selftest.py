"""What differs between the self-tests of two hosts, in sentences."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from logdiff import actions
from logdiff.errors import InputError
from logdiff.measure.selftest import compare_selftests, read_selftest

HASHES = [f"{i:064x}" for i in range(10)]


def report() -> dict[str, Any]:
    """A small one, as an NPU gives it."""
    table = {"values": 65536, "sha256": HASHES[0], "parts": [f"{i:08x}" for i in range(16)], "max_ulp": 0.5}
    facts = {
        "elementwise": {"Exp/all bfloat16": table, "Add/float32 pairs": {**table, "values": 7000}},
        "mmad": {
            "Mmad/bfloat16": {
                "order": "ascending",
                "random_sums": HASHES[1],
                "m_that_change_results": [],
                "special": {"subnormal sum": "0x00400000"},
            }
        },
        "operators": {"linear/bfloat16": {"results of length 64": HASHES[2], "bits of the CPU at length 64": True}},
    }
    return {
        "format": "logdiff-selftest/1",
        "provider": "aligned-ascendc",
        "arch": "dav-2201",
        "laws": [{"kernel": "rope/bfloat16", "law": "run to run", "ok": True, "detail": "holds"}],
        "failed": 0,
        "chip": "Ascend910B2",
        "exact_exp": False,
        "binary": HASHES[3],
        "contract": "aligned/1",
        "scope": "default",
        "sections": [
            {"name": name, "matters": f"{name} is off", "fingerprint": json.dumps(what, sort_keys=True), "facts": what}
            for name, what in facts.items()
        ],
        "notes": [],
    }


def changed(section: str, name: str, **facts: Any) -> dict[str, Any]:
    """The report with other facts of one check."""
    found = copy.deepcopy(report())
    (part,) = [part for part in found["sections"] if part["name"] == section]
    part["facts"][name].update(facts)
    part["fingerprint"] = "other"
    return found


def differences(there: dict[str, Any]) -> list[str]:
    found = compare_selftests(report(), there)
    assert found["same"] == (not found["differences"])
    return list(found["differences"])


def test_equal_reports_are_the_same() -> None:
    assert compare_selftests(report(), report()) == {"same": True, "differences": [], "remarks": []}


def test_other_chip_alone_is_a_remark() -> None:
    found = compare_selftests(report(), {**report(), "chip": "Ascend910B3"})
    assert found["same"]
    assert found["remarks"] == ["chip: Ascend910B2 here, Ascend910B3 there"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"binary": HASHES[9]}, f"compiled kernels: {HASHES[3][:12]}... here, {HASHES[9][:12]}... there"),
        ({"contract": "aligned/2"}, "numeric contract: aligned/1 here, aligned/2 there"),
        ({"arch": "dav-3510"}, "architecture: dav-2201 here, dav-3510 there"),
        ({"exact_exp": True}, "exp and ln: the chip's here, the contract's there"),
    ],
)
def test_what_has_to_be_equal_of_two_aligned_sides_is_named(fields: dict[str, Any], words: str) -> None:
    (sentence,) = differences({**report(), **fields})
    assert sentence.startswith(words)


def test_table_that_differs_is_named_with_its_inputs_and_measures() -> None:
    parts = [f"{i:08x}" for i in range(16)]
    parts[4] = "ffffffff"
    there = changed("elementwise", "Exp/all bfloat16", sha256=HASHES[8], parts=parts, max_ulp=0.97)
    assert differences(there) == [
        "Exp/all bfloat16: results differ for inputs 0x4000 to 0x4fff; max ulp: 0.5 here, 0.97 there",
        "what elementwise means: elementwise is off",
    ]
    there = changed("elementwise", "Add/float32 pairs", sha256=HASHES[8], parts=parts)
    assert differences(there)[0] == "Add/float32 pairs: results differ in 1 of 16 parts of the table"


def test_tables_of_another_size_are_not_compared() -> None:
    there = changed("elementwise", "Add/float32 pairs", sha256=HASHES[8], values=99)
    assert differences({**there, "scope": "quick"}) == []
    assert compare_selftests(report(), {**there, "scope": "quick"})["remarks"] == [
        "scope: default here, quick there: only what both have tried is compared"
    ]


def test_order_of_the_matrix_unit_is_named() -> None:
    there = changed(
        "mmad",
        "Mmad/bfloat16",
        order="pairwise16",
        random_sums=HASHES[7],
        m_that_change_results=[2, 16],
        special={"subnormal sum": "0x00000000, IEEE 0x00400000"},
    )
    assert differences(there) == [
        "Mmad/bfloat16: order: ascending here, pairwise16 there",
        "Mmad/bfloat16: random sums differ",
        "Mmad/bfloat16: m that change results: none here, 2, 16 there",
        "Mmad/bfloat16: special: subnormal sum: 0x00400000 here, 0x00000000, IEEE 0x00400000 there",
        "what mmad means: mmad is off",
    ]


def test_operators_that_differ_and_what_is_the_cpus_on_one_side_alone_are_named() -> None:
    there = changed(
        "operators", "linear/bfloat16", **{"results of length 64": HASHES[6], "bits of the CPU at length 64": False}
    )
    assert differences(there)[:2] == [
        "linear/bfloat16: results of length 64 differ",
        "linear/bfloat16: bits of the CPU at length 64: yes here, no there",
    ]


def test_law_that_fails_on_one_side_alone_is_named() -> None:
    there = report()
    there["laws"][0].update(ok=False, detail="3 of 9 differ")
    words = "rope/bfloat16: run to run: {}: 3 of 9 differ"
    assert differences(there) == [words.format("holds here, fails there")]
    assert compare_selftests(there, report())["differences"] == [words.format("fails here, holds there")]


def test_checks_of_one_side_alone_are_counted() -> None:
    there = changed("operators", "linear/bfloat16")
    there["sections"][2]["facts"]["rope/bfloat16"] = {"length 64": HASHES[5]}
    found = compare_selftests(report(), there)
    assert found["same"]
    assert found["remarks"] == ["operators: 1 tables or probes were made on one of the two only"]


def test_many_differences_are_counted() -> None:
    here, there = report(), report()
    for side, value in ((here, HASHES[1]), (there, HASHES[2])):
        side["sections"][2]["facts"] = {f"case {i}": {"length 64": value} for i in range(40)}
        side["sections"][2]["fingerprint"] = value
    found = compare_selftests(here, there)["differences"]
    assert len(found) == 14
    assert found[12] == "28 more of operators"


def test_reports_of_the_cpu_library_are_compared_by_their_laws() -> None:
    cpu = {key: value for key, value in report().items() if key in ("format", "provider", "arch", "laws", "failed")}
    assert compare_selftests(cpu, cpu)["same"]
    other = copy.deepcopy(cpu)
    other["laws"][0].update(ok=False, detail="9 values differ")
    assert len(compare_selftests(cpu, other)["differences"]) == 1


def test_saved_reports_are_compared_without_running_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logdiff.live.kernels", lambda *a, **k: pytest.fail("nothing is run"))
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    here.write_text(json.dumps(report()))
    there.write_text(json.dumps(changed("mmad", "Mmad/bfloat16", order="fp64")))
    done = actions.kernels(what="selftest", report=here, compare=there)
    assert done.exit_code == 1
    assert done.data["compared"]["differences"][0] == "Mmad/bfloat16: order: ascending here, fp64 there"
    assert actions.kernels(what="selftest", report=here, compare=here).exit_code == 0


@pytest.mark.parametrize("text", ["", "[]", '{"format": "logdiff-bench/1"}', "\xff"])
def test_file_that_is_no_selftest_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError) as caught:
        read_selftest(path)
    assert caught.value.value == str(path)
    with pytest.raises(InputError, match="can't be read"):
        read_selftest(tmp_path / "missing.json")


def test_a_section_that_one_report_lacks_is_said() -> None:
    other = report()
    other["sections"] = [part for part in other["sections"] if part["name"] != "mmad"]
    assert "mmad: only here" in compare_selftests(report(), other)["remarks"]
    assert "mmad: only there" in compare_selftests(other, report())["remarks"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"laws": "none"}, "laws"),
        ({"laws": [{"kernel": "rope"}]}, "laws.0.law"),
        ({"failed": 1}, "failed says 1, the laws 0"),
        ({"sections": [{"name": "mmad", "matters": "", "fingerprint": "", "facts": "edited"}]}, "sections.0.facts"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_damaged_report_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps({**report(), **change}))
    with pytest.raises(InputError, match="damaged") as caught:
        read_selftest(file)
    assert words in caught.value.message


def test_facts_that_were_edited_are_compared_whatever_the_fingerprint_says() -> None:
    other = copy.deepcopy(report())
    other["sections"][1]["facts"]["Mmad/bfloat16"]["order"] = "unknown"
    assert not compare_selftests(report(), other)["same"]
