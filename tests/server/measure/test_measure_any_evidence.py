"""Whatever the evidence holds, a whole and honest result comes out."""

from __future__ import annotations

import json
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measure_evidence import Sample, measured

value = st.one_of(
    st.none(),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -1.0, -3.4e38, -1e-45, 3.4e38]),
)


@st.composite
def evidence(draw: st.DrawFn) -> list[Sample]:
    found = []
    for _ in range(draw(st.integers(0, 6))):
        size = draw(st.integers(0, 7))
        side = st.none() | st.lists(value, min_size=max(size - 1, 0), max_size=size + 1)
        ids = draw(st.lists(st.integers(-1, 70), min_size=size, max_size=size))
        found.append(
            Sample(
                draw(side),
                draw(side),
                draw(st.none() | side),
                mask=draw(st.none() | st.lists(st.integers(0, 1), min_size=size, max_size=size + 1)),
                sample_id=draw(st.sampled_from(["a", "b", "", "\ud800", "ä" * 300])),
                step=draw(st.integers(-1, 3)),
                rank=draw(st.integers(-1, 2)),
                prompt=draw(st.lists(st.integers(0, 70), max_size=3)),
                response=ids,
                train_ids=draw(st.none() | st.lists(st.integers(0, 70), max_size=4)),
            )
        )
    return found


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(evidence(), st.lists(st.integers(1, 6), max_size=3))
def test_any_evidence_gives_the_same_whole_result_in_any_batches(samples: list[Sample], cuts: list[int]) -> None:
    result = measured(samples, vocab_size=64, tokenizer_size=60)
    shown = result.as_dict()
    json.dumps(shown, allow_nan=False)
    assert measured(samples, cuts, vocab_size=64, tokenizer_size=60).as_dict() == shown
    block = result.measure
    assert sum(row["tokens"] for row in block["by_step"].values()) == block["tokens"]
    assert sum(row["tokens"] for row in block["by_position"]) == block["tokens"]
    assert block["samples"] <= result.samples["total"] == len(samples)
    code = result.exit_code()
    assert (code == 2) == (block["tokens"] == 0)
    if code == 0:
        assert block["mismatched_tokens"] == 0
        assert block["max_abs"] == 0
        assert all(gate.ok is not False for gate in result.gates)
    if block["tokens"]:
        assert math.isfinite(block["mean_abs"])
        assert block["max_abs"] >= block["p999"] >= block["p50"] >= 0
        assert block["mean_abs"] <= block["max_abs"] * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(evidence())
def test_a_sample_with_a_non_finite_value_under_the_mask_is_never_measured(samples: list[Sample]) -> None:
    def spoilt(sample: Sample) -> bool:
        size = len(sample.ids)
        mask = sample.mask if sample.mask is not None else [1] * size
        for side in (sample.rollout, sample.train):
            for i, given_value in enumerate(list(side or [])[:size]):
                # beyond the range of fp32 a value is infinite
                if i < len(mask) and mask[i] and given_value is not None and not math.isfinite(given_value):
                    return True
        return False

    alone = [s for s in samples if spoilt(s)]
    assert measured(alone).measure["tokens"] == 0
    if alone:
        assert {"finite"} <= {gate.gate for gate in measured(alone).failed_gates}
