"""Each gate holds on healthy evidence, fails on its own fault, and takes out what can't be compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from logdiff.measure import RunFacts
from measure_evidence import Sample, gate, measured, noisy


def healthy(**columns: Any) -> list[Sample]:
    return noisy(np.random.default_rng(0), [6, 9, 4], **columns)


def test_healthy_evidence_fails_no_gate() -> None:
    samples = healthy()
    for sample in samples:
        sample.train_ids = [*sample.prompt, *sample.ids]
    result = measured(samples, vocab_size=100, tokenizer_size=60)
    assert result.failed_gates == []
    holding = {"ids", "lengths", "masks", "duplicates", "vocabulary", "finite", "range", "coverage", "bypass"}
    assert {g.gate for g in result.gates if g.ok} == holding
    assert result.samples == {"total": 3, "compared": 3, "excluded": 0, "empty": 0, "masked": 0}


# -- ids


def test_ids_without_the_trainers_ids_are_not_measured() -> None:
    assert gate(measured(healthy()), "ids").ok is None


def test_ids_name_the_first_difference_and_leave_the_sample_out() -> None:
    samples = healthy()
    for sample in samples:
        sample.train_ids = [*sample.prompt, *sample.ids]
    changed = list(samples[1].train_ids or [])
    changed[5] = 77
    samples[1].train_ids = changed
    result = measured(samples, cuts=[1])
    found = gate(result, "ids")
    assert found.ok is False
    assert "'s1'" in found.detail
    assert "response position 3: sampled 8, scored 77" in found.detail
    assert result.measure["tokens"] == 10
    assert result.samples["excluded"] == 1


def test_ids_of_another_prompt_are_seen_even_where_the_response_agrees() -> None:
    samples = healthy()
    samples[0].train_ids = [1, 9, *samples[0].ids]
    assert "prompt position 1: sampled 2, scored 9" in gate(measured(samples), "ids").detail


def test_a_dropped_id_shows_both_lengths() -> None:
    samples = healthy()
    samples[0].train_ids = [*samples[0].prompt, *samples[0].ids][:-1]
    assert "8 ids sampled, 7 scored" in gate(measured(samples), "ids").detail


# -- lengths and masks


@pytest.mark.parametrize(("side", "change"), [("rollout", 1), ("rollout", -1), ("train", 1), ("train", -1)])
def test_unequal_lengths_are_named_and_left_out(side: str, change: int) -> None:
    samples = healthy()
    column = list(getattr(samples[2], side))
    setattr(samples[2], side, [*column, -1.0] if change > 0 else column[:-1])
    samples[2].response = [5, 6, 7, 8]
    result = measured(samples)
    found = gate(result, "lengths")
    assert found.ok is False
    assert f"'s2': 4 response tokens, {4 + change} on {side}" in found.detail
    assert result.measure["tokens"] == 15
    assert result.exit_code() == 1


def test_a_wrong_length_of_the_rescore_spoils_its_pairs_only() -> None:
    samples = healthy()
    for sample in samples:
        sample.rescore = list(sample.train or [])
    samples[0].rescore = list(samples[0].rescore or [])[:-1]
    result = measured(samples)
    assert gate(result, "lengths").ok is False
    assert result.measure["tokens"] == 19
    assert result.pairs["decode_rescore"] is not None
    assert result.pairs["decode_rescore"]["tokens"] == 13


def test_a_mask_of_the_wrong_length_fails() -> None:
    samples = healthy()
    samples[0].mask = [1, 1, 1]
    result = measured(samples)
    assert gate(result, "masks").ok is False
    assert "6 response tokens, a mask of 3" in gate(result, "masks").detail
    assert result.measure["tokens"] == 13


def test_an_empty_or_masked_sample_among_healthy_ones_is_counted_and_left_out() -> None:
    samples = [*healthy(), Sample([], [], response=[]), Sample([-1.0, -2.0], [-1.0, -2.5], mask=[0, 0])]
    result = measured(samples, cuts=[3, 4])
    assert gate(result, "masks").ok is True
    assert result.samples == {"total": 5, "compared": 3, "excluded": 0, "empty": 1, "masked": 1}
    assert result.failed_gates == []


def test_evidence_that_is_masked_as_a_whole_proves_nothing() -> None:
    result = measured([Sample([-1.0], [-1.0], mask=[0]), Sample([], [], response=[])])
    assert gate(result, "masks").ok is False
    assert gate(result, "coverage").ok is False
    assert result.exit_code() == 2


def test_no_sample_at_all_proves_nothing() -> None:
    result = measured([])
    assert not result.comparable
    assert {"lengths", "masks", "coverage"} <= {g.gate for g in result.failed_gates}
    assert result.exit_code() == 2
    assert math.isnan(result.measure["mean_abs"])


# -- duplicates


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2, 3]])
def test_a_repeated_sample_is_measured_once(cuts: list[int]) -> None:
    samples = healthy()
    samples.append(Sample([-1.0] * 5, [-3.0] * 5, sample_id="s1"))
    result = measured(samples, cuts=cuts)
    found = gate(result, "duplicates")
    assert found.ok is False
    assert "'s1'" in found.detail
    assert result.measure["tokens"] == 19
    assert result.measure["max_abs"] < 1


def test_the_same_sample_at_another_step_or_rank_is_no_repeat() -> None:
    samples = [
        Sample([-1.0], [-1.0], sample_id="a", step=step, rank=rank) for step in (0, 1, 11) for rank in (0, 1, 11)
    ]
    assert gate(measured(samples, cuts=[2, 5]), "duplicates").ok is True


def test_repeats_are_found_among_many_samples_in_many_batches() -> None:
    samples = [Sample([-1.0], [-1.0], sample_id=f"n{i % 900}") for i in range(1000)]
    result = measured(samples, cuts=list(range(0, 1000, 7)))
    assert gate(result, "duplicates").data == {"repeated": 100}
    assert result.measure["tokens"] == 900


# -- vocabulary


def test_an_id_beyond_the_vocabulary_is_named_and_left_out() -> None:
    samples = healthy()
    samples[1].response = [5, 6, 7, 100, 9, 9, 9, 9, 9]
    result = measured(samples, vocab_size=100)
    found = gate(result, "vocabulary")
    assert found.ok is False
    assert "'s1', response position 3: id 100" in found.detail
    assert result.measure["tokens"] == 10


def test_negative_ids_fail_even_without_a_known_vocabulary() -> None:
    samples = healthy()
    samples[0].prompt = [3, -200]
    found = gate(measured(samples), "vocabulary")
    assert found.ok is False
    assert "prompt position 1: id -200" in found.detail


def test_without_a_vocabulary_the_upper_end_stays_open() -> None:
    assert gate(measured(healthy()), "vocabulary").ok is None


def test_sampled_ids_beyond_the_tokenizer_are_named_apart() -> None:
    samples = healthy()
    samples[2].response = [5, 151669, 6, 7]
    result = measured(samples, vocab_size=151936, tokenizer_size=151669)
    found = gate(result, "vocabulary")
    assert found.ok is False
    assert "beyond the tokenizer (151669 ids)" in found.detail
    assert found.data["outside"] == 0
    assert result.measure["tokens"] == 19


def test_prompt_ids_beyond_the_tokenizer_are_told_but_do_not_fail() -> None:
    samples = healthy()
    samples[2].prompt = [151670]
    found = gate(measured(samples, vocab_size=151936, tokenizer_size=151669), "vocabulary")
    assert found.ok is True
    assert found.data["padded_prompt"] == 1


def test_the_vocabulary_of_a_live_run_comes_from_the_fingerprints() -> None:
    samples = healthy()
    samples[0].response = [40] * 6
    facts = RunFacts(fingerprints={"rollout": {"vocab_size": 40}, "train": {"vocab_size": 64}})
    assert gate(measured(samples, facts=facts), "vocabulary").ok is False


# -- finite and range


@pytest.mark.parametrize(("value", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
@pytest.mark.parametrize("side", ["rollout", "train"])
def test_a_non_finite_value_is_named_and_its_sample_left_out(side: str, value: float, word: str) -> None:
    samples = healthy()
    column = list(getattr(samples[1], side))
    column[4] = value
    setattr(samples[1], side, column)
    result = measured(samples)
    found = gate(result, "finite")
    assert found.ok is False
    assert found.data[side][word] == 1
    assert f"{side}: " in found.detail
    assert f"'s1', position 4: {word}" in found.detail
    assert result.measure["tokens"] == 10
    assert result.exit_code() == 1


def test_non_finite_values_everywhere_leave_nothing_to_compare() -> None:
    result = measured([Sample([math.nan], [-1.0]), Sample([-1.0], [-math.inf])])
    assert not result.comparable
    assert result.exit_code() == 2


def test_a_non_finite_value_outside_the_mask_harms_nothing() -> None:
    result = measured([Sample([math.nan, -1.0], [-1.0, -1.0], mask=[0, 1])])
    assert gate(result, "finite").ok is True
    assert result.measure["tokens"] == 1


def test_a_non_finite_rescore_spoils_its_pairs_only() -> None:
    result = measured([Sample([-1.0], [-1.0], [math.nan]), Sample([-1.0], [-1.0], [-1.0])])
    assert result.measure["tokens"] == 2
    assert result.pairs["rescore_train"] is not None
    assert result.pairs["rescore_train"]["tokens"] == 1


def test_a_positive_log_probability_fails_and_is_still_measured() -> None:
    samples = healthy()
    samples[0].train = [0.03125, *list(samples[0].train or [])[1:]]
    result = measured(samples)
    found = gate(result, "range")
    assert found.ok is False
    assert "train: 1 log-probability above 0, largest 0.03125, first sample 's0', position 0" in found.detail
    assert result.measure["tokens"] == 19


def test_a_side_of_zeros_is_a_placeholder() -> None:
    samples = healthy()
    for sample in samples:
        sample.rollout = [0.0] * len(sample.ids)
    found = gate(measured(samples), "range")
    assert found.ok is False
    assert "rollout: every value is exactly 0.0" in found.detail


def test_a_span_of_zeros_on_one_side_is_told() -> None:
    samples = healthy()
    samples[1].rollout = [*list(samples[1].rollout or [])[:5], 0.0, 0.0, 0.0, 0.0]
    samples[2].rollout = [0.0, *list(samples[2].rollout or [])[1:]]
    found = gate(measured(samples), "range")
    assert found.ok is True
    assert "rollout: 5 of 19 values exactly 0.0, longest span 4, 5 on this side alone" in found.detail


# -- coverage


@pytest.mark.parametrize("side", ["rollout", "train"])
def test_a_missing_side_is_not_equality(side: str) -> None:
    samples = healthy()
    for sample in samples:
        setattr(sample, side, None)
    result = measured(samples)
    assert gate(result, "coverage").ok is False
    assert f"no log-probability on the {side} side" in gate(result, "coverage").detail
    assert result.pairs["decode_train"] is None
    assert result.unavailable["decode_train"] == f"no log-probability on the {side} side"
    assert result.measure["tokens"] == 0
    assert result.measure["missing"] == 19
    assert result.exit_code() == 2


def test_nulls_under_the_mask_are_missing() -> None:
    result = measured([Sample([-1.0, None, -1.0], [-1.0, -1.0, -1.0]), Sample([None], [None], mask=[0])])
    assert result.measure["missing"] == 1
    assert gate(result, "coverage").ok is True
    assert "1 of 3 tokens" in gate(result, "coverage").detail


def test_more_holes_than_values_fail() -> None:
    result = measured([Sample([-1.0, None, None], [-1.0, -1.0, -1.0])])
    assert gate(result, "coverage").ok is False


def test_the_triangle_is_absent_without_a_rescore_and_says_why() -> None:
    result = measured(healthy())
    assert result.pairs["decode_rescore"] is None
    assert result.unavailable["decode_rescore"] == "no log-probability on the rescore side"
    facts = RunFacts(unavailable={"decode_rescore": "temperature 0.7 can't be applied over http"})
    named = measured(healthy(), facts=facts)
    assert named.unavailable["decode_rescore"] == "temperature 0.7 can't be applied over http"


# -- bypass


def test_a_copied_column_is_no_equality() -> None:
    samples = [Sample([-1.0, -2.0], [-1.0, -2.0])]
    config = {"algorithm": {"rollout_correction": {"bypass_mode": True}}}
    result = measured(samples, train={"engine": "verl", "config": config})
    assert gate(result, "bypass").ok is False
    assert result.exit_code() == 1


def test_bit_equality_of_unknown_origin_stays_undecided() -> None:
    samples = [Sample([-1.0, -2.0], [-1.0, -2.0])]
    assert gate(measured(samples), "bypass").ok is None
    known = RunFacts(fingerprints={"rollout": {}, "train": {}})
    assert gate(measured(samples, facts=known), "bypass").ok is True
