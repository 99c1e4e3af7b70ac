"""Chooses the next token of one sequence, by a random stream of its own."""

from __future__ import annotations

import hashlib

import torch

from logdiff_kernels.engines.settings import Sampling


class TokenSampler:
    """Draws tokens for one sample. The stream depends on (seed, sample id) alone, never on who shares the batch."""

    def __init__(self, sampling: Sampling, sample_id: str) -> None:
        digest = hashlib.sha256(f"{sampling.seed}/{sample_id}".encode()).digest()
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        self._sampling = sampling

    def choose(self, logp: torch.Tensor) -> int:
        """A token id under `logp` fp32 [V] at the sampling temperature; greedy at temperature 0 (lowest id of equals).

        top-k keeps the k most likely tokens, then top-p the smallest set of the most likely ones whose share of what
        is left reaches top_p, at least one.
        """
        if self._sampling.temperature == 0:
            return int(logp.argmax())
        if not self._sampling.truncates:
            return int(torch.multinomial(logp.exp().cpu(), 1, generator=self._generator))
        values, ids = logp.cpu().sort(descending=True, stable=True)
        probabilities = values.exp()
        if self._sampling.top_k > 0:
            probabilities[self._sampling.top_k :] = 0
        probabilities = probabilities / probabilities.sum()
        before = probabilities.cumsum(0) - probabilities
        keep = before < self._sampling.top_p
        keep[0] = True
        return int(ids[torch.multinomial(probabilities * keep, 1, generator=self._generator)])
