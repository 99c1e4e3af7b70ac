"""Sequence files are checked before anything is believed, and sides are paired by sample id."""

from __future__ import annotations

import json

import numpy as np
import pytest
from logdiff.case.sequences import build_sequences, pair_batches, read_sequences, write_sequences
from logdiff.errors import InputError
from safetensors.numpy import save_file

LOGPROBS = np.array([-1, -2, -3, -4, -5], np.float32)


def rollout(**columns):
    return build_sequences(
        ["a", "b"], [[1, 2], [3]], [[10, 11], [20, 21, 22]], columns={"logprobs": LOGPROBS, **columns}
    )


def test_a_file_reads_back_as_written(tmp_path):
    written = build_sequences(
        ["a", "ü"],
        [[1, 2], []],
        [[10], [20, 21]],
        columns={
            "logprobs": np.array([-1.5, np.nan, -0.0], np.float32),
            "logprobs_null": [0, 1, 0],
            "topk_ids": [[1, 2], [3, -1], [-1, -1]],
            "topk_logprobs": np.arange(6).reshape(3, 2)[:, ::-1],
            "entropy": [1, 2, 3],
            "experts": np.arange(12).reshape(3, 2, 2).transpose(0, 2, 1),
        },
        metadata={"step": 3, "task": "generate-3", "nested": {"a": [1]}},
    )
    read = read_sequences(write_sequences(tmp_path / "deep" / "x.safetensors", written))
    assert read.sample_ids == ["a", "ü"]
    assert read.metadata == {"step": 3, "task": "generate-3", "nested": {"a": [1]}}
    assert [read.prompt(i).tolist() for i in range(2)] == [[1, 2], []]
    assert [read.response(i).tolist() for i in range(2)] == [[10], [20, 21]]
    assert set(read.columns) == set(written.columns)
    for name, values in written.columns.items():
        assert read.columns[name].dtype == values.dtype
        assert read.columns[name].tobytes() == np.ascontiguousarray(values).tobytes()
    assert read.columns["experts"][1].tolist() == [[4, 6], [5, 7]]


def test_a_file_of_prompts_only(tmp_path):
    read = read_sequences(write_sequences(tmp_path / "x.safetensors", build_sequences(["a"], [[1, 2]])))
    assert read.response_ids is None
    assert read.tokens == 0
    assert read.response(0).tolist() == []


def test_the_engine_side_and_this_side_read_each_other(tmp_path):
    theirs = pytest.importorskip("logdiff_kernels.sequences")
    write_sequences(tmp_path / "ours.safetensors", rollout(entropy=LOGPROBS))
    there = theirs.read(tmp_path / "ours.safetensors")
    assert there.responses == [[10, 11], [20, 21, 22]]
    assert there.columns["entropy"].tolist() == LOGPROBS.tolist()
    theirs.write(tmp_path / "theirs.safetensors", there)
    assert read_sequences(tmp_path / "theirs.safetensors").columns["logprobs"].tolist() == LOGPROBS.tolist()


def arrays():
    return {
        "prompt_ids": np.array([1, 2, 3], np.int64),
        "prompt_offsets": np.array([0, 2, 3], np.int64),
        "response_ids": np.array([10, 11, 20, 21, 22], np.int64),
        "response_offsets": np.array([0, 2, 5], np.int64),
        "logprobs": LOGPROBS,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_ids": None}, "prompt_ids is missing"),
        ({"response_offsets": None}, "come together"),
        ({"prompt_offsets": np.array([0, 4, 3])}, "must rise"),
        ({"prompt_offsets": np.array([0, 2, 4])}, "must rise"),
        ({"prompt_offsets": np.array([1, 2, 3])}, "must rise"),
        ({"prompt_offsets": np.array([0, 3])}, "one entry more"),
        ({"response_ids": np.arange(5, dtype=np.int32)}, "int64"),
        ({"logprobs": LOGPROBS[:4]}, "logprobs must be float32"),
        ({"logprobs": LOGPROBS.astype(np.float64)}, "logprobs must be float32"),
        ({"logprobs": LOGPROBS.reshape(5, 1)}, "logprobs must be float32"),
        ({"experts": np.zeros((5, 2), np.int32)}, "experts must be int32"),
        ({"topk_ids": np.zeros((5, 2), np.int64)}, "same shape"),
        ({"topk_ids": np.zeros((5, 2), np.int64), "topk_logprobs": np.zeros((5, 3), np.float32)}, "same shape"),
        ({"format": "other/1"}, "not of format"),
        ({"sample_ids": "{"}, "sample_ids"),
        ({"sample_ids": "[1, 2]"}, "list of strings"),
        ({"sample_ids": '["a"]'}, "one entry more"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused(tmp_path, change, words):
    path = tmp_path / "x.safetensors"
    header = {"format": "logdiff-sequences/1", "sample_ids": json.dumps(["a", "b"])}
    header |= {k: v for k, v in change.items() if isinstance(v, str)}
    tensors = arrays() | {k: v for k, v in change.items() if not isinstance(v, str)}
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items() if v is not None}, path, metadata=header)
    with pytest.raises(InputError, match=words) as caught:
        read_sequences(path)
    assert "x.safetensors" in f"{caught.value.message} {caught.value.value}"


@pytest.mark.parametrize("damage", [lambda d: d[:-5], lambda d: d[:10], lambda d: b"", lambda d: b"\xff" * 100])
def test_a_damaged_file_is_an_input_error(tmp_path, damage):
    path = write_sequences(tmp_path / "x.safetensors", rollout())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError):
        read_sequences(path)
    with pytest.raises(InputError, match="no sequence file"):
        read_sequences(tmp_path / "none.safetensors")


def test_sides_in_another_order_are_paired_by_sample_id():
    train = build_sequences(
        ["b", "a"],
        [[3], [1, 2]],
        [[20, 21, 22], [10, 11]],
        columns={"logprobs": [-30, -40, -50, -10, -20], "entropy": [3, 4, 5, 1, 2]},
    )
    (batch,) = pair_batches(rollout(), train, step=4, policy_version=9)
    assert batch.sample_id == ["a", "b"]
    assert batch.token_ids.tolist() == [10, 11, 20, 21, 22]
    assert batch.logprob["train"].tolist() == [-10, -20, -30, -40, -50]
    assert batch.entropy["train"].tolist() == [1, 2, 3, 4, 5]
    assert batch.lengths.tolist() == [[2, -1, 2, 2, -1], [3, -1, 3, 3, -1]]
    assert [ids.tolist() for ids in batch.train_ids] == [[1, 2, 10, 11], [3, 20, 21, 22]]
    assert (batch.step.tolist(), batch.policy_version.tolist()) == ([4, 4], [9, 9])


def test_a_subset_on_either_side_stays_visible():
    train = build_sequences(["c", "b"], [[7], [3]], [[70], [20, 21, 22]], columns={"logprobs": [-7, -1, -2, -3]})
    (batch,) = pair_batches(rollout(), train)
    assert batch.sample_id == ["a", "b", "c"]
    assert batch.lengths[:, 2:4].tolist() == [[2, -1], [3, 3], [-1, 1]]
    assert batch.token_ids.tolist() == [10, 11, 20, 21, 22, 70]
    assert batch.null["train"].tolist() == [True, True, False, False, False, False]
    assert batch.null["rollout"].tolist() == [False] * 5 + [True]
    assert batch.train_ids[0] is None
    assert batch.prompt_ids.tolist() == [1, 2, 3, 7]


def test_other_ids_and_lengths_of_the_trainer_are_kept_for_the_gates():
    train = build_sequences(["a", "b"], [[1, 2], [3]], [[10, 99, 98], [20]], columns={"logprobs": [-1, -2, -3, -4]})
    (batch,) = pair_batches(rollout(), train)
    assert batch.lengths[:, 3].tolist() == [3, 1]
    assert batch.logprob["train"][:3].tolist() == [-1, -2, -4]
    assert batch.null["train"].tolist() == [False, False, False, True, True]
    assert batch.train_ids[0].tolist() == [1, 2, 10, 99, 98]


def test_values_marked_null_are_null_and_nan_stays_a_value():
    nan = float("nan")
    values = np.array([nan, nan, -3, -4, -5], np.float32)
    source = build_sequences(
        ["a", "b"],
        [[1, 2], [3]],
        [[10, 11], [20, 21, 22]],
        columns={"logprobs": values, "logprobs_null": [1, 0, 0, 0, 1]},
    )
    (batch,) = pair_batches(rollout(), rollout(), source)
    assert batch.null["rescore"].tolist() == [True, False, False, False, True]
    assert np.isnan(batch.logprob["rescore"][[0, 1, 4]]).all()


def test_steps_are_cut_into_bounded_batches():
    batches = list(pair_batches(rollout(), rollout(), max_tokens=3))
    assert [b.sample_id for b in batches] == [["a"], ["b"]]
    assert batches[1].logprob["train"].tolist() == [-3, -4, -5]


def test_topk_and_experts_follow_their_samples():
    extra = {
        "topk_ids": np.arange(10).reshape(5, 2),
        "topk_logprobs": -np.arange(10).reshape(5, 2),
        "experts": np.arange(10).reshape(5, 2, 1),
    }
    train = build_sequences(
        ["b", "a"],
        [[3], [1, 2]],
        [[20, 21, 22], [10, 11]],
        columns={"logprobs": LOGPROBS, **extra},
    )
    (batch,) = pair_batches(rollout(**extra), train)
    assert batch.topk["rollout"].ids.tolist() == np.arange(10).reshape(5, 2).tolist()
    assert batch.topk["train"].ids.tolist() == [[6, 7], [8, 9], [0, 1], [2, 3], [4, 5]]
    assert batch.experts["train"][:, :, 0].tolist() == [[6, 7], [8, 9], [0, 1], [2, 3], [4, 5]]


def test_a_sample_id_twice_on_one_side_is_refused():
    twice = build_sequences(["a", "a"], [[1], [1]], [[2], [2]], columns={"logprobs": [-1, -1]})
    with pytest.raises(InputError, match="train sequences hold a sample id twice"):
        list(pair_batches(rollout(), twice))
