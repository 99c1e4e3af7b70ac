"""Two cases on one page: what was, what is, in words and in one figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logdiff import actions


def case(folder: Path, name: str, train: list[float]) -> str:
    rows = [
        {"format": "logdiff-pair/1", "meta": {}},
        {"sample_id": "a", "prompt_token_ids": [1], "response_token_ids": [2, 3, 4, 5],
         "rollout_logprobs": [-1.0, -2.0, -3.0, -4.0], "train_logprobs": train},
    ]  # fmt: skip
    file = folder / f"{name}.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(actions.measure(paths=[file], case=folder / name).data["case"])


def test_the_page_leads_with_both_and_draws_them_together(tmp_path: Path) -> None:
    before = case(tmp_path, "stock", [-1.25, -2.0, -2.5, -4.0])
    now = case(tmp_path, "aligned", [-1.0, -2.0, -3.0, -4.0])
    page = Path(actions.report(case=now, output=tmp_path / "r.html", before=before).data["report"]).read_text()
    header = page.split("</header>")[0]
    assert "Before (stock): Different: 2 of 4 compared tokens (50 %)" in header
    assert "Equal: all 4 compared tokens" in header
    figure = page.split('id="plot-before-after"')[1].split("</figure>")[0]
    assert "before: max |d| 0.500, 50 % of tokens exactly 0" in figure
    assert "now: max |d| 0, 100 % of tokens exactly 0" in figure


def test_a_page_of_one_case_has_no_such_figure(tmp_path: Path) -> None:
    alone = case(tmp_path, "one", [-1.25, -2.0, -2.5, -4.0])
    page = Path(actions.report(case=alone, output=tmp_path / "r.html").data["report"]).read_text()
    assert "plot-before-after" not in page
    assert 'id="before"' not in page


@pytest.mark.parametrize("train", [[-1.0, -2.0, -3.0, -4.0]])
def test_two_equal_cases_are_drawn_without_a_range(tmp_path: Path, train: list[float]) -> None:
    first, second = case(tmp_path, "a", train), case(tmp_path, "b", train)
    page = Path(actions.report(case=second, output=tmp_path / "r.html", before=first).data["report"]).read_text()
    assert "All differences were and are exactly 0" in page
