"""What a request may ask of scoring and sampling."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff_kernels.engines.settings import Sampling, order_of
from logdiff_kernels.engines.transformers.layout import micro_batches
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.errors import InputError, RunnerError, UnsupportedError

ROWS = [[11, 12, 13], [21], [31, 32]]


@pytest.mark.parametrize(
    ("kind", "settings", "value"),
    [
        (Score, {"layout": "diagonal"}, "diagonal"),
        (Score, {"padding_side": "top"}, "top"),
        (Score, {"micro_batch_size": 0}, 0),
        (Score, {"micro_batch_size": True}, True),
        (Score, {"microbatch": 2}, "microbatch"),
        (Sampling, {"temperature": -0.1}, -0.1),
        (Sampling, {"temperature": "hot"}, "hot"),
        (Sampling, {"top_p": 0}, 0),
        (Sampling, {"max_tokens": 0}, 0),
        (Sampling, {"n": 2}, 2),
        (Sampling, {"penalty": 1}, "penalty"),
    ],
)
def test_a_bad_setting_is_refused_with_its_value(kind: Any, settings: dict[str, Any], value: Any) -> None:
    with pytest.raises(RunnerError) as caught:
        kind.parse(settings)
    assert caught.value.value == value


def test_more_than_one_response_per_prompt_is_unsupported() -> None:
    with pytest.raises(UnsupportedError):
        Sampling.parse({"n": 4})


def test_greedy_sampling_is_scored_at_temperature_one() -> None:
    assert Sampling.parse({"temperature": 0}).scored_temperature == 1.0
    assert Sampling.parse({"temperature": 0.3}).scored_temperature == 0.3


def test_orders_are_permutations_and_reproducible() -> None:
    assert order_of(4, "given") == [0, 1, 2, 3]
    assert order_of(4, "reversed") == [3, 2, 1, 0]
    assert order_of(50, "shuffled:1") == order_of(50, "shuffled:1") != order_of(50, "shuffled:2")
    assert sorted(order_of(50, "shuffled:1")) == list(range(50))
    with pytest.raises(InputError):
        order_of(3, "shuffled")


def test_right_padding_puts_the_filler_behind() -> None:
    (batch,) = micro_batches(ROWS, [0, 1, 2], Score("padded", "right", 8), 99)
    assert batch.input_ids.tolist() == [[11, 12, 13], [21, 99, 99], [31, 32, 99]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert batch.position_ids[:, :1].tolist() == [[0], [0], [0]]
    assert batch.places == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]


def test_left_padding_puts_the_filler_before_and_positions_start_at_the_first_token() -> None:
    (batch,) = micro_batches(ROWS, [2, 1, 0], Score("padded", "left", 8), 99)
    assert batch.input_ids.tolist() == [[99, 31, 32], [99, 99, 21], [11, 12, 13]]
    assert batch.position_ids.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 2]]
    assert batch.places == [(2, 0, 1), (1, 1, 2), (0, 2, 0)]


def test_packing_puts_sequences_one_after_the_other() -> None:
    first, second = micro_batches(ROWS, [0, 1, 2], Score("packed", micro_batch_size=2), 99)
    assert first.input_ids.tolist() == [[11, 12, 13, 21]]
    assert first.position_ids.tolist() == [[0, 1, 2, 0]]
    assert first.attention_mask is None
    assert first.places == [(0, 0, 0), (1, 0, 3)]
    assert second.input_ids.tolist() == [[31, 32]]


def test_single_takes_one_sequence_at_a_time() -> None:
    batches = list(micro_batches(ROWS, [0, 1, 2], Score("single", micro_batch_size=8), 99))
    assert [b.input_ids.tolist() for b in batches] == [[row] for row in ROWS]
