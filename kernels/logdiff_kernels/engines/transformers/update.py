"""One small real optimiser step, so that a weight sync has something to carry over."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logdiff_kernels.engines.base import Progress
from logdiff_kernels.engines.transformers.head import keeps_positions
from logdiff_kernels.engines.transformers.layout import MicroBatch, micro_batches
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.errors import EngineError, InputError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def policy_gradient_step(
    model: Any,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    lr: float,
    seed: int,
    micro_batch_size: int,
    filler: int,
    progress: Progress,
) -> dict[str, Any]:
    """One AdamW step on -mean(A log p) over all response tokens, A = +1 or -1 per sample, drawn from `seed`.

    The model stays in evaluation mode (no dropout): equal inputs give equal weights. Nothing of the optimiser is kept.

    Returns:
        `loss`, `grad_norm`, `changed` (parameters whose bits changed), `parameters`.

    Raises:
        InputError: no response token to learn from, a learning rate that is not above 0.
        EngineError: the gradient is not finite, or no parameter changed (the step is below what the dtype resolves).
    """
    if not lr > 0:
        raise InputError("lr must be above 0", value=lr)
    total = sum(len(r) for r in responses)
    if total == 0:
        raise InputError("no response token to learn from", value=total)
    advantages = np.random.default_rng(seed).integers(0, 2, len(prompts)) * 2 - 1
    trainable = [p for p in model.parameters() if p.dtype.is_floating_point and p.device.type != "meta"]
    sequences = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
    wanted = [i for i, r in enumerate(responses) if len(r)]
    loss_sum, done = 0.0, 0
    flags = [p.requires_grad for p in trainable]
    try:
        for parameter in trainable:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            for batch in micro_batches(sequences, wanted, Score(micro_batch_size=micro_batch_size), filler):
                loss: Any = loss_of(model, batch, prompts, responses, advantages) / total
                done += sum(len(responses[sample]) for sample, _, _ in batch.places)
                loss.backward()
                loss_sum += float(loss.detach())
                progress(done, total, "token")
        grads = [p.grad for p in trainable if p.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.stack([g.float().norm() for g in grads])))
        if not np.isfinite(norm):
            raise EngineError("the gradient is not finite", value=norm)
        changed = _step(trainable, lr)
    finally:
        for parameter, flag in zip(trainable, flags, strict=True):
            parameter.grad = None
            parameter.requires_grad_(flag)
    if changed == 0:
        raise EngineError(
            "the update changed no weight", value=lr, hint=f"a larger lr: {model.dtype} does not resolve this one"
        )
    return {
        "loss": loss_sum,
        "grad_norm": norm,
        "changed": changed,
        "parameters": sum(p.numel() for p in trainable),
    }


def loss_of(
    model: Any,
    batch: MicroBatch,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    advantages: Any,
) -> torch.Tensor:
    """-sum(A log p) over the response tokens of one micro-batch, in fp32; logits of those positions only."""
    assert batch.attention_mask is not None
    device = model.device
    spans = []
    for sample, row, first in batch.places:
        skip = 0 if len(prompts[sample]) else 1
        tokens = torch.tensor(responses[sample][skip:], dtype=torch.int64, device=device)
        spans.append((sample, row, first + max(len(prompts[sample]) - 1, 0), tokens))
    begin = min(start for _, _, start, _ in spans)
    end = max(start + len(tokens) for _, _, start, tokens in spans)
    keep = {"logits_to_keep": torch.arange(begin, end, device=device)} if keeps_positions(model) else {}
    logits = model(
        input_ids=batch.input_ids.to(device),
        attention_mask=batch.attention_mask.to(device),
        position_ids=batch.position_ids.to(device),
        use_cache=False,
        **keep,
    ).logits
    offset = begin if logits.shape[1] == end - begin else 0
    loss: torch.Tensor = logits.new_zeros((), dtype=torch.float32)
    for sample, row, start, tokens in spans:
        logp = torch.log_softmax(logits[row, start - offset : start - offset + len(tokens)].float(), dim=-1)
        loss = loss - float(advantages[sample]) * logp.gather(-1, tokens.unsqueeze(-1)).sum()
    return loss


def _step(parameters: list[Any], lr: float) -> int:
    """AdamW, parameter by parameter so that its state exists for one at a time. Returns how many values changed."""
    changed = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        before = parameter.detach().clone()
        torch.optim.AdamW([parameter], lr=lr, weight_decay=0.0, foreach=False).step()
        changed += int((before != parameter.detach()).sum())
    return changed


def save_checkpoint(model: Any, source: Path, target: Path) -> None:
    """Write a checkpoint in Hugging Face names (dtype kept) with the tokenizer files of `source`.

    Raises:
        InputError: the folder holds something already.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is in use", value=str(target), hint="name a new or empty folder")
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    for name in _TOKENIZER_FILES:
        file = source / name
        if file.is_file() and not (target / name).exists():
            shutil.copyfile(file, target / name)
