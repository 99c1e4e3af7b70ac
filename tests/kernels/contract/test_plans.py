"""Steps and chunks of the attention and leaves of the vocabulary, against their definitions key by key."""

from __future__ import annotations

import pytest
from logdiff_kernels.contract import CHUNK, STEP, attention, logprob
from logdiff_kernels.errors import UnsupportedError


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 5, 64])
def test_visible_range_is_the_set_of_visible_keys(causal: bool, window: int) -> None:
    for keys in (0, 1, 9):
        for query in range(9):
            seen = [j for j in range(keys) if (not causal or j <= query) and (not window or j > query - window)]
            begin, end = attention.visible_range(query, keys, causal=causal, window=window)
            assert list(range(begin, end)) == seen


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (0, 512), (0, 513), (511, 513), (4095, 4097), (3000, 9000)])
def test_steps_and_chunks_cover_exactly_the_steps_with_a_visible_key(begin: int, end: int) -> None:
    wanted = sorted({j // STEP for j in range(begin, end)})
    assert attention.steps(begin, end) == [(STEP * j, STEP * (j + 1)) for j in wanted]
    groups = attention.chunks(begin, end)
    assert [step for group in groups for step in group] == attention.steps(begin, end)
    assert [len({step[0] // CHUNK for step in group}) for group in groups] == [1] * len(groups)
    assert len({group[0][0] // CHUNK for group in groups}) == len(groups)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 512, 49152, 151936])
def test_vocabulary_leaves_are_equal_and_cover_every_column(size: int) -> None:
    ranges = logprob.leaf_ranges(size)
    assert len(ranges) == 8
    assert len({end - begin for begin, end in ranges}) == 1
    assert [begin for begin, _ in ranges] == [0, *[end for _, end in ranges[:-1]]]
    assert ranges[-1][1] % 64 == 0
    assert size <= ranges[-1][1] < size + 64


def test_shards_that_split_a_leaf_are_refused() -> None:
    assert logprob.rank_leaves(49152, 2, 24576) == 4
    with pytest.raises(UnsupportedError, match="whole leaves"):
        logprob.rank_leaves(49152, 3, 16384)
    with pytest.raises(UnsupportedError, match="whole leaves"):  # Megatron's padding to 128 per rank
        logprob.rank_leaves(1000, 8, 128 * 8)
