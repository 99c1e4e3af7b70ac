"""Exit codes, limits, floor and comparison of two cases."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logdiff.errors import InputError
from logdiff.jsonio import dumps
from logdiff.measure import LIMITABLE, compare, floor_summary, parse_fail_above, self_stats, within_floor
from measure_evidence import Sample, batch_of, measured, noisy

CONTRACT = [
    "tokens",
    "mismatched_tokens",
    "max_abs",
    "mean_abs",
    "mean",
    "p50",
    "p99",
    "k3_kl",
    "mean_exp_d",
    "p90",
    "p999",
    "mean_se",
    "k1_kl",
    "mean_exp_d_se",
    "ess",
    "clip_share",
    "top1_share",
    "pearson",
    "log_ppl_rollout",
    "log_ppl_train",
    "chi2",
    "token_mult_prob_error",
    "rollout_probs_diff_mean",
    "rollout_probs_diff_max",
    "rollout_probs_diff_std",
    "missing",
]


def samples(noise: float = 0.05) -> list[Sample]:
    return noisy(np.random.default_rng(0), [20, 30], noise)


def test_the_result_has_the_fields_of_the_contract_and_is_plain_json() -> None:
    rescored = samples()
    for sample in rescored:
        sample.rescore = list(sample.rollout or [])
    result = measured(rescored).as_dict()
    assert list(result)[:5] == ["format", "gates", "measure", "pairs", "floor"]
    assert result["format"] == "logdiff-measure/1"
    assert set(result["pairs"]) == {"decode_train", "decode_rescore", "rescore_train"}
    for block in (result["measure"], *result["pairs"].values()):
        assert set(CONTRACT) <= set(block)
    assert result["pairs"]["decode_train"] == result["measure"]
    for entry in result["gates"]:
        assert {"gate", "ok", "detail"} <= set(entry)
        assert entry["ok"] in (True, False, None)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_every_field_and_gate_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`_?(\w+)`", text)) | {f"rollout_probs_diff_{s}" for s in ("max", "std")}
    result = measured(samples())
    assert set(result.measure) - named == set()
    assert {gate.gate for gate in result.gates} - named == set()
    assert {"update", "excluded_samples", "by_side", "axes", "without_tokens"} <= named


# -- exit codes and limits


def test_equal_sides_exit_with_zero_and_one_different_bit_with_one() -> None:
    x = [-1.0, -2.0]
    assert measured([Sample(x, x)]).exit_code() == 0
    nearby = [-1.0, float(np.nextafter(np.float32(-2.0), np.float32(0)))]
    assert measured([Sample(x, nearby)]).exit_code() == 1


def test_a_limit_fails_only_when_it_is_exceeded() -> None:
    result = measured([Sample([-1.0, -2.0], [-1.0, -2.5])])  # mean_abs 0.25, one token differs
    assert result.exit_code(parse_fail_above("mean_abs=0.25")) == 0
    assert result.exit_code(parse_fail_above("mean_abs=0.2499")) == 1
    assert result.exit_code(parse_fail_above("mean_abs=1,mismatched=1")) == 0
    assert result.exit_code(parse_fail_above("mean_abs=1, mismatched=0")) == 1
    assert result.exceeded({"mismatched_tokens": 0, "max_abs": 9}) == {"mismatched_tokens": 1.0}


def test_a_signed_number_is_limited_by_its_size() -> None:
    result = measured([Sample([-1.0], [-2.0])])
    assert result.measure["mean"] == -1.0
    assert result.exit_code({"mean": 0.5}) == 1


def test_a_failed_gate_does_not_pass_a_limit() -> None:
    result = measured([Sample([-1.0, 0.5], [-1.0, 0.5])])
    assert result.failed_gates[0].gate == "range"
    assert result.exit_code({"mean_abs": 1.0}) == 1


def test_nothing_compared_passes_no_limit() -> None:
    assert measured([Sample([None], [-1.0])]).exit_code({"mean_abs": 1.0}) == 2


def test_an_undefined_number_exceeds_its_limit() -> None:
    result = measured([Sample([-1.0], [-1.0])])
    assert math.isnan(result.measure["std"])
    assert result.exit_code({"std": 1.0}) == 1


def test_limits_are_read() -> None:
    assert parse_fail_above(" mean_abs=0.01 ,mismatched=0,") == {"mean_abs": 0.01, "mismatched_tokens": 0.0}


@pytest.mark.parametrize(
    "text", ["", ",", "mean_abs", "mean_abs=", "mean_abs=x", "mean_abs=-1", "mean_abs=nan", "speed=1", "p50=1,p50=2"]
)
def test_a_limit_that_can_not_be_read_is_an_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_fail_above(text)


def test_an_unknown_limit_lists_the_names() -> None:
    with pytest.raises(InputError) as caught:
        parse_fail_above("pearson=0.9")
    assert "mean_abs" in caught.value.hint
    assert "mismatched" in caught.value.hint


def test_every_limitable_name_is_a_number_of_the_block() -> None:
    block = measured(samples()).measure
    assert all(isinstance(block[name], (int, float)) for name in LIMITABLE)


# -- floor


def axis(side: str, value: int, noise: float) -> dict[str, Any]:
    batch = batch_of(samples(noise))
    stats = self_stats(batch.logprob["rollout"], batch.logprob["train"], batch.offsets)
    return {"side": side, "axis": "batch", "value": value, **stats}


def test_the_floor_is_the_largest_of_each_figure() -> None:
    axes = [axis("rollout", 1, 0.02), axis("rollout", 2, 0.0), axis("train", 1, 0.01)]
    floor = floor_summary(axes)
    for name in ("mean_abs", "p99", "max_abs", "mismatched_tokens"):
        assert floor[name] == max(a[name] for a in axes)
        assert floor["by_side"]["train"][name] == axes[2][name]
    assert [a["value"] for a in floor["axes"]] == [1, 2, 1]
    assert floor["mean_abs"] == axes[0]["mean_abs"] > 0


def test_an_axis_without_tokens_is_named_and_counts_for_nothing() -> None:
    empty = {"side": "train", "axis": "order", "value": "reversed", "tokens": 0, "mean_abs": math.nan}
    floor = floor_summary([axis("rollout", 1, 0.02), empty])
    assert floor["mean_abs"] > 0
    assert floor["without_tokens"] == ["train/order=reversed"]
    assert "mean_abs" not in floor_summary([empty])
    assert floor_summary([]) == {}


def test_within_the_floor_needs_all_three_figures() -> None:
    block = {"tokens": 10, "mismatched_tokens": 3, "mean_abs": 0.1, "p99": 0.2, "max_abs": 0.3}
    floor = {"mean_abs": 0.1, "p99": 0.2, "max_abs": 0.3}
    assert within_floor(block, floor)
    for name in floor:
        assert not within_floor({**block, name: block[name] + 1e-9}, floor)
        assert not within_floor({**block, name: "nan"}, floor)
    assert not within_floor(block, {})
    assert not within_floor({**block, "tokens": 0}, floor)


def test_bitwise_equality_is_within_every_floor_but_not_without_tokens() -> None:
    block = {"tokens": 10, "mismatched_tokens": 0, "mean_abs": 0.0, "p99": 0.0, "max_abs": 0.0}
    assert within_floor(block, {})
    assert not within_floor({**block, "tokens": 0}, {})


def test_the_floor_stands_beside_the_measurement() -> None:
    floor = floor_summary([axis("rollout", 1, 0.02)])
    assert measured(samples()).with_floor(floor).as_dict()["floor"]["max_abs"] == floor["max_abs"]


def test_a_run_of_other_tokens_is_no_floor() -> None:
    batch = batch_of(samples())
    with pytest.raises(InputError):
        self_stats(batch.logprob["rollout"], batch.logprob["train"][:-1], batch.offsets)


def test_nulls_and_non_finite_values_of_a_floor_run_are_left_out() -> None:
    baseline = np.array([-1, -2, -3, -4], dtype=np.float32)
    other = np.array([-1, -2.5, np.nan, -4], dtype=np.float32)
    stats = self_stats(baseline, other, np.array([0, 2, 4]), sample_ids=["a", "b"])
    assert (stats["tokens"], stats["excluded_samples"], stats["max_abs"]) == (2, 1, 0.5)
    null = np.array([False, True, True, False])
    stats = self_stats(baseline, other, np.array([0, 2, 4]), null_other=null)
    assert (stats["tokens"], stats["missing"], stats["mean_abs"]) == (2, 2, 0.0)
    assert stats["max_abs_at"]["sample_id"] == "0"


# -- comparison


def case(noise: float, version: str, **config: Any) -> dict[str, Any]:
    return {
        "case": f"runs/{version}",
        "result": measured(samples(noise)).as_dict(),
        "meta": {"model": "m"},
        "fingerprints": {"rollout": {"engine": {"name": "vllm", "version": version}, "config": config, "env": {}}},
    }


def test_a_case_against_itself_has_not_changed() -> None:
    assert compare(case(0.05, "1"), case(0.05, "1"))["changed"] == []


def test_versions_configuration_and_numbers_that_changed_are_listed() -> None:
    before, after = case(0.05, "0.31", eager=True, block=16), case(0.1, "0.32", eager=True, block=128)
    after["fingerprints"]["rollout"]["env"] = {"OMP_NUM_THREADS": "2"}
    result = compare(before, after)
    assert result["format"] == "logdiff-compare/1"
    assert result["before"]["case"] == "runs/0.31"
    changed = {entry["what"]: entry for entry in result["changed"]}
    assert changed["rollout.engine.version"] == {
        "what": "rollout.engine.version",
        "before": "0.31",
        "after": "0.32",
    }
    assert (changed["rollout.config.block"]["before"], changed["rollout.config.block"]["after"]) == (16, 128)
    assert changed["rollout.env.OMP_NUM_THREADS"]["before"] is None
    assert "rollout.config.eager" not in changed
    old, new = before["result"]["measure"]["mean_abs"], after["result"]["measure"]["mean_abs"]
    assert changed["measure.mean_abs"]["relative"] == pytest.approx((new - old) / old)
    dumps(result)


def test_a_relative_change_keeps_its_direction_below_zero() -> None:
    before, after = ({"result": measured([Sample([-2.0], [y])]).as_dict()} for y in (-2.5, -2.25))
    changed = {e["what"]: e for e in compare(before, after)["changed"]}
    assert (changed["measure.mean"]["before"], changed["measure.mean"]["after"]) == (-0.5, -0.25)
    assert changed["measure.mean"]["relative"] == 0.5


def test_a_gate_that_turned_and_a_pair_that_vanished_are_listed() -> None:
    good = samples()
    for sample in good:
        sample.rescore = list(sample.rollout or [])
    before = {"result": measured(good).as_dict()}
    bad = samples()
    bad[0].train = [0.5, *list(bad[0].train or [])[1:]]
    changed = {e["what"]: e for e in compare(before, {"result": measured(bad).as_dict()})["changed"]}
    assert (changed["gate.range"]["before"], changed["gate.range"]["after"]) == (True, False)
    assert changed["pairs.decode_rescore"] == {
        "what": "pairs.decode_rescore",
        "before": "measured",
        "after": "absent",
    }
