"""An independent computation of log-probabilities: whole logits of one sequence at a time, fp64 numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

PROMPTS = [[5, 9, 700, 31, 8, 77, 120], list(range(100, 140)), [9] * 3, list(range(300, 321))]
RESPONSES = [[40, 41, 900, 17, 2], [7, 7, 8, 1000, 4, 6, 300, 12, 90], [55], list(range(500, 530))]
SAMPLE_IDS = ["a", "b", "c", "d"]


def nothing(done: int, total: int | None = None, unit: str = "", message: str = "") -> None:
    """A progress that nobody reads."""


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def whole_logits(model: Any, ids: list[int]) -> npt.NDArray[np.float64]:
    with torch.no_grad():
        return np.asarray(model(input_ids=torch.tensor([ids])).logits[0].double().numpy())


def reference(
    model: Any, prompts: list[list[int]], responses: list[list[int]], temperature: float = 1.0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(log-probabilities, entropies) of all response tokens."""
    values, entropies = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        logp = log_softmax(whole_logits(model, prompt + response) / temperature)
        for j, token in enumerate(response):
            row = logp[len(prompt) - 1 + j]
            values.append(row[token])
            entropies.append(-(np.exp(row) * row).sum())
    return np.array(values), np.array(entropies)
