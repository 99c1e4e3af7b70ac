"""The budget on fake engines: what is asked, how often, within which limits, and what is made of it.

The fake's train side is lower by `sources` of the operators that are stock, so d is their sum at every token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logdiff.live import RunFile, run
from logdiff.localize import budget_run
from logdiff.localize.budget_run import Budget, budget
from logdiff.target import Timeouts

from tests.server.target.fakes import fake_run

FAST = Timeouts(hello=30, start=30, task=30, stop=1.0)
SOURCES = {"rope": 2 / 64, "attention": 1 / 64}
PRESENT = ["linear", "linear_row", "rms_norm", "rope", "swiglu", "attention", "logprob"]


def measured(
    here: Path,
    rollout: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    *,
    align: dict[str, Any] | None = None,
    switchable: bool = False,
    name: str = "c",
    **limits: Any,
) -> tuple[Budget, Path]:
    """The budget of a run of two fake engines, and its case; the same folder again goes on."""
    sides = {"operators": PRESENT, **(rollout or {})}, {"offset": 0.0, "operators": PRESENT, **(train or {})}
    found: list[Budget] = []

    def then(session: Any, _measurement: Any) -> None:
        session.switchable = switchable
        found.append(budget(session, **{"seconds": 60.0, **limits}))

    run_file = RunFile.from_dict(fake_run(here, *sides, align=align or {}))
    case = run(run_file, here / name, timeouts=FAST, then=then)
    return found[0], case.path


def count(here: Path, name: str) -> int:
    path = here / "count" / name
    return len(path.read_text()) if path.is_file() else 0


def shares(found: Budget) -> dict[str, float]:
    return {share.component: share.share for share in found.shares}


def test_shares_are_those_of_the_planted_sources_and_the_smallest_set_gives_zero(here: Path) -> None:
    found, case = measured(here, train={"sources": SOURCES})
    # d = 3/64 with none replaced, 2/64 or 1/64 with one: over both orders rope takes (9-1 + 4-0)/2, attention the rest
    assert shares(found)["rope"] == pytest.approx((9 - 1 + 4) / 2 / 9, abs=1e-5)
    assert shares(found)["attention"] == pytest.approx((9 - 4 + 1) / 2 / 9, abs=1e-5)
    assert sum(shares(found).values()) == 1.0
    assert set(shares(found)) == {*PRESENT, "unexplained"}
    assert found.complete
    assert found.smallest is not None
    assert found.smallest["ops"] == ["rope", "attention"]
    assert (found.smallest["reaches"], found.smallest["mismatched_tokens"]) == ("zero", 0)
    assert found.smallest["time"] == {"rollout": pytest.approx(2.0), "train": pytest.approx(2.0)}
    assert found.smallest["bytes"] == 200
    assert found.details["stock_again"] is True
    document = json.loads((case / "results" / "budget.json").read_text())
    assert document["format"] == "logdiff-budget/1"
    assert [row["component"] for row in document["shares"]][:2] == ["rope", "attention"]
    assert [record.component for record in found.records()] == [row["component"] for row in document["shares"]]


def test_what_no_operator_brings_is_unexplained(here: Path) -> None:
    found, _ = measured(here, train={"sources": {"rope": 1 / 64}, "shift": 1 / 64})
    assert shares(found)["unexplained"] == pytest.approx(1 / 4, abs=1e-5)
    assert shares(found)["rope"] == pytest.approx(3 / 4, abs=1e-5)
    assert found.smallest is not None
    assert (found.smallest["ops"], found.smallest["reaches"]) == (["rope"], "what all leave")


def test_what_is_left_within_the_floor_is_enough(here: Path) -> None:
    floor = {"mean_abs": 1 / 64, "max_abs": 1 / 64}
    found, _ = measured(here, train={"sources": SOURCES}, floor=floor)
    assert found.smallest is not None
    assert (found.smallest["ops"], found.smallest["reaches"]) == (["rope"], "the floor")


def test_a_budget_goes_on_where_it_was_stopped(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = budget_run._Work
    whole, _ = measured(here, train={"sources": SOURCES}, name="whole")
    tasks = count(here, "score")
    stock_passes = 1  # of the run itself
    original, asked = work._pass, []

    def three(self: Any, *arguments: Any, **named: Any) -> Any:
        if len(asked) == 3:
            raise budget_run.LimitError("stopped")
        asked.append(arguments)
        return original(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(work, "_pass", three)
        part, _ = measured(here, train={"sources": SOURCES}, name="part")
    assert not part.complete
    assert part.reason == "stopped"
    again, _ = measured(here, train={"sources": SOURCES}, name="part")
    assert again.complete
    assert shares(again) == shares(whole)
    assert count(here, "score") == tasks + stock_passes + (tasks - stock_passes)  # no pass was made twice
    third, _ = measured(here, train={"sources": SOURCES}, name="part")
    assert count(here, "score") == 2 * tasks
    assert third.details["starts"] == 0
    assert shares(third) == shares(whole)


def test_no_time_leaves_no_shares_but_a_reason(here: Path) -> None:
    found, _ = measured(here, train={"sources": SOURCES}, seconds=0.0)
    assert (found.shares, found.complete) == ([], False)
    assert "the time is up" in str(found.reason)


def test_passes_that_are_too_long_for_the_time_leave_bounds(here: Path) -> None:
    found, _ = measured(here, train={"sources": SOURCES, "seconds": 20.0}, seconds=30.0)
    assert not found.complete
    assert "the time is up" in str(found.reason)
    assert sum(shares(found).values()) == (1.0 if found.shares else 0)


def test_engines_of_the_session_are_used_when_they_can_be_switched_and_are_stock_afterwards(here: Path) -> None:
    found, _ = measured(here, train={"sources": SOURCES}, switchable=True)
    assert found.complete
    assert found.details["switched_in_place"] == {"rollout": True, "train": True}
    assert count(here, "realign") >= 2


def test_a_compiled_engine_is_started_for_each_set_of_operators(here: Path) -> None:
    found, _ = measured(here, {"compiled": True}, {"sources": SOURCES}, max_starts=50)
    assert found.details["switched_in_place"] == {"rollout": False, "train": True}
    assert shares(found)["rope"] == pytest.approx((9 - 1 + 4) / 2 / 9, abs=1e-5)
    assert found.details["starts"] > 8


def test_no_more_engines_are_started_than_are_allowed(here: Path) -> None:
    before = 2  # of the run itself
    found, _ = measured(here, {"compiled": True}, {"sources": SOURCES}, max_starts=4)
    assert count(here, "start-vllm") + count(here, "start-transformers") <= before + 4
    assert "4 engines were started" in str(found.reason)
    assert sum(shares(found).values()) == 1.0
    assert not found.complete


def test_an_operator_that_a_side_cannot_replace_is_named_and_the_others_have_shares(here: Path) -> None:
    found, _ = measured(here, {"uncovered": ["attention"]}, {"sources": SOURCES})
    assert list(found.details["not_covered"]) == ["attention"]
    assert "no aligned operator for attention" in found.details["not_covered"]["attention"]
    assert "attention" not in shares(found)
    assert shares(found)["unexplained"] == pytest.approx(1 / 9, abs=1e-5)  # what attention leaves, d = 1/64 of 3/64
    assert found.smallest is not None
    assert found.smallest["ops"] == ["rope"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_switch_that_changes_nothing_is_no_evidence(here: Path, side: int) -> None:
    """One side's numbers stay the same whatever is replaced; one that does not even answer the switch is worse."""
    sides: list[dict[str, Any]] = [{"still": False}, {"still": False, "sources": SOURCES}]
    sides[side]["still"] = True
    found, _ = measured(here, *sides)
    assert found.shares == []
    assert f"changed no bit of the {('rollout', 'train')[side]} side" in str(found.reason)
    mute, _ = measured(here, {}, {"sources": SOURCES, "mute": True}, name="mute")
    assert mute.shares == []
    assert "does not say that it did" in str(mute.reason)


def test_equal_engines_have_no_budget(here: Path) -> None:
    found, _ = measured(here)
    assert found.shares == []
    assert "nothing to explain" in str(found.reason)


def test_an_aligned_run_has_no_budget_of_stock(here: Path) -> None:
    found, _ = measured(here, align={"ops": "all"})
    assert "aligned already" in str(found.reason)
