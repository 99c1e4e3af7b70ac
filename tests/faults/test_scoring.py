"""How verdicts are scored: what counts as right, what as blame, and when the bars hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import check, peers
from tests.faults.fault import Fault, Made
from tests.faults.judge import judge
from tests.faults.summary import calibration, plot, summarise, text


def _fault(**more: Any) -> Fault:
    values = {
        "name": "f",
        "label": "weights",
        "classes": ("weights",),
        "causes": ("weights-stale",),
        "sides": ("rollout",),
        "components": ("*layers.{layer}.*",),
        "kind": "pairs",
        "build": lambda seed, folder: Made([]),
    }
    return Fault(**(values | more))


def _answer(found: str, cause: str | None = None, **more: Any) -> dict[str, Any]:
    verdict = {"class": found, "cause": cause, "side": "rollout", "component": "layers.2.q", "confidence": 0.9}
    answer: dict[str, Any] = {"format": "logdiff-verdict/1", "candidates": [], "next_experiments": []}
    return answer | more | {"verdict": verdict | more.get("verdict", {})}


def test_a_right_answer_is_right_in_everything() -> None:
    judged = judge(_fault(), ["*layers.2.*"], _answer("weights", "weights-stale"), "")
    assert (judged.right_class, judged.first, judged.in_three, judged.side, judged.component) == (True,) * 5
    assert judged.reason == ""


def test_another_layer_is_a_wrong_component_alone() -> None:
    judged = judge(_fault(), ["*layers.3.*"], _answer("weights", "weights-stale"), "")
    assert judged.right_class
    assert judged.component is False


def test_a_cause_among_the_first_three_is_not_a_cause_first() -> None:
    candidates = [{"cause": name, "class": "weights"} for name in ("a", "b", "weights-stale")]
    judged = judge(_fault(), [], _answer("weights", "a", candidates=candidates), "")
    assert (judged.first, judged.in_three) == (False, True)
    fourth = [{"cause": name, "class": "weights"} for name in ("a", "b", "c", "weights-stale")]
    assert judge(_fault(), [], _answer("weights", "a", candidates=fourth), "").in_three is False


def test_undetermined_is_right_only_where_the_evidence_is_open_and_the_answer_helps() -> None:
    experiment = [{"what": "compare checksums"}]
    assert not judge(_fault(), [], _answer("undetermined", next_experiments=experiment), "").right_class
    judged = judge(_fault(open=True), [], _answer("undetermined", next_experiments=experiment), "")
    assert judged.right_class
    assert judged.honest
    assert (judged.first, judged.in_three, judged.side) == (None, None, None)
    assert not judge(_fault(open=True), [], _answer("undetermined"), "").right_class


def test_a_failed_gate_needs_no_cause_where_it_is_right() -> None:
    judged = judge(_fault(classes=("weights", "invalid-evidence")), [], _answer("invalid-evidence"), "")
    assert (judged.right_class, judged.honest, judged.first) == (True, True, None)
    assert not judge(_fault(), [], _answer("invalid-evidence"), "").right_class


@pytest.mark.parametrize(
    ("found", "blamed"),
    [("operator", False), ("undetermined", False), ("weights", True), ("none", True), ("framework-config", True)],
)
def test_a_control_is_blamed_by_any_claim_that_is_not_true_of_it(found: str, blamed: bool) -> None:
    control = _fault(label="operator", classes=("operator",), causes=(), sides=(), control=True)
    assert judge(control, [], _answer(found), "").false_attribution is blamed


def test_no_answer_is_a_miss_that_says_why() -> None:
    judged = judge(_fault(), [], {"format": "logdiff-error/1"}, "exit 3")
    assert (judged.right_class, judged.first, judged.reason) == (False, False, "exit 3")


def _row(name: str, judged: dict[str, Any], *, control: bool = False, **more: Any) -> dict[str, Any]:
    row = {
        "name": name,
        "label": "weights",
        "control": control,
        "judged": judged,
        "seconds": 10.0,
        "starts": 2,
        "over_limit": False,
        "peers": peers.flags({"rollout_probs_diff_mean": 0.02, "token_mult_prob_error": 1.01}),
    }
    return row | more


def _rows() -> list[dict[str, Any]]:
    right = judge(_fault(), [], _answer("weights", "weights-stale"), "").as_dict()
    control = _fault(label="operator", classes=("operator",), causes=(), sides=(), control=True)
    return [
        *(_row(f"f{n}", right) for n in range(19)),
        _row("c", judge(control, [], _answer("operator"), "").as_dict(), control=True),
    ]


def test_the_bars_hold_for_right_answers_and_break_one_by_one() -> None:
    rows = _rows()
    assert summarise(rows, 20)["holds"]
    assert not summarise(rows, 21)["holds"]
    assert not summarise([*rows[:-1], rows[-1] | {"over_limit": True}], 20)["holds"]
    blamed = rows[-1]["judged"] | {"false_attribution": True}
    assert summarise([*rows[:-1], rows[-1] | {"judged": blamed}], 20)["false_attributions"] == ["c"]
    wrong = judge(_fault(), [], _answer("data", "ids-differ"), "").as_dict()
    two = [_row(f"w{n}", wrong) for n in range(2)]
    summary = summarise([*rows, *two], 22)
    assert summary["figures"]["class"] == {"right": 19, "of": 21, "share": 19 / 21}
    assert not summary["bars"]["class"]
    assert [miss["name"] for miss in summary["misses"]] == ["w0", "w1"]


def test_calibration_sets_confidence_against_truth() -> None:
    rows = _rows()[:4]
    rows[0]["judged"] = rows[0]["judged"] | {"first": False}
    (filled,) = (row for row in calibration(rows) if row["verdicts"])
    assert (filled["low"], filled["verdicts"], filled["right"]) == (0.9, 4, 0.75)
    assert filled["confidence"] == pytest.approx(0.9)


def test_the_peers_answer_yes_or_no_on_faults_and_controls() -> None:
    table = summarise(_rows(), 20)["peers"]
    assert table["verl"]["faults"] == {"called": 19, "of": 19}
    assert table["verl"]["controls"] == {"called": 1, "of": 1}
    assert table["nemo-rl"]["faults"] == {"called": 0, "of": 19}
    assert peers.flags({"rollout_probs_diff_mean": "nan"}) == {"verl": True, "nemo-rl": None}
    assert peers.flags(None) == {"verl": None, "nemo-rl": None}


@pytest.mark.parametrize(("after", "there"), [(0.29, False), (0.31, True)])
def test_a_live_fault_is_there_from_three_times_its_stock_difference(after: float, there: bool) -> None:
    stock, faulty = ({"measure": {"mean_abs": value}, "failed_gates": []} for value in (0.1, after))
    assert check.verdict(_fault(), stock, faulty)["there"] is there
    assert check.verdict(_fault(above=0.0), stock, faulty)["there"] is None
    assert check.verdict(_fault(), stock, {"error": "EngineError: no"})["there"] is False


def test_a_summary_is_text_and_a_picture(tmp_path: Path) -> None:
    summary = summarise(_rows(), 20)
    assert "weights" in text(summary)
    assert "19/19" in text(summary)
    plot(summary, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
