"""Log-probabilities, entropy and top-k of rows of logits, in fp32, a bounded number of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FP32_BYTES = 64 << 20
"""Bound on one fp32 copy of the rows in work."""


@dataclass(frozen=True, slots=True)
class RowScores:
    """Per row: `logprob` of its token and `entropy` fp32 [n], nats; top-k int64 [n, k] and fp32 [n, k] or None."""

    logprob: torch.Tensor
    entropy: torch.Tensor
    topk_ids: torch.Tensor | None
    topk_logprobs: torch.Tensor | None


def score_rows_aligned(logits: torch.Tensor, tokens: torch.Tensor, temperature: float, *, topk: int = 0) -> RowScores:
    """`score_rows` by the contract's `logprob`: logits [n, V] of any float dtype, divided by `temperature` in fp32."""
    from logdiff_kernels import ops

    step = max(1, FP32_BYTES // (4 * logits.shape[-1]))
    parts: list[RowScores] = []
    for i in range(0, len(logits), step):
        rows = logits[i : i + step].float()
        chosen, entropy = ops.logprob(rows, tokens[i : i + step], temperature, entropy=True)
        ids = values = None
        if topk:
            values, ids = ops.log_softmax(rows, temperature).topk(min(topk, rows.shape[-1]), dim=-1)
        parts.append(RowScores(chosen, entropy, ids, values))
    return _joined(parts, topk)


def score_rows(logits: torch.Tensor, tokens: torch.Tensor, *, topk: int = 0) -> RowScores:
    """Score `tokens` int64 [n] under `logits` [n, V] of any float dtype, temperature already applied.

    log p = fp32 log-softmax of the logits, gathered by token id. Entropy is -sum p log p of the same distribution.
    """
    step = max(1, FP32_BYTES // (4 * logits.shape[-1]))
    return _joined(
        [_score(logits[i : i + step], tokens[i : i + step], topk) for i in range(0, len(logits), step)], topk
    )


def _joined(parts: list[RowScores], topk: int) -> RowScores:
    return RowScores(
        torch.cat([part.logprob for part in parts]),
        torch.cat([part.entropy for part in parts]),
        torch.cat([part.topk_ids for part in parts if part.topk_ids is not None]) if topk else None,
        torch.cat([part.topk_logprobs for part in parts if part.topk_logprobs is not None]) if topk else None,
    )


def _score(logits: torch.Tensor, tokens: torch.Tensor, topk: int) -> RowScores:
    logp = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    chosen = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    ids = values = None
    if topk:
        values, ids = logp.topk(min(topk, logp.shape[-1]), dim=-1)
    weighted = logp.exp().mul_(logp.masked_fill_(logp.isneginf(), 0.0))
    return RowScores(chosen, -weighted.sum(-1), ids, values)
