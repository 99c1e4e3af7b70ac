"""From findings, distances and toggles to one verdict."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff.diagnose.judge import judge
from logdiff.diagnose.known import Known
from logdiff.localize.distance import Distance
from logdiff.localize.finding import CONFIG, OPERATOR, WEIGHTS, Finding
from logdiff.localize.routing import Routing
from logdiff.verdict.records import BudgetShare

MEASURE = {"tokens": 100, "mismatched_tokens": 100, "mean_abs": 0.05, "p99": 0.2, "max_abs": 0.4}
FLOOR = {"mean_abs": 0.001, "p99": 0.01, "max_abs": 0.02}


def _distance(column: str, ratio: float) -> Distance:
    return Distance(column, 0.04 * ratio, 0.03 * ratio, 0.0, 0.2, 100, ratio, ratio, ())


def _known(rollout: float = 1.0, train: float = 1.0, **more: Any) -> Known:
    near = {"decode": _distance("decode", rollout), "prefill": _distance("prefill", rollout)}
    operators = {"checks": [{"side": "rollout", "phase": "decode", "boundary": "layers.0.q", "ok": True}] * 20}
    values = {"operators": operators, "floor": FLOOR, **more}
    return Known(measure=MEASURE, pairs={}, distances={**near, "train": _distance("train", train)}, **values)


def _toggle(side: str, share: float, kind: str = "modules") -> dict[str, Any]:
    return {"side": side, "kind": kind, "removed": f"{kind} x", "before_ms": 1.0, "after_ms": 1 - share,
            "share": share, "z": 10 * share}  # fmt: skip


NORM = Finding("framework-implementation", "norm-eps", "rollout", "layers.1.input_layernorm", 0.97, OPERATOR, "eps")


def test_bitwise_equality_is_none() -> None:
    known = _known()
    known.measure = {**MEASURE, "mismatched_tokens": 0}
    found = judge(known)
    assert (found.verdict.class_, found.exit_code) == ("none", 0)


def test_within_the_floor_is_none() -> None:
    assert judge(_known(floor=dict.fromkeys(FLOOR, 1.0))).verdict.class_ == "none"


def test_a_side_that_is_off_is_not_excused_by_a_large_floor() -> None:
    assert judge(_known(train=6.0, floor=dict.fromkeys(FLOOR, 1.0))).verdict.class_ == "framework-implementation"


def test_operators_within_rounding_on_both_sides_are_operator() -> None:
    found = judge(_known())
    assert (found.verdict.class_, found.verdict.side, found.verdict.path) == ("operator", "both", "operator")


def test_without_any_experiment_it_is_undetermined() -> None:
    found = judge(Known(measure=MEASURE, floor=FLOOR, pairs={}))
    assert found.verdict.class_ == "undetermined"


def test_an_operator_that_is_off_leads_when_the_side_is_off() -> None:
    found = judge(_known(rollout=4.0, findings=[NORM]))
    assert (found.verdict.cause, found.verdict.side) == ("norm-eps", "rollout")


def test_a_toggle_that_moves_the_number_raises_confidence() -> None:
    without = judge(_known(rollout=4.0, findings=[NORM]))
    proven = judge(_known(rollout=4.0, findings=[NORM], toggles=[_toggle("rollout", 0.95)]))
    assert proven.verdict.confidence > without.verdict.confidence
    assert any("was started without" in e.claim for e in proven.evidence)


def test_a_fault_that_moves_nothing_is_a_candidate_behind_rounding() -> None:
    found = judge(_known(findings=[NORM], toggles=[_toggle("rollout", 0.01)]))
    assert found.verdict.class_ == "operator"
    assert any(c.cause == "norm-eps" for c in found.candidates)


def test_other_weights_lead_even_where_they_move_little() -> None:
    weights = Finding("weights", "weights-changed", "train", "layers.0.mlp.up_proj.weight", 0.99, WEIGHTS, "other")
    found = judge(_known(findings=[weights]))
    assert (found.verdict.class_, found.verdict.side) == ("weights", "train")


def test_an_operator_that_reads_another_weight_is_not_a_second_fault() -> None:
    weights = Finding("weights", "weights-changed", "train", "layers.0.mlp.up_proj.weight", 0.99, WEIGHTS, "other")
    reads = Finding("framework-implementation", None, "train", "layers.0.mlp.up_proj", 0.9, OPERATOR, "off")
    found = judge(_known(train=5.0, findings=[reads, weights]))
    assert found.verdict.class_ == "weights"
    assert [c.class_ for c in found.candidates if c.score > 0.3] == ["weights"]


def test_an_operator_that_follows_from_a_configuration_key_is_not_a_second_fault() -> None:
    key = Finding("framework-config", "norm-eps", "rollout", "rms_norm_eps", 0.95, CONFIG, "eps is 1e-5 on rollout")
    found = judge(_known(rollout=4.0, findings=[NORM, key]))
    assert (found.verdict.class_, found.verdict.component) == ("framework-config", "rms_norm_eps")
    assert len([c for c in found.candidates if c.cause == "norm-eps"]) == 1


@pytest.mark.parametrize(("kind", "class_"), [("modules", "framework-implementation"), ("args", "framework-config")])
def test_what_was_left_out_says_whether_it_was_configuration(kind: str, class_: str) -> None:
    found = judge(_known(rollout=4.0, findings=[NORM], toggles=[_toggle("rollout", 0.9, kind)]))
    assert found.verdict.class_ == class_


def test_a_side_that_is_off_without_a_place_is_named_with_less_confidence() -> None:
    found = judge(_known(train=5.0))
    assert (found.verdict.class_, found.verdict.side, found.verdict.cause) == (
        "framework-implementation",
        "train",
        None,
    )
    assert found.verdict.confidence < 0.9


def test_flips_that_carry_the_mismatch_are_routing() -> None:
    flips = Routing(100, 20, 400, 25, 0.8, 0.3, 0.02, 2)
    found = judge(_known(routing=flips))
    assert (found.verdict.class_, found.verdict.cause) == ("routing", "router-near-ties")
    assert judge(_known(routing=Routing(100, 20, 400, 25, 0.2, 0.05, 0.05, 2))).verdict.class_ == "operator"


@pytest.mark.parametrize("flips", [None, Routing(100, 20, 400, 25, 0.8, 0.3, 0.02, 2)])
def test_the_statement_claims_no_operator_that_was_not_judged(flips: Routing | None) -> None:
    off = {"side": "rollout", "phase": "decode", "boundary": "layers.1.input_norm", "ok": False}
    right = [{"side": "rollout", "phase": "decode", "boundary": "layers.0.q", "ok": True}] * 20
    none = judge(_known(operators={}, routing=flips))
    assert "no operator was looked into" in none.verdict.statement
    assert not any("operators off" in e.claim for e in none.evidence)
    small = judge(_known(operators={"checks": [*right, off]}, routing=flips, findings=[NORM]))
    assert "20 of 21 operators" in small.verdict.statement
    assert "all 20 operators" in judge(_known(routing=flips)).verdict.statement


def test_what_was_not_looked_at_lowers_confidence_and_is_named() -> None:
    whole, part = judge(_known()), judge(_known(skipped=[("rollout/decode", "no time")]))
    assert part.verdict.confidence < whole.verdict.confidence
    assert any("rollout/decode" in n.what for n in part.next_experiments)


def test_the_argument_that_moves_the_number_is_the_component_where_no_variant_fits() -> None:
    odd = Finding("framework-implementation", None, "rollout", "layers.*.self_attn.attention", 0.88, OPERATOR, "off")
    toggle = {**_toggle("rollout", 0.9, "args"), "removed": "args kv_cache_dtype"}
    found = judge(_known(rollout=9.0, findings=[odd], toggles=[toggle])).verdict
    assert (found.class_, found.cause, found.component) == ("framework-config", "kv-cache-dtype", "kv_cache_dtype")


def test_a_side_in_another_dtype_is_the_answer_where_no_side_is_off() -> None:
    dtype = Finding("framework-config", "dtype-differs", "train", "dtype", 0.9, CONFIG, "dtype is float32 on train")
    found = judge(_known(train=0.1, findings=[dtype])).verdict
    assert (found.class_, found.side, found.component) == ("framework-config", "train", "dtype")
    off = judge(_known(rollout=9.0, train=0.1, findings=[dtype])).verdict
    assert off.component != "dtype"


@pytest.mark.parametrize(("own", "class_"), [([], "undetermined"), (["train"], "operator")])
def test_what_alignment_leaves_is_a_riddle_unless_modules_stand_in_its_way(own: list[str], class_: str) -> None:
    budget = [BudgetShare("linear", 0.4, 0.3, 0.5), BudgetShare("unexplained", 0.6, 0.5, 0.7)]
    found = judge(_known(budget=budget, own=own)).verdict
    assert found.class_ == class_
    assert found.confidence < 0.8
