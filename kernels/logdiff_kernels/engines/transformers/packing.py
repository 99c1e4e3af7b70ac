"""Finds out whether a model keeps packed sequences apart, by derivative: exact, whatever the kernels' rounding."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels.errors import UnsupportedError

LENGTH = 6


def require_packing(model: Any) -> None:
    """Raise `UnsupportedError` when sequences packed into one row see each other.

    Two sequences are packed and the logits of the second are derived by the input embeddings: those of the first must
    get exactly zero, those of the second must not (the positive control). Where the forward can't be derived, the
    first sequence is exchanged instead and the logits of the second must keep every bit.
    """
    attention = getattr(model.config, "_attn_implementation", None)
    name = f"{type(model).__name__} with attn_implementation={attention}"
    ids = torch.arange(2 * LENGTH).remainder(_vocabulary(model)).unsqueeze(0).to(model.device)
    positions = torch.arange(LENGTH).repeat(2).unsqueeze(0).to(model.device)
    try:
        leak = _derivative_leaks(model, ids, positions)
    except RuntimeError:
        leak = _exchange_leaks(model, ids, positions)
    if leak:
        raise UnsupportedError(
            f"{name} can't score packed sequences: {leak}", value="packed", hint="layout: padded or single"
        )


def _derivative_leaks(model: Any, ids: torch.Tensor, positions: torch.Tensor) -> str:
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        with torch.enable_grad():
            embedded = model.get_input_embeddings()(ids).detach().requires_grad_(True)
            logits = model(inputs_embeds=embedded, position_ids=positions, use_cache=False).logits
            (slope,) = torch.autograd.grad(logits[0, LENGTH:].float().square().sum(), embedded)
    finally:
        for parameter, flag in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(flag)
    if not bool(slope[0, LENGTH:].ne(0).any()):
        raise RuntimeError("the forward has no derivative")
    if bool(slope[0, :LENGTH].ne(0).any()):
        return "the second sequence sees the first"
    return ""


def _exchange_leaks(model: Any, ids: torch.Tensor, positions: torch.Tensor) -> str:
    other = ids.clone()
    other[0, :LENGTH] = (other[0, :LENGTH] + LENGTH).remainder(_vocabulary(model))
    with torch.no_grad():
        before, after = (
            model(input_ids=row, position_ids=positions, use_cache=False).logits[0, LENGTH:] for row in (ids, other)
        )
    return "" if torch.equal(before, after) else "the second sequence may see the first, and no derivative can tell"


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)
