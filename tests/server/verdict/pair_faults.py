"""Token-level evidence with known faults, from the small decoder: pair records, and what is wrong in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tests.server.verdict.small_decoder import Decoder, How, Shape, bf16, draw, kept, log_softmax, nudged, weights


@dataclass(frozen=True)
class Case:
    """Records of a pair file, and the truth about them.

    `classes` are right answers; `honest`: "undetermined" is one too. `causes` are ids that count as right.
    """

    name: str
    meta: dict[str, Any]
    samples: list[dict[str, Any]]
    classes: tuple[str, ...]
    causes: tuple[str, ...] = ()
    side: str | None = None
    honest: bool = False


@dataclass(frozen=True)
class World:
    """One model with prompts and responses: everything that a fault needs to score tokens again."""

    shape: Shape
    seed: int
    temperature: float
    noise: str  # "none": both sides equal but for the fault; "fp32"; "bf16"
    model: Decoder
    prompts: list[np.ndarray]
    responses: list[np.ndarray]
    rollout: How = field(default_factory=How)

    @property
    def ids(self) -> np.ndarray:
        longest = max(len(p) + len(r) for p, r in zip(self.prompts, self.responses, strict=True))
        out = np.zeros((len(self.prompts), longest), np.int64)
        for i, (p, r) in enumerate(zip(self.prompts, self.responses, strict=True)):
            out[i, : len(p) + len(r)] = np.concatenate([p, r])
        return out

    def side(self, side: str, how: How) -> How:
        """`how` with the rounding of that side's kernels."""
        if self.noise == "none":
            return how
        if self.noise == "fp32":
            return replace(how, split=1 if side == "train" else 3)
        style = {"rollout": {"split": 2}, "rescore": {"split": 3}, "train": {"fused": True}}[side]
        return replace(how, dtype="bf16", **style)

    def logits(self, side: str, how: How | None = None, w: dict | None = None, record: dict | None = None):
        model = self.model if w is None else self.model.with_weights(w)
        z = model.logits(self.ids, self.side(side, self.rollout if how is None else how), record)
        return [
            z[i, len(p) - 1 : len(p) + len(r) - 1]
            for i, (p, r) in enumerate(zip(self.prompts, self.responses, strict=True))
        ]

    def records(self, rollout: list[np.ndarray], train: list[np.ndarray], **more) -> list[dict[str, Any]]:
        """Pair records of per-sample log-probability arrays; `more` are lists with one entry per sample."""
        out = []
        for i, (p, r) in enumerate(zip(self.prompts, self.responses, strict=True)):
            row = {
                "sample_id": f"s{i}",
                "prompt_token_ids": p.tolist(),
                "response_token_ids": r.tolist(),
                "rollout_logprobs": np.asarray(rollout[i], np.float32).astype(float).tolist(),
                "train_logprobs": np.asarray(train[i], np.float32).astype(float).tolist(),
            }
            for key, values in more.items():
                v = values[i]
                row[key] = v.tolist() if isinstance(v, np.ndarray) else v
            out.append(row)
        return out

    def of(self, table: list[np.ndarray]) -> list[np.ndarray]:
        """Entries of the response tokens in tables [T, V]."""
        return [t[np.arange(len(r)), r] for t, r in zip(table, self.responses, strict=True)]

    def lp(self, z: list[np.ndarray], temperature: float | None = None) -> list[np.ndarray]:
        """Log-probabilities of response tokens from logits."""
        t = self.temperature if temperature is None else temperature
        return self.of([log_softmax(x / t) for x in z])


@lru_cache(maxsize=24)
def world(
    seed: int,
    noise: str = "bf16",
    temperature: float = 1.0,
    samples: int = 24,
    experts: int = 0,
    sinks: bool = False,
    window: int | None = None,
    shared: int = 1,
    top_p: float = 1.0,
    longest: int = 72,
    long_prompts: bool = False,
) -> World:
    """A world; `shared` responses are drawn for each prompt."""
    rng = np.random.default_rng(seed)
    shape = Shape(
        vocab=int(rng.choice([256, 384, 500])),
        experts=experts,
        sinks=sinks,
        window=window,
        sharpness=float(rng.uniform(2.4, 3.6)),
        layers=int(rng.choice([2, 3, 4])),
    )
    model = Decoder(shape, weights(shape, seed))
    low, high = (30, 60) if long_prompts else (4, 40)
    prompts = [rng.integers(0, shape.vocab, rng.integers(low, high)) for _ in range(samples // shared)]
    prompts = [p for p in prompts for _ in range(shared)]
    lengths = [int(n) for n in rng.integers(longest // 4, longest, samples)]
    responses = draw(model, prompts, lengths, How(), seed + 1, temperature, top_p)
    return World(shape, seed, temperature, noise, model, prompts, responses)


def redrawn(w: World, how: How) -> World:
    """The same prompts with responses drawn from a rollout side that computes `how`."""
    lengths = [len(r) for r in w.responses]
    responses = draw(w.model, w.prompts, lengths, how, w.seed + 2, w.temperature)
    return replace(w, responses=responses, rollout=how)


def topk(table: list[np.ndarray], k: int) -> list[list[list[list[float]]]]:
    out = []
    for t in table:
        order = np.argsort(-t, axis=-1)[:, :k]
        out.append([[[int(i), float(np.float32(row[i]))] for i in o] for row, o in zip(t, order, strict=True)])
    return out


def entropy(table: list[np.ndarray]) -> list[np.ndarray]:
    return [-(np.exp(t) * t).sum(-1) for t in table]


def pack_numbers(w: World, packs: list[list[int]]) -> list[int]:
    """Pack of each sample."""
    pack = [0] * len(w.prompts)
    for number, rows in enumerate(packs):
        for row in rows:
            pack[row] = number
    return pack


def packed_logits(w: World, packs: list[list[int]], how: How, leak: bool) -> list[np.ndarray]:
    """Logits of responses when rows are packed; with `leak` tokens see the sequences before their own."""
    out: list[Any] = [None] * len(w.prompts)
    for rows in packs:
        ids = np.concatenate([np.concatenate([w.prompts[r], w.responses[r]]) for r in rows])
        owner = np.concatenate([np.full(len(w.prompts[r]) + len(w.responses[r]), k) for k, r in enumerate(rows)])
        place = np.concatenate([np.arange(len(w.prompts[r]) + len(w.responses[r])) for r in rows])
        seen = np.ones((1, len(ids), len(ids)), bool) if leak else (owner[:, None] == owner[None, :])[None]
        z = w.model.logits(ids[None], w.side("train", replace(how, visible=seen, positions=place[None])))[0]
        at = 0
        for r in rows:
            p, n = len(w.prompts[r]), len(w.responses[r])
            out[r] = z[at + p - 1 : at + p + n - 1]
            at += p + n
    return out


def packs_of(count: int, size: int) -> list[list[int]]:
    return [list(range(i, min(i + size, count))) for i in range(0, count, size)]


def bf16_of(values: list[np.ndarray]) -> list[np.ndarray]:
    return [bf16(np.asarray(v, np.float32)) for v in values]


__all__ = [
    "Case", "Decoder", "How", "World", "bf16_of", "draw", "entropy", "kept", "log_softmax", "nudged",
    "pack_numbers", "packed_logits", "packs_of", "redrawn", "replace", "topk", "weights", "world",
]  # fmt: skip
