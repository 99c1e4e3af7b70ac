"""What faults share: how one gets its name, and the noise and facts that its seed gives it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.server.verdict.pair_faults import Case, World

SP, DA, FI, FC, WT, RT, OP = (
    "sampling-processing", "data", "framework-implementation", "framework-config", "weights", "routing", "operator",
)  # fmt: skip
Make = Callable[[int], Case]


def into(faults: dict[str, Make]) -> Callable[[Make], Make]:
    """A decorator that keeps functions there by their names."""

    def fault(make: Make) -> Make:
        faults[make.__name__] = make
        return make

    return fault


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed * 7919 + 13)


def noise_of(seed: int) -> str:
    return ("bf16", "fp32", "none", "bf16", "none", "fp32")[seed % 6]


def facts(w: World, seed: int, **more):
    """Some seeds know a lot, some little."""
    if seed % 2:
        return {"model": "small", "vocab_size": w.shape.vocab, **more} if more else {}
    return {
        "model": "small", "vocab_size": w.shape.vocab, "dtype": "bfloat16" if w.noise == "bf16" else "float32",
        "temperature": w.temperature, "moe": bool(w.shape.experts), **more,
    }  # fmt: skip


def plain(w: World):
    """Both sides' log-probabilities, with nothing wrong but what the world has."""
    return w.lp(w.logits("rollout")), w.lp(w.logits("train"))


def experts(w: World, rollout: dict, train: dict) -> dict[str, list[np.ndarray]]:
    """Both sides' columns of experts from what their forward passes recorded."""
    return {
        f"{side}_experts": [
            record["experts"][i, len(p) - 1 : len(p) + len(r) - 1]
            for i, (p, r) in enumerate(zip(w.prompts, w.responses, strict=True))
        ]
        for side, record in (("rollout", rollout), ("train", train))
    }
