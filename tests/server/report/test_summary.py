from __future__ import annotations

from typing import Any

import pytest
from logdiff.measure import floor_summary, measure
from logdiff.report import markdown, table
from logdiff.report.files import CaseFiles
from logdiff.report.floor import read_floor
from logdiff.report.summary import pair_rows, sentence
from report_cases import MakeCase, Sample

EQUAL = {"tokens": 4, "mismatched_tokens": 0, "max_abs": 0.0, "mean_abs": 0.0, "mean": 0.0, "p99": 0.0, "missing": 0}
FAR = {
    "tokens": 200,
    "mismatched_tokens": 50,
    "max_abs": 0.5,
    "mean_abs": 0.02,
    "mean": -0.01,
    "p99": 0.3,
    "missing": 0,
}


def _axis(**values: Any) -> dict[str, Any]:
    return {"side": "train", "axis": "batch", "value": 4, "tokens": 9, "mismatched_tokens": 1, **values}


def _sentence(block: dict[str, Any] | None, floor: dict[str, Any] | None = None, **more: Any) -> str:
    result = {"format": "logdiff-measure/1", "pairs": {"decode_train": block}, "gates": [], **more}
    files = CaseFiles("case", measure=result)
    return sentence(files, pair_rows(result, None), read_floor(floor or {}))


def test_equal_bits_are_called_equal_and_counted() -> None:
    text = _sentence(EQUAL)
    assert text.startswith("Equal: all 4 compared tokens")
    assert "No floor was measured." in text


def test_a_difference_is_told_with_count_maximum_and_means() -> None:
    text = _sentence(FAR)
    for part in ("Different: 50 of 200", "25 %", "0.5000 nats", "0.02000", "-0.01000"):
        assert part in text


def test_a_difference_is_within_the_floor_only_when_all_three_figures_are() -> None:
    assert "within the measured floor" in _sentence(FAR, floor_summary([_axis(max_abs=0.5, mean_abs=0.02, p99=0.3)]))
    above = _sentence(FAR, floor_summary([_axis(max_abs=0.25, mean_abs=0.02, p99=0.3)]))
    assert "above the measured floor: max 2.0 times." in above
    assert "within" not in above


def test_a_floor_of_exactly_zero_is_named_and_never_divided_by() -> None:
    text = _sentence(FAR, floor_summary([_axis(max_abs=0.0, mean_abs=0.0, p99=0.0)]))
    assert "mean 0.02000 against exactly 0" in text


def test_nothing_compared_is_never_called_equal() -> None:
    for block in (None, {**EQUAL, "tokens": 0}):
        text = _sentence(block)
        assert text.startswith("Nothing could be compared")
        assert "Equal" not in text


def test_a_failed_gate_stands_before_every_number() -> None:
    gates = [
        {"gate": "ids", "ok": True},
        {"gate": "bypass", "ok": False, "detail": "copied"},
        {"gate": "x", "ok": None},
    ]
    text = _sentence(EQUAL, gates=gates)
    assert text.startswith("The evidence fails the identity gate bypass, so the numbers prove nothing")


def test_tokens_without_a_value_are_told_beside_equal_ones() -> None:
    assert "3 more tokens lack a value on one side." in _sentence({**EQUAL, "missing": 3})


def test_undefined_numbers_are_printed_as_such_and_never_within_the_floor() -> None:
    block = {**FAR, "max_abs": "nan", "mean_abs": "nan", "mean": "nan", "p99": "nan"}
    text = _sentence(block, floor_summary([_axis(max_abs=1.0, mean_abs=1.0, p99=1.0)]))
    assert "within" not in text
    assert "nan" in text


def test_a_pair_without_numbers_gives_the_reason_that_the_measure_gave() -> None:
    result = {
        "pairs": {"decode_train": FAR, "decode_rescore": None, "rescore_train": None},
        "unavailable": {"decode_rescore": "temperature 0.7 can't be applied over http"},
    }
    rows = pair_rows(result, None)
    assert [row.reason for row in rows] == ["", "temperature 0.7 can't be applied over http", "not captured"]


def test_table_and_markdown_agree_with_the_measure_of_the_same_tokens(make_case: MakeCase) -> None:
    sample = Sample([5, 6, 7, 8], {"rollout": [-1.0, -2.0, -0.5, -3.0], "train": [-1.5, -2.0, -0.25, -3.0]})
    case = make_case([sample])
    case.write_result("measure", measure(case.meta, case.batches()).as_dict())
    case.close()
    row = table(case)[0]
    # d = -0.5, 0, 0.25, 0
    assert (row["tokens"], row["mismatched_tokens"], row["max_abs"]) == (4, 2, 0.5)
    assert (row["mean_abs"], row["mean"]) == (0.1875, -0.0625)
    assert row["k3_kl"] == pytest.approx((0.6065306597 - 0.5 + 1.2840254167 - 1.25) / 4, rel=1e-6)
    text = markdown(case)
    assert "| train - rollout (decode) | 4 | 2 (50 %) | 0.5000 | 0.1875 | -0.06250 |" in text
    assert "no log-probability on the rescore side" in text


def test_without_a_measure_the_numbers_come_from_the_tokens(make_case: MakeCase) -> None:
    sample = Sample([5, 6, 7, 8], {"rollout": [-1.0, -2.0, -0.5, -3.0], "train": [-1.5, -2.0, -0.25, -3.0]})
    row = table(make_case([sample]))[0]
    assert (row["tokens"], row["mismatched_tokens"], row["max_abs"], row["mean_abs"]) == (4, 2, 0.5, 0.1875)


def test_hostile_names_cannot_break_the_markdown_table(make_case: MakeCase) -> None:
    text = markdown(make_case(None, name="a|b\n<img src=x>"))
    assert "a\\|b⏎&lt;img src=x>" in text
    assert text.splitlines()[2].startswith("| pair |")
