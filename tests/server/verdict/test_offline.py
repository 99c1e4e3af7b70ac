"""A verdict from pair files: faults are named or honestly left open, noise is never accused, confidence is kept."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from logdiff.verdict.causes import causes
from logdiff.verdict.records import CLASSES

from tests.server.verdict.catalogue_of_faults import FAULTS
from tests.server.verdict.noise_controls import noise_control
from tests.server.verdict.pair_file import diagnosis

OPEN = ("undetermined", "invalid-evidence", "none")
QUICK = (
    "temperature_missing_train", "raw_logprobs", "shifted", "shifted_and_temperature", "placeholders", "packing_leak",
    "left_padding", "labels_at_shard_edge", "retokenised", "weights_stale_over_steps", "rounding_bf16",
    "rounding_bf16_with_rescore", "weights_slightly_stale", "batch_variance", "bit_equal", "all_masked", "all_nan",
    "one_column", "three_tokens",
)  # fmt: skip


def judged(name, seed, tmp_path):
    case = FAULTS[name](seed)
    found = diagnosis(tmp_path / "pairs.jsonl", case.meta, case.samples)
    verdict = found.verdict
    open_ = verdict.class_ == "undetermined" and case.honest
    assert verdict.class_ in case.classes or open_, (verdict, case.classes)
    return case, found


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_named_or_left_open_honestly(name, tmp_path):
    judged(name, 0, tmp_path)


@pytest.mark.slow(seconds=400)
def test_all_faults_over_seeds_and_the_confidence_that_they_are_judged_with(tmp_path):
    right, total, causes_right, causes_total = defaultdict(int), defaultdict(int), 0, 0
    for name in FAULTS:
        for seed in range(4):
            case, found = judged(name, seed, tmp_path)
            verdict = found.verdict
            if verdict.class_ in OPEN:
                continue
            tenth = min(int(verdict.confidence * 10), 9)
            total[tenth] += 1
            right[tenth] += verdict.class_ in case.classes
            if case.causes:
                causes_total += 1
                causes_right += verdict.cause in case.causes
    assert set(total) <= {5, 6, 7, 8, 9}
    for tenth, count in total.items():  # of verdicts at 0.9, nine in ten are right, and so on, within two errors
        expected = tenth / 10
        assert right[tenth] / count >= expected - 2 * np.sqrt(expected * (1 - expected) / count), (tenth, right, total)
    assert causes_right / causes_total >= 0.9


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_noise_alone_is_never_accused(first, tmp_path):
    for seed in range(first, first + 10):
        found = diagnosis(tmp_path / "pairs.jsonl", *noise_control(seed))
        assert found.verdict.class_ in ("operator", "undetermined"), (seed, found.verdict)
        assert found.verdict.side in ("both", "unknown")


@pytest.mark.parametrize("name", ["rounding_bf16", "packing_leak", "all_nan", "bit_equal"])
def test_the_document_keeps_its_contract(name, tmp_path):
    case = FAULTS[name](0)
    found = diagnosis(tmp_path / "pairs.jsonl", case.meta, case.samples)
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["format"] == "logdiff-verdict/1"
    assert data["verdict"]["class"] in CLASSES
    assert data["verdict"]["cause"] is None or data["verdict"]["cause"] in causes()
    for candidate in data["candidates"]:
        assert candidate["cause"] is None or candidate["cause"] in causes()
        assert 0 <= candidate["score"] <= 1
    for item in data["evidence"]:
        assert set(item) == {"claim", "value", "threshold", "source", "repeat"}
        assert item["repeat"].startswith("logdiff ")
    standing = {c["cause"] for c in data["candidates"]}
    assert not standing & {e["cause"] for e in data["excluded"]}
    assert all(e["cause"] in causes() for e in data["excluded"])


def test_undetermined_names_experiments_with_commands(tmp_path):
    case = FAULTS["weights_slightly_stale"](0)
    found = diagnosis(tmp_path / "pairs.jsonl", case.meta, case.samples)
    assert found.verdict.class_ == "undetermined"
    assert {c.class_ for c in found.candidates} >= {"operator", "weights"}
    splits = [set(e.splits) for e in found.next_experiments]
    assert any({"operator", "weights"} <= s for s in splits)
    assert all(e.command.startswith("logdiff ") for e in found.next_experiments)


def test_two_faults_stand_both_with_their_own_evidence(tmp_path):
    case = FAULTS["shifted_and_temperature"](1)
    found = diagnosis(tmp_path / "pairs.jsonl", case.meta, case.samples)
    by_cause = {c.cause: c for c in found.candidates}
    assert found.verdict.cause == "shifted-by-one"
    temperature = by_cause["temperature-missing-train"]
    assert temperature.evidence
    assert not set(temperature.evidence) & set(by_cause["shifted-by-one"].evidence)


def test_a_failed_ids_gate_is_the_verdict_even_when_the_other_tokens_agree(tmp_path):
    case = FAULTS["bit_equal"](0)
    rows = [dict(row) for row in case.samples]
    scored = rows[0]["prompt_token_ids"] + rows[0]["response_token_ids"]
    rows[0]["train_token_ids"] = [*scored[:3], scored[3] + 1, *scored[4:]]
    found = diagnosis(tmp_path / "pairs.jsonl", {}, rows)
    assert found.verdict.class_ == "data"
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda prompt, row: [7, *prompt], "template-differs"),  # one more id before every prompt
        (lambda prompt, row: [*prompt, 9, 9], "template-differs"),  # two more before every response
        (lambda prompt, row: [*prompt[: 2 + row % 5], 3, 4, *prompt[3 + row % 5 :]], "retokenised"),  # a token split
    ],
)
def test_ids_that_depart_everywhere_at_one_place_are_a_template_and_elsewhere_another_tokenizer(
    change, cause, tmp_path
):
    case = FAULTS["bit_equal"](0)
    samples = [
        {**s, "train_token_ids": [*change(list(s["prompt_token_ids"]), row), *s["response_token_ids"]]}
        for row, s in enumerate(case.samples)
    ]
    found = diagnosis(tmp_path / "pairs.jsonl", case.meta, samples).verdict
    assert (found.class_, found.cause) == ("data", cause)


def test_a_copied_column_is_no_evidence(tmp_path):
    case = FAULTS["bit_equal"](0)
    found = diagnosis(tmp_path / "pairs.jsonl", {"bypass_mode": True}, case.samples)
    assert found.verdict.class_ == "invalid-evidence"
    assert found.exit_code == 2


def test_an_empty_file_is_invalid(tmp_path):
    assert diagnosis(tmp_path / "pairs.jsonl", {}, []).verdict.class_ == "invalid-evidence"
