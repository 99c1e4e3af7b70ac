from __future__ import annotations

import math

import numpy as np
from logdiff.report.extremes import STRIP_TOKENS, WORST_SAMPLES, WORST_TOKENS
from logdiff.report.profile import profile
from report_cases import Sample, batch_of


def _random(count: int, length: int, seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        a = -rng.random(length).astype(np.float32)
        b = (a + rng.normal(0, 0.1, length)).astype(np.float32)
        made.append(
            Sample(rng.integers(0, 9, length).tolist(), {"rollout": a.tolist(), "train": b.tolist()}, sample_id=f"s{i}")
        )
    return made


def test_worst_tokens_are_those_of_a_full_sort() -> None:
    samples = _random(60, 25, 0)
    everything = [
        (abs(b - a), s.sample_id, position)
        for s in samples
        for position, (a, b) in enumerate(zip(s.logprobs["rollout"], s.logprobs["train"], strict=True))
    ]
    expected = sorted(everything, key=lambda item: -item[0])[:WORST_TOKENS]
    found = profile(batch_of(samples[i : i + 7]) for i in range(0, 60, 7)).worst
    assert [(abs(w.d), w.sample_id, w.position) for w in found] == expected


def test_worst_samples_come_worst_first() -> None:
    samples = _random(40, 30, 1)
    largest = {
        s.sample_id: max(abs(b - a) for a, b in zip(s.logprobs["rollout"], s.logprobs["train"], strict=True))
        for s in samples
    }
    expected = sorted(largest, key=lambda name: -largest[str(name)])[:WORST_SAMPLES]
    found = profile(batch_of(samples[i : i + 9]) for i in range(0, 40, 9)).strips
    assert [strip.sample_id for strip in found] == expected


def test_what_is_not_finite_is_worse_than_any_number() -> None:
    fine = Sample([1], {"rollout": [-1.0], "train": [-90.0]}, sample_id="far")
    broken = Sample([1], {"rollout": [-1.0], "train": [math.nan]}, sample_id="nan")
    found = profile([batch_of([fine]), batch_of([broken])])
    assert [w.sample_id for w in found.worst] == ["nan", "far"]
    assert [s.sample_id for s in found.strips] == ["nan", "far"]
    assert (found.strips[0].nonfinite, found.strips[0].max_abs) == (1, 0.0)


def test_masked_tokens_are_no_worst_tokens_and_wholly_masked_samples_no_strip() -> None:
    hidden = Sample([1, 2], {"rollout": [-1.0, -1.0], "train": [-9.0, -9.0]}, mask=[0, 0], sample_id="hidden")
    seen = Sample([3], {"rollout": [-1.0], "train": [-1.5]}, sample_id="seen")
    found = profile([batch_of([hidden, seen])])
    assert [w.sample_id for w in found.worst] == ["seen"]
    assert [s.sample_id for s in found.strips] == ["seen"]


def test_a_long_sample_is_cut_to_a_window_that_holds_its_worst_token() -> None:
    length, worst = 100_000, 77_777
    train = [-1.0] * length
    train[worst] = -3.0
    sample = Sample(list(range(length)), {"rollout": [-1.0] * length, "train": train})
    (strip,) = profile([batch_of([sample])]).strips
    assert len(strip.token_ids) == STRIP_TOKENS
    assert strip.total == length
    assert strip.start <= worst < strip.start + STRIP_TOKENS
    assert strip.token_ids[0] == strip.start
    assert strip.d[worst - strip.start] == -2.0


def test_the_window_stays_inside_the_sample_at_both_ends() -> None:
    for worst in (0, 999):
        train = [-1.0] * 1000
        train[worst] = -3.0
        sample = Sample([0] * 1000, {"rollout": [-1.0] * 1000, "train": train})
        (strip,) = profile([batch_of([sample])]).strips
        assert len(strip.d) == STRIP_TOKENS
        assert strip.start == (0 if worst == 0 else 1000 - STRIP_TOKENS)


def test_empty_samples_between_others_shift_nothing() -> None:
    empty = Sample([], {"rollout": [], "train": []}, sample_id="empty")
    first = Sample([1], {"rollout": [-1.0], "train": [-1.25]}, sample_id="first")
    last = Sample([2, 3], {"rollout": [-1.0, -1.0], "train": [-1.0, -2.0]}, sample_id="last")
    found = profile([batch_of([empty, first, empty, last, empty])])
    assert [(w.sample_id, w.position, w.token_id, w.d) for w in found.worst[:2]] == [
        ("last", 1, 3, -1.0),
        ("first", 0, 1, -0.25),
    ]
    assert [s.sample_id for s in found.strips] == ["last", "first"]
