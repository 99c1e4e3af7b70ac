"""GRPO's advantage and clipped objective (Shao et al., DeepSeekMath, 2024, section 4.1), token-level mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch


def advantages(rewards: Sequence[float], group: int) -> npt.NDArray[np.float32]:
    """(reward - mean) / (std + 1e-4) within each run of `group` samples, float32 [samples].

    A group whose rewards are all the same has no signal: zeros.
    """
    table = np.asarray(rewards, dtype=np.float64).reshape(-1, group)
    centred = table - table.mean(axis=1, keepdims=True)
    scaled: npt.NDArray[np.float32] = (centred / (table.std(axis=1, keepdims=True) + 1e-4)).astype(np.float32)
    return scaled.reshape(-1)


def objective(logp: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, clip: float) -> torch.Tensor:
    """-sum(min(r A, clip(r) A)) over tokens, r = exp(logp - old); divide by the token count of the update.

    All arguments are fp32 [T]: the trainer's log-probability with gradient, the rollout's, the sample's advantage.
    """
    ratio = torch.exp(logp - old)
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).sum()
