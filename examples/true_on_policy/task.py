"""The task: prompts, and a reward that a program can check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TOPICS = (
    "the sea",
    "a small garden",
    "an old clock",
    "bread",
    "the moon",
    "a train at night",
    "snow",
    "a busy market",
    "a river",
    "the first day of school",
    "a lighthouse",
    "tea",
    "a lost key",
    "wind",
    "a library",
    "the desert",
)


class Task:
    """Prompts about `TOPICS` and the reward: the share of response tokens whose text has a given letter."""

    def __init__(self, tokenizer: Any, letter: str, seed: int) -> None:
        self._tokenizer = tokenizer
        self._letter = letter.lower()
        self._random = np.random.default_rng(seed)
        self._has: dict[int, bool] = {}

    def draw(self, count: int) -> list[list[int]]:
        """Token ids of `count` prompts, different ones while there are enough topics."""
        chosen: list[int] = []
        while len(chosen) < count:
            chosen += self._random.permutation(len(TOPICS)).tolist()
        return [list(self._tokenizer.encode(f"A story about {TOPICS[i]}:")) for i in chosen[:count]]

    def reward(self, response: Sequence[int]) -> float:
        """Between 0 and 1; 0 for an empty response."""
        return sum(map(self._matches, response)) / len(response) if response else 0.0

    def _matches(self, token: int) -> bool:
        if token not in self._has:
            self._has[token] = self._letter in self._tokenizer.decode([token]).lower()
        return self._has[token]
