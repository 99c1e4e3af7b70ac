"""Log-probabilities in fp64, by torch's own functions."""

from __future__ import annotations

import torch
from torch import Tensor


def logprob(
    logits: Tensor,
    ids: Tensor,
    temperature: float | Tensor = 1.0,
    vocab_size: int | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`ops.logprob` in fp64; differentiable by torch's autograd."""
    logs = log_softmax(logits, temperature, vocab_size)
    logp = logs.gather(1, ids[:, None])[:, 0]
    if not entropy:
        return logp
    p = logs.exp()
    return logp, -(p * torch.where(p > 0, logs, torch.zeros_like(p))).sum(-1)


def log_softmax(logits: Tensor, temperature: float | Tensor = 1.0, vocab_size: int | None = None) -> Tensor:
    """`ops.log_softmax` in fp64."""
    z = logits.double()
    if isinstance(temperature, Tensor):
        heat = temperature.double().expand(z.shape[:1])[:, None]
        z = z / torch.where(heat == 0, torch.ones_like(heat), heat)
    else:
        z = z / (temperature or 1.0)
    vocabulary = z.shape[1] if vocab_size is None else min(vocab_size, z.shape[1])
    logs = torch.log_softmax(z[:, :vocabulary], dim=-1)
    return torch.cat([logs, z.new_full((z.shape[0], z.shape[1] - vocabulary), -torch.inf)], dim=1)
