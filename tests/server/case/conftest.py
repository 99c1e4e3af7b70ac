"""Small hand-made evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from logdiff.case.batch import PairBatch, TopK

_NAN = float("nan")


def make_small_batch() -> PairBatch:
    """Two samples of 3 and 2 tokens; rollout and train, one null on the rollout side."""
    rollout = np.array([-0.1, -1.0, -2.5, -0.5, _NAN], np.float32)
    train = np.array([-0.1, -1.25, -2.0, -0.5, -3.0], np.float32)
    return PairBatch(
        sample_id=["a", "b"],
        step=np.array([0, 0], np.int32),
        rank=np.array([0, 1], np.int32),
        policy_version=np.array([-1, -1], np.int64),
        pack=np.array([-1, -1], np.int32),
        left_pad=np.array([-1, -1], np.int32),
        prompt_offsets=np.array([0, 2, 3], np.int64),
        prompt_ids=np.array([1, 2, 3], np.int64),
        offsets=np.array([0, 3, 5], np.int64),
        token_ids=np.array([5, 6, 7, 8, 9], np.int64),
        mask=np.array([True, True, True, True, True]),
        logprob={"rollout": rollout, "train": train, "rescore": np.full(5, _NAN, np.float32)},
        null={
            "rollout": np.array([False] * 4 + [True]),
            "train": np.zeros(5, np.bool_),
            "rescore": np.ones(5, np.bool_),
        },
        lengths=np.array([[3, -1, 3, 3, -1], [2, -1, 2, 2, -1]], np.int64),
        train_ids=[None, None],
    )


@pytest.fixture
def small_batch() -> PairBatch:
    return make_small_batch()


def make_rich_batch() -> PairBatch:
    """The small batch with top-2, experts of 2 layers x 2, entropy and the trainer's own ids."""
    batch = make_small_batch()
    return replace(
        batch,
        train_ids=[np.array([1, 2, 5, 6, 7], np.int64), None],
        topk={
            "rollout": TopK(np.arange(10, dtype=np.int64).reshape(5, 2), -np.arange(10, dtype=np.float32).reshape(5, 2))
        },
        experts={"train": np.arange(20, dtype=np.int32).reshape(5, 2, 2)},
        entropy={"train": np.array([0.5, 1.0, 1.5, 2.0, 2.5], np.float32)},
        extra_lengths={
            "rollout_topk": np.array([3, 2], np.int64),
            "train_experts": np.array([3, 2], np.int64),
        },
    )


@pytest.fixture
def rich_batch() -> PairBatch:
    return make_rich_batch()
