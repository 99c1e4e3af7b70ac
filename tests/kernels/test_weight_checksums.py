"""The checksum of a logical tensor: what it depends on, and what it must not depend on."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import weights
from logdiff_kernels.weights import TensorSum, WeightsReport, tensor_sum

M = (1 << 64) - 1
law = settings(deadline=None, max_examples=40)


def reference(values: list[float]) -> str:
    """The definition in docs/architecture.md and the module's text, element by element in plain integers."""
    first = second = 0
    for index, value in enumerate(values):
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        if bits == 0x80000000:
            bits = 0
        if value != value:
            bits = 0x7FC00000
        h = (((bits << 32) ^ index) + 0x9E3779B97F4A7C15) & M
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & M
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & M
        h ^= h >> 31
        first = (first + h) & M
        second = (second + (((h ^ (h >> 29)) * 0xD6E8FEB86659FD93) & M)) & M
    return f"{first:016x}{second:016x}"


def checksum(values: torch.Tensor) -> str:
    return str(tensor_sum(values).as_dict()["sum"])


shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**31)


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@law
@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_checksum_is_the_documented_sum(values: list[float]) -> None:
    assert checksum(torch.tensor(values, dtype=torch.float32)) == reference(values)


@law
@given(shapes, seeds, st.data())
def test_checksum_does_not_depend_on_how_the_tensor_is_cut(
    shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    values = random(shape, seed)
    dimension = data.draw(st.integers(0, len(shape) - 1))
    step = data.draw(st.integers(1, shape[dimension]))
    cut = data.draw(st.integers(0, shape[dimension]))
    found = TensorSum(shape, "float32")
    for part in (slice(0, cut), *[slice(cut + i, None, step) for i in range(step)]):
        index = [slice(None)] * len(shape)
        index[dimension] = part
        found.add(values[tuple(index)], index)
    assert found.complete
    assert found.as_dict() == tensor_sum(values).as_dict()


@law
@given(shapes, seeds, st.integers(1, 9))
def test_checksum_does_not_depend_on_the_chunk_size(shape: tuple[int, ...], seed: int, chunk: int) -> None:
    values = random(shape, seed)
    expected = checksum(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "CHUNK", chunk)
        assert checksum(values) == expected


@law
@given(st.permutations([0, 1, 2]), seeds)
def test_checksum_does_not_depend_on_strides(order: list[int], seed: int) -> None:
    values = random((3, 4, 5), seed)
    back = [order.index(i) for i in range(3)]
    strided = values.permute(order).contiguous().permute(back)
    assert torch.equal(strided, values)
    assert checksum(strided) == checksum(values)


@law
@given(shapes, seeds)
def test_ranks_that_hold_parts_add_up(shape: tuple[int, ...], seed: int) -> None:
    values = random(shape, seed)
    half = shape[0] // 2
    rest = [slice(None)] * (len(shape) - 1)
    low = TensorSum(shape, "float32").add(values[:half], [slice(0, half), *rest])
    high = TensorSum(shape, "float32").add(values[half:], [slice(half, None), *rest])
    assert low.merge(TensorSum.from_state(high.state())).as_dict() == tensor_sum(values).as_dict()


@law
@given(shapes, seeds, st.data())
def test_one_flipped_bit_changes_both_sums(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    values = random(shape, seed)
    flipped = values.clone().reshape(-1)
    place = data.draw(st.integers(0, flipped.numel() - 1))
    bit = data.draw(st.integers(0, 22))
    flipped.view(torch.int32)[place] ^= 1 << bit
    one, other = checksum(values), checksum(flipped.reshape(shape))
    assert one[:16] != other[:16]
    assert one[16:] != other[16:]


@law
@given(seeds)
def test_swapped_rows_transposition_and_rolled_values_are_seen(seed: int) -> None:
    values = random((4, 4), seed)
    sums = {checksum(v) for v in (values, values[[1, 0, 2, 3]], values.T, values.roll(1), values.flip(0))}
    assert len(sums) == 5


@law
@given(shapes, seeds, st.sampled_from([torch.bfloat16, torch.float16]))
def test_an_fp32_master_of_narrow_values_has_their_checksum(
    shape: tuple[int, ...], seed: int, dtype: torch.dtype
) -> None:
    narrow = random(shape, seed, dtype)
    assert checksum(narrow.float()) == checksum(narrow)


@law
@given(shapes, seeds)
def test_an_fp32_tensor_also_carries_the_checksum_of_its_bf16_copy(shape: tuple[int, ...], seed: int) -> None:
    master = random(shape, seed)
    found = tensor_sum(master).as_dict()
    assert found["as"]["bfloat16"] == checksum(master.bfloat16())
    assert found["as"]["float16"] == checksum(master.half())
    assert tensor_sum(master.bfloat16()).as_dict()["as"] == {}


def test_zeros_of_both_signs_and_all_nans_are_one_value_each() -> None:
    nans = torch.tensor([0x7FC00001, 0x7F800001 | 0x400000], dtype=torch.int32).view(torch.float32)
    assert checksum(torch.tensor([0.0, 1.0])) == checksum(torch.tensor([-0.0, 1.0]))
    assert checksum(nans) == checksum(torch.tensor([float("nan")] * 2))
    assert checksum(nans) != checksum(torch.tensor([float("inf")] * 2))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float64, torch.bool])
def test_packed_and_wide_dtypes_are_seen_value_by_value(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert checksum(values) != checksum(values.flip(0).roll(1))
    assert checksum(values) == checksum(values.clone())


def test_int64_values_beyond_32_bits_differ() -> None:
    assert checksum(torch.tensor([1 << 40])) != checksum(torch.tensor([1 << 41]))


def test_a_shard_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        TensorSum((4, 4), "float32").add(torch.zeros(2, 4), [slice(0, 3), slice(None)])


def test_a_tensor_seen_in_part_is_reported_as_not_covered() -> None:
    report = WeightsReport()
    report.tensors["w"] = TensorSum((4, 4), "float32").add(torch.zeros(2, 4), [slice(0, 2), slice(None)])
    document = report.as_dict()
    assert document["tensors"] == {}
    assert document["not_covered"] == [{"name": "w", "why": "8 elements seen for shape [4, 4]"}]


def test_a_tensor_larger_than_many_chunks_has_the_documented_sum() -> None:
    values = random((5, weights.CHUNK // 2 + 3), 1)
    assert checksum(values) == reference(values.reshape(-1).tolist())
