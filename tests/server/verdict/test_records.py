"""Records of `logdiff-verdict/1`: what they refuse, exit codes, JSON."""

from __future__ import annotations

import json
import math

import logdiff.verdict
import numpy as np
import pytest
from logdiff.case.readers import read_pairs
from logdiff.verdict import Candidate, Diagnosis, Verdict, path_of
from logdiff.verdict.offline import diagnose_pairs
from logdiff.verdict.records import CLASSES, PATHS

from tests.server.verdict.noise_controls import noise_control
from tests.server.verdict.pair_file import write


def test_every_class_has_a_path_and_an_exit_code():
    codes = {c: Diagnosis(Verdict(c)).exit_code for c in CLASSES}
    assert {c for c, code in codes.items() if code == 0} == {"none"}
    assert {c for c, code in codes.items() if code == 2} == {"invalid-evidence"}
    assert {path_of(c) for c in CLASSES} == set(PATHS)


@pytest.mark.parametrize(
    "wrong", [{"class_": "kernel"}, {"class_": "data", "side": "left"}, {"class_": "data", "confidence": math.nan}]
)
def test_words_outside_the_contract_are_refused(wrong):
    with pytest.raises(ValueError, match=r"no |probability"):
        Verdict(**wrong)


def test_non_finite_numbers_become_strings():
    found = Diagnosis(Verdict("undetermined"), (Candidate(None, "data", 0.2),), {"mean": math.inf, "n": np.int64(3)})
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["measure"] == {"mean": "inf", "n": 3}
    assert data["candidates"][0]["class"] == "data"


def test_the_judges_are_reached_through_the_package():
    assert logdiff.verdict.diagnose_pairs is diagnose_pairs
    with pytest.raises(AttributeError):
        _ = logdiff.verdict.nothing_of_the_kind


@pytest.mark.parametrize(("factor", "class_"), [(1.0, "none"), (0.5, "undetermined")])
def test_within_the_measured_floor_there_is_no_finding(factor, class_, tmp_path):
    meta, batches = read_pairs([write(tmp_path / "a.jsonl", *noise_control(35))])
    _, measured = diagnose_pairs(meta, batches)
    floor = {name: factor * measured.measure[name] for name in ("mean_abs", "p99", "max_abs")}
    meta, batches = read_pairs([tmp_path / "a.jsonl"])
    found, _ = diagnose_pairs(meta, batches, floor=floor)
    assert found.verdict.class_ in (class_, "operator" if class_ != "none" else class_)
    assert (found.verdict.class_ == "none") == (class_ == "none")
