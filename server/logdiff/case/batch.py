"""Token-level evidence in columns: what every reader yields and every analysis consumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

SIDES = ("rollout", "train", "rescore")
"""Order in which the sides of one batch stand in the token table."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The k most likely tokens of each response position: ids int64 [T, k], -1 where absent; logprobs fp32 [T, k]."""

    ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PairBatch:
    """S samples with T response tokens in all, one column per fact.

    A log-probability is fp32, in nats, of the response token at that position. Where a value is null or the side is
    absent, the value is NaN and the entry of `null` is True; a NaN that stood in the input has `null` False.
    When a per-token list is longer or shorter than `response_token_ids`, it is cut or filled with null to
    that length and `lengths` keeps what the input had; the lengths gate reads it.
    """

    sample_id: list[str]
    step: npt.NDArray[np.int32]  # [S]
    rank: npt.NDArray[np.int32]  # [S]
    policy_version: npt.NDArray[np.int64]  # [S], -1 where unknown
    pack: npt.NDArray[np.int32]  # [S], -1 where unknown
    left_pad: npt.NDArray[np.int32]  # [S], -1 where unknown
    prompt_offsets: npt.NDArray[np.int64]  # [S + 1]
    prompt_ids: npt.NDArray[np.int64]  # [P]
    offsets: npt.NDArray[np.int64]  # [S + 1], response tokens
    token_ids: npt.NDArray[np.int64]  # [T]
    mask: npt.NDArray[np.bool_]  # [T]
    logprob: dict[str, npt.NDArray[np.float32]]  # each of SIDES -> [T]
    null: dict[str, npt.NDArray[np.bool_]]  # each of SIDES -> [T]
    lengths: npt.NDArray[np.int64]  # [S, 5]: ids, mask, rollout, train, rescore as given; -1 where absent
    train_ids: list[npt.NDArray[np.int64] | None]  # [S] the trainer's own prompt + response ids, when it kept them
    topk: dict[str, TopK] = field(default_factory=dict)  # "rollout", "train"
    experts: dict[str, npt.NDArray[np.int32]] = field(default_factory=dict)  # side -> [T, layers, k], -1 where absent
    entropy: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)  # side -> [T], nats, NaN where unknown
    extra_lengths: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """[S] lengths as given of other per-token lists ("rollout_topk", "train_experts", ...), -1 where absent."""

    @property
    def samples(self) -> int:
        """S, the number of samples."""
        return len(self.sample_id)

    @property
    def tokens(self) -> int:
        """T, the number of response tokens, masked ones included."""
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True)
class PairMeta:
    """What a pair file or a run says about itself; every fact may be missing (None)."""

    facts: dict[str, Any] = field(default_factory=dict)  # the header's `meta`, unknown keys kept
    source: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        """A fact, or `default` where the file doesn't say."""
        return self.facts.get(key, default)
