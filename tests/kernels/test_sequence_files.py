"""Sequence files keep every bit, and a broken one is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import sequences
from logdiff_kernels.errors import InputError
from safetensors import safe_open
from safetensors.numpy import save_file

ids = st.lists(st.integers(0, 2**40), max_size=5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.text(max_size=5), ids, ids), max_size=5), st.randoms())
def test_what_is_written_is_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[str, list[int], list[int]]], rng: object
) -> None:
    names, prompts, responses = ([s[i] for s in samples] for i in range(3))
    total = sum(map(len, responses))
    bits = np.random.default_rng(total).integers(0, 2**32, total, dtype=np.uint32).view(np.float32)
    path = tmp_path_factory.mktemp("seq") / "a" / "s.safetensors"
    built = sequences.build(names, prompts, responses, columns={"logprobs": bits}, metadata={"step": 3})
    found = sequences.read(sequences.write(path, built))
    assert (found.sample_ids, found.prompts, found.responses) == (names, prompts, responses)
    assert np.array_equal(found.columns["logprobs"].view(np.uint32), bits.view(np.uint32))
    assert found.metadata == {"step": 3}
    assert not list(path.parent.glob(".*"))


def test_the_file_is_plain_safetensors_with_the_documented_keys(tmp_path: Path) -> None:
    built = sequences.build(["a", "b"], [[1, 2], [3]], [[4], [5, 6]], metadata={"task": "generate"})
    with safe_open(sequences.write(tmp_path / "s", built), framework="numpy") as stream:
        assert set(stream.keys()) == {"prompt_ids", "prompt_offsets", "response_ids", "response_offsets"}
        assert stream.metadata() == {
            "format": "logdiff-sequences/1",
            "sample_ids": '["a", "b"]',
            "task": "generate",
        }
        assert stream.get_tensor("response_offsets").tolist() == [0, 1, 3]


def test_a_file_of_prompts_only_has_no_responses(tmp_path: Path) -> None:
    found = sequences.read(sequences.write(tmp_path / "s", sequences.build(["a"], [[1]])))
    assert found.response_ids is None
    assert found.responses == [[]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_offsets": np.array([0, 1], dtype=np.int64)}, "do not cover"),
        ({"prompt_offsets": np.array([0, 3, 2], dtype=np.int64)}, "do not cover|offsets for"),
        ({"prompt_ids": np.zeros(2, dtype=np.int32)}, "int64"),
        ({"logprobs": np.zeros(3, dtype=np.float32)}, "logprobs is float32\\[3\\]"),
        ({"logprobs": np.zeros(1, dtype=np.float64)}, "logprobs is float64"),
        ({"prompt_ids": None}, "lacks"),
    ],
)
def test_misshapen_arrays_are_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    arrays: dict[str, object] = {
        "prompt_ids": np.array([1, 2], dtype=np.int64),
        "prompt_offsets": np.array([0, 2], dtype=np.int64),
        "response_ids": np.array([3], dtype=np.int64),
        "response_offsets": np.array([0, 1], dtype=np.int64),
    }
    merged = {key: value for key, value in {**arrays, **change}.items() if value is not None}
    header = {"format": "logdiff-sequences/1", "sample_ids": '["a"]'}
    save_file(merged, tmp_path / "s", metadata=header)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words) as caught:
        sequences.read(tmp_path / "s")
    assert caught.value.value == str(tmp_path / "s")


@pytest.mark.parametrize("content", [b"", b"\x00" * 4, b"{", b"\xff" * 64])
def test_a_file_of_another_kind_is_an_input_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(InputError):
        sequences.read(tmp_path / "s")


def test_a_truncated_file_is_an_input_error(tmp_path: Path) -> None:
    path = sequences.write(tmp_path / "s", sequences.build(["a"], [[1, 2, 3]]))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="can't read"):
        sequences.read(path)
