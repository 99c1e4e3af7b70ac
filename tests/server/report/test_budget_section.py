"""The budget in a report: shares, the set that is enough, what was not measured; broken files are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logdiff import actions
from logdiff.report.budget import read_budget
from logdiff.report.page import draw


def row(component: str, share: float, first_in: float | None = None, last_out: float | None = None) -> dict[str, Any]:
    return {
        "component": component, "share": share, "low": share / 2, "high": share, "first_in": first_in,
        "last_out": last_out, "interaction": None, "confidence": 0.9, "how": "all orders",
    }  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "logdiff-budget/1",
        "shares": [
            row("rope", 0.5, 0.2, 0.8), row("attention", 0.25, -0.1, 0.6), row("linear", 0.0), row("unexplained", 0.25),
        ],
        "smallest": {
            "ops": ["rope", "attention"], "reaches": "zero", "tokens": 1234, "all_tokens": True, "mismatched_tokens": 0,
            "max_abs": 0.0, "time": {"rollout": 1.5, "train": 0.8}, "bytes": 3 << 20,
        },
        "complete": True,
        "reason": None,
        "not_covered": {},
        "stock_again": True,
        "whole": {"mean_square": 0.0027, "samples": 4, "tokens": 96},
        **changes,
    }  # fmt: skip


@pytest.fixture
def case(tmp_path: Path) -> Path:
    lines = [
        {"format": "logdiff-pair/1", "meta": {}},
        {"sample_id": "a", "prompt_token_ids": [1], "response_token_ids": [2, 3], "rollout_logprobs": [-1.0, -2.0],
         "train_logprobs": [-1.25, -2.0]},
    ]  # fmt: skip
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(json.dumps(line) for line in lines))
    actions.measure(paths=[pairs], case=tmp_path / "case")
    return tmp_path / "case"


def put(case: Path, content: str) -> None:
    (case / "results" / "budget.json").write_text(content)


def test_the_page_shows_each_share_and_what_is_enough(case: Path, tmp_path: Path) -> None:
    put(case, json.dumps(document()))
    page = Path(actions.report(case=case, output=tmp_path / "r.html", png=tmp_path / "png").data["report"]).read_text()
    section = page.split('id="budget"')[1].split("</section>")[0]
    assert "Replacing rope, attention is enough: d is exactly 0 on 1,234 tokens, all of the run." in section
    assert "rollout 1.50 times, train 0.80 times" in section
    assert "3.0 MiB" in section
    for words in ("50.0 %", "25.0 %", "-10.0 %", "Without a share: linear."):
        assert words in section
    assert "<svg" in section
    assert (tmp_path / "png" / "budget.png").is_file()


def test_a_page_without_a_budget_has_no_such_section(case: Path, tmp_path: Path) -> None:
    page = Path(actions.report(case=case, output=tmp_path / "r.html").data["report"]).read_text()
    assert 'id="budget"' not in page


def test_bounds_refused_operators_and_noise_are_said(case: Path) -> None:
    put(
        case,
        json.dumps(
            document(
                shares=[row("not measured", 0.75), row("unexplained", 0.25)], smallest=None, complete=False,
                reason="the time is up", not_covered={"moe": "no <b>kernel</b>"}, stock_again=False,
            )
        ),
    )  # fmt: skip
    found = read_budget(case, [])
    assert found is not None
    notes = " ".join(found.notes)
    for words in ("bounds only", "the time is up", "moe could not be replaced: no <b>kernel</b>", "did not repeat"):
        assert words in notes
    assert found.enough.startswith("No set of operators")
    assert found.plot is not None
    assert draw([found.plot], None)[0][0]["svg"].startswith("<svg")


def test_a_budget_without_shares_says_why(case: Path) -> None:
    put(case, json.dumps(document(shares=[], reason="no token differs: there is nothing to explain")))
    found = read_budget(case, [])
    assert found is not None
    assert found.plot is None
    assert "nothing to explain" in found.summary


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", json.dumps({**document(), "format": "x"}), json.dumps({"format": "logdiff-budget/1"})]
)
def test_a_broken_file_is_told_and_drawn_past(case: Path, tmp_path: Path, content: str) -> None:
    put(case, content)
    missing: list[str] = []
    assert read_budget(case, missing) is None
    assert any("results/budget.json" in words for words in missing)
    page = Path(actions.report(case=case, output=tmp_path / "r.html").data["report"]).read_text()
    assert 'id="budget"' not in page
