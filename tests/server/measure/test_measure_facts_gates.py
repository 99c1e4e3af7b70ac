"""Weights and configuration of both sides, as live runs and pair headers tell them."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff.measure import Gate, RunFacts
from measure_evidence import Sample, gate, measured


def weights(**sums: str) -> dict[str, Any]:
    tensors = {
        name.replace("__", "."): {"dtype": "bfloat16", "shape": [4, 2], "sum": s, "as": {}, "how": "memory"}
        for name, s in sums.items()
    }
    return {"format": "logdiff-weights/1", "tensors": tensors, "tied": {}, "not_covered": [], "quantization": None}


def judged(name: str, facts: RunFacts | None = None, **meta: Any) -> Gate:
    found: Gate = gate(measured([Sample([-1.0, -2.0], [-1.5, -2.0])], facts=facts, **meta), name)
    return found


def weights_of(rollout: dict[str, Any], train: dict[str, Any]) -> Gate:
    return judged("weights", RunFacts(weights={0: {"rollout": rollout, "train": train}}))


# -- weights


def test_weights_of_a_pair_file_are_not_measured() -> None:
    assert judged("weights").ok is None


def test_equal_checksums_hold() -> None:
    found = weights_of(weights(a="1", b="2"), weights(b="2", a="1"))
    assert found.ok is True
    assert "2 tensors equal" in found.detail


def test_a_different_tensor_is_named() -> None:
    found = weights_of(weights(model__a="1", b="2"), weights(model__a="9", b="2"))
    assert found.ok is False
    assert "model.a" in found.detail
    assert found.data["different"] == 1


def test_a_missing_tensor_is_named_with_its_side() -> None:
    found = weights_of(weights(a="1"), weights(a="1", lm_head="2"))
    assert found.ok is False
    assert "lm_head (not on rollout)" in found.detail


def test_another_shape_is_a_difference() -> None:
    other = weights(a="1")
    other["tensors"]["a"]["shape"] = [2, 4]
    assert weights_of(weights(a="1"), other).ok is False


@pytest.mark.parametrize("tied_side", ["rollout", "train"])
def test_a_tied_head_is_followed(tied_side: str) -> None:
    tied, apart = weights(embed="7"), weights(embed="7", lm_head="7")
    tied["tied"] = {"lm_head": "embed"}
    sides = (tied, apart) if tied_side == "rollout" else (apart, tied)
    assert weights_of(*sides).ok is True
    apart["tensors"]["lm_head"]["sum"] = "8"
    assert weights_of(*sides).ok is False


def test_a_float32_master_is_compared_at_the_width_of_its_copy() -> None:
    master = weights(a="long")
    master["tensors"]["a"].update(dtype="float32", **{"as": {"bfloat16": "1"}})
    assert weights_of(weights(a="1"), master).ok is True
    assert weights_of(weights(a="2"), master).ok is False
    del master["tensors"]["a"]["as"]
    assert weights_of(weights(a="1"), master).ok is None


@pytest.mark.parametrize(("key", "value"), [("quantization", "fp8"), ("adapters", ["lora-1"])])
def test_quantised_or_adapted_sides_are_not_comparable_and_say_why(key: str, value: Any) -> None:
    special = weights(a="1")
    special[key] = value
    found = weights_of(special, weights(a="1"))
    assert found.ok is None
    assert "not comparable" in found.detail
    assert ("fp8" if key == "quantization" else "lora-1") in found.detail


def test_a_tensor_that_could_not_be_read_leaves_the_gate_open() -> None:
    partial = weights(a="1")
    partial["not_covered"] = [{"name": "b", "why": "packed"}]
    found = weights_of(partial, weights(a="1", b="2"))
    assert found.ok is None
    assert "b (rollout: packed)" in found.detail


def test_a_probed_product_is_compared_with_a_probed_product_only() -> None:
    probed = weights(a="1")
    probed["tensors"]["a"]["how"] = "probe"
    assert weights_of(probed, weights(a="1")).ok is None
    assert weights_of(probed, probed).ok is True


def test_no_tensor_at_all_is_no_equality() -> None:
    assert weights_of(weights(), weights()).ok is False


def test_every_step_is_compared_and_named() -> None:
    sides = {"rollout": weights(a="1"), "train": weights(a="1")}
    stale = {"rollout": weights(a="1"), "train": weights(a="2")}
    found = judged("weights", RunFacts(weights={0: sides, 1: stale}))
    assert found.ok is False
    assert "step 1: a" in found.detail
    assert judged("update", RunFacts(weights={0: sides, 1: stale})).ok is True


def test_a_step_without_a_side_leaves_the_gate_open() -> None:
    sides = {"rollout": weights(a="1"), "train": weights(a="1")}
    found = judged("weights", RunFacts(weights={0: sides, 1: {"train": weights(a="2")}}))
    assert found.ok is None
    assert "step 1: no checksums of rollout" in found.detail


def test_an_update_that_changed_nothing_does_not_test_the_sync() -> None:
    sides = {"rollout": weights(a="1"), "train": weights(a="1")}
    found = judged("update", RunFacts(weights={0: sides, 1: sides}))
    assert found.ok is None
    assert found.data == {"unchanged_steps": [1]}


# -- configuration


def prints(rollout: dict[str, Any], train: dict[str, Any]) -> RunFacts:
    return RunFacts(fingerprints={"rollout": rollout, "train": train})


def effective(rollout: dict[str, Any], train: dict[str, Any]) -> Gate:
    return judged("config", prints({"effective": rollout}, {"effective": train}))


def test_an_unknown_configuration_is_not_measured() -> None:
    assert judged("config").ok is None


def test_equal_configurations_hold() -> None:
    side = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "logprobs_mode": "processed_logprobs", "dtype": "bfloat16"}
    found = effective(side, side)
    assert found.ok is True
    assert "temperature" in found.detail


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_temperature_one_is_the_same_quantity_in_every_mode(mode: str) -> None:
    assert judged("config", temperature=1.0, logprobs_mode=mode).ok is True


def test_raw_values_at_another_temperature_fail() -> None:
    found = judged("config", temperature=0.6, logprobs_mode="raw_logprobs")
    assert found.ok is False
    assert "raw log-probabilities at temperature 0.6" in found.detail
    assert "processed_logprobs" in found.detail  # the way out


def test_raw_values_hold_where_the_trainer_scores_at_one() -> None:
    found = effective({"temperature": 0.6, "logprobs_mode": "raw_logprobs"}, {"temperature": 1.0})
    assert found.ok is True
    assert "sampled at temperature 0.6" in found.detail


def test_different_temperatures_fail() -> None:
    side = {"logprobs_mode": "processed_logprobs"}
    assert effective({**side, "temperature": 0.6}, {"temperature": 1.0}).ok is False
    assert effective({**side, "temperature": 0.6}, {"temperature": 0.6}).ok is True


def test_greedy_counts_as_temperature_one() -> None:
    assert effective({"temperature": 0, "logprobs_mode": "raw_logprobs"}, {"temperature": 1.0}).ok is True


def test_an_unknown_mode_at_another_temperature_stays_open() -> None:
    assert judged("config", temperature=0.6).ok is None


@pytest.mark.parametrize("truncation", [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}, {"repetition_penalty": 1.1}])
def test_truncation_with_processed_values_fails(truncation: dict[str, float]) -> None:
    found = judged("config", temperature=1.0, logprobs_mode="processed_logprobs", **truncation)
    assert found.ok is False
    assert next(iter(truncation)) in found.detail
    raw = judged("config", temperature=1.0, logprobs_mode="raw_logprobs", **truncation)
    assert raw.ok is True
    assert "another law" in raw.detail
    assert judged("config", temperature=1.0, **truncation).ok is None


@pytest.mark.parametrize("idle", [{"top_p": 1.0}, {"top_k": -1}, {"top_k": 0}, {"min_p": 0.0}])
def test_switched_off_truncation_holds(idle: dict[str, float]) -> None:
    assert judged("config", temperature=1.0, logprobs_mode="processed_logprobs", **idle).ok is True


def test_a_side_that_reports_logits_fails() -> None:
    assert judged("config", temperature=1.0, logprobs_mode="processed_logits").ok is False


def test_model_keys_that_change_the_function_fail_by_name() -> None:
    left = {"rope_parameters": {"rope_theta": 10000.0}, "sliding_window": 127, "use_cache": True, "hidden_size": 64}
    right = {"rope_parameters": {"rope_theta": 1e6}, "sliding_window": 128, "use_cache": False, "hidden_size": 64}
    found = judged("config", prints({"model": left}, {"model": right}))
    assert found.ok is False
    assert "model rope_parameters.rope_theta: 10000 on rollout, 1000000 on train" in found.detail
    assert "model sliding_window: 127 on rollout, 128 on train" in found.detail
    assert "use_cache" not in found.detail


def test_a_model_key_known_on_one_side_alone_is_a_note() -> None:
    left = {"hidden_size": 64}
    found = judged("config", prints({"model": left}, {"model": {**left, "norm_topk_prob": True}}))
    assert found.ok is True
    assert "model keys known on train alone: norm_topk_prob" in found.detail


def test_the_trainers_scored_temperature_counts_before_the_one_asked_for() -> None:
    rollout = {"temperature": 0.6, "logprobs_mode": "processed_logprobs"}
    assert effective(rollout, {"temperature": 0.6, "scored_temperature": 1.0}).ok is False
    assert effective(rollout, {"temperature": 1.0, "scored_temperature": 0.6}).ok is True


def test_legitimate_differences_are_notes() -> None:
    left, right = {"effective": {"dtype": "bfloat16"}}, {"effective": {"dtype": "torch.float32"}}
    left["vocab_size"] = right["vocab_size"] = 64  # type: ignore[assignment]
    found = judged("config", prints(left, right))
    assert found.ok is True
    assert "dtype bfloat16 on rollout, float32 on train" in found.detail


def test_another_vocabulary_fails() -> None:
    assert judged("config", prints({"vocab_size": 64}, {"vocab_size": 65})).ok is False


def test_the_header_of_a_pair_file_counts_where_nothing_better_is_known() -> None:
    found = judged(
        "config",
        logprobs_mode="processed_logprobs",
        rollout={"engine": "vllm", "config": {"temperature": 0.7}},
        train={"engine": "fsdp", "config": {"temperature": 1.0}},
    )
    assert found.ok is False
    assert "temperature 0.7 on rollout, temperature 1.0 on train" in found.detail


@pytest.mark.parametrize(
    "meta",
    [
        {"temperature": 10**400},
        {"top_k": 10**400, "logprobs_mode": "processed_logprobs"},
        {"rollout": {"config": {"vocab_size": -(10**400)}}, "train": {"config": {"vocab_size": 5}}},
        {"rollout": {"config": {"eos_token_ids": [1, "a", None]}}, "train": {"config": {"eos_token_ids": [2]}}},
    ],
)
def test_no_header_fact_crashes_the_gate(meta: dict[str, Any]) -> None:
    assert judged("config", **meta).gate == "config"
