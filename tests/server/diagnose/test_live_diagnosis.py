"""A diagnosis of fake engines from the run file to the sealed case: what is started, what moves, when it stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logdiff.case import Case
from logdiff.diagnose.live import diagnose_run
from logdiff.errors import CancelledError
from logdiff.live import RunFile
from logdiff.target.timeouts import Timeouts
from logdiff.verdict.records import Diagnosis

from tests.server.target.fakes import fake_run

QUICK = Timeouts(hello=30, start=30, task=30, stop=3)


def _diagnose(here: Path, run: dict[str, Any], **more: Any) -> tuple[Diagnosis, Case]:
    loaded = RunFile.from_dict(run, base=here)
    return diagnose_run(loaded, here / "case", source="run.yaml", timeouts=QUICK, **more)


def _starts(case: Case) -> int:
    return sum(1 for record in case.journal.read() if record["event"] == "engine_starting")


def test_the_side_with_the_odd_argument_is_found_and_proven(here: Path) -> None:
    found, case = _diagnose(here, fake_run(here))
    assert (found.verdict.class_, found.verdict.side) == ("framework-config", "train")
    assert "offset" in str(found.verdict.component)
    toggle = found.extra["toggles"][0]
    assert toggle["before_ms"] == pytest.approx(0.25**2)
    assert toggle["after_ms"] == pytest.approx(0.0)
    assert case.is_complete
    assert json.loads((case.path / "results/verdict.json").read_text()) == found.as_dict()


def test_equal_sides_are_none_and_start_nothing_more(here: Path) -> None:
    found, case = _diagnose(here, fake_run(here, train={"offset": 0.0}))
    assert (found.verdict.class_, found.exit_code) == ("none", 0)
    assert _starts(case) == 2


def test_both_sides_off_by_their_dtype_are_operator_when_replacing_them_leaves_nothing(here: Path) -> None:
    run = fake_run(here, {"sources": {"linear": 1 / 128}}, {"offset": 0.0, "sources": {"linear": -1 / 128}})
    found, _ = _diagnose(here, run)
    assert (found.verdict.class_, found.verdict.side, found.verdict.component) == ("operator", "both", "linear")
    assert not found.extra["toggles"]
    assert sum(entry.share for entry in found.budget) == 1.0
    assert found.extra["sufficient"]["ops"] == ["linear"]


def test_what_no_operator_explains_is_not_called_rounding(here: Path) -> None:
    found, _ = _diagnose(here, fake_run(here, {"offset": 1 / 128}, {"offset": -1 / 128}))
    assert found.verdict.class_ == "undetermined"
    assert "no operator explains" in found.verdict.statement


def test_no_engine_is_started_beyond_the_limit(here: Path) -> None:
    found, case = _diagnose(here, fake_run(here), max_starts=2)
    assert _starts(case) == 2
    assert found.verdict.side == "train"
    assert any("engine start" in entry["why"] for entry in found.extra["skipped"])


def test_time_that_is_up_leaves_a_verdict(here: Path) -> None:
    found, case = _diagnose(here, fake_run(here), max_seconds=0.0)
    assert found.verdict.class_ in ("undetermined", "framework-implementation")
    assert found.next_experiments
    assert case.is_complete


def test_a_second_call_on_the_case_does_what_was_left_and_nothing_again(here: Path) -> None:
    _diagnose(here, fake_run(here), max_starts=2)
    before = (here / "count" / "score").read_text()
    found, _ = _diagnose(here, fake_run(here))
    assert found.extra["toggles"]
    after = (here / "count" / "score").read_text()
    assert len(after) == len(before) + 1  # the plain side alone


def test_an_experiment_that_fails_is_named_and_does_not_end_it(here: Path) -> None:
    found, _ = _diagnose(here, fake_run(here, train={"captures": True, "exit_at": "capture"}))
    assert found.verdict.side == "train"
    assert any(entry["what"] == "train/score" for entry in found.extra["skipped"])


@pytest.mark.parametrize("task", ["reference", "check_operators"])
def test_a_process_beside_the_model_that_dies_is_named_and_does_not_end_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setenv("FAKE_DIES_AT", task)
    run = fake_run(here, rollout={"captures": True}, train={"captures": True})
    found, case = _diagnose(here, run)
    assert found.verdict.class_ != "none"
    names = {"reference": "reference", "check_operators": "operator checks"}
    assert any(entry["what"] == names[task] for entry in found.extra["skipped"])
    assert case.is_complete


def test_cancelling_ends_it(here: Path) -> None:
    import threading

    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledError):
        _diagnose(here, fake_run(here), cancel_token=cancel)
