"""Random weights for a small model: every parameter matters, and the output distribution has a realistic entropy."""

from __future__ import annotations

import math
from typing import Any

import torch

from logdiff_kernels.models.tokenizer import SPECIAL

CONTEXTS = 8
CONTEXT_LENGTH = 48


def fill(model: Any, *, seed: int, std: float, norm_offset: float) -> None:
    """Give every parameter and every saved buffer random values, in place, by one generator.

    Norm weights scatter around 1 (so that a forgotten one shows), biases, attention sinks and the corrections of
    routers (buffers) are not zero, everything else is normal with `std`; embeddings have unit scale so that the
    residual stream starts at the size of the blocks' outputs.
    """
    generator = torch.Generator().manual_seed(seed)
    tied = {p.data_ptr() for p in model.get_input_embeddings().parameters()}
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.data_ptr() in tied:
                values = noise * (1.0 / math.sqrt(parameter.shape[-1]) if norm_offset else 1.0)
            elif name.endswith("norm.weight"):
                values = 1.0 - norm_offset + 0.2 * noise
            elif parameter.ndim == 1 or name.endswith("bias"):
                values = 0.2 * noise
            else:
                values = std * noise
            parameter.copy_(values)
        saved = model.state_dict()
        for name, buffer in sorted(model.named_buffers()):
            if name in saved and buffer.is_floating_point():
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


def mean_entropy(model: Any, *, seed: int) -> float:
    """Mean entropy in nats of the next-token distribution over random contexts, every position counted."""
    logits = _logits(model, seed)
    return _entropy(logits)


def scale_to_entropy(model: Any, *, seed: int, norm_offset: float) -> float:
    """Scale the output distribution until its mean entropy is 5/12 of ln V: between a third and a half of it.

    An untied head is scaled itself. A tied one would take the embedding along, so the final norm's weight is scaled
    instead, which multiplies the logits in the same way. A soft cap stays in force: the search measures the model.

    Returns:
        The entropy reached, in nats.

    Raises:
        ValueError: no scale reaches the target.
    """
    target = math.log(model.config.vocab_size) * 5 / 12
    head = model.get_output_embeddings().weight
    tied = head.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    weight = model.get_decoder().norm.weight if tied else head
    offset = norm_offset if tied else 0.0
    original = weight.detach().clone()

    def reached(scale: float) -> float:
        with torch.no_grad():
            weight.copy_((original + offset) * scale - offset)
        return mean_entropy(model, seed=seed)

    high = 1e-3
    while high < 1e3 and reached(high) > target:  # from below: far above, a soft cap ties the logits again
        high *= 2
    low = high / 2
    for _ in range(24):
        middle = math.sqrt(low * high)
        entropy = reached(middle)
        if abs(entropy - target) < 0.01 * target:
            return entropy
        low, high = (middle, high) if entropy > target else (low, middle)
    raise ValueError(f"no scale of the logits reaches a mean entropy of {target:.3f} nats")


def _logits(model: Any, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(len(SPECIAL), model.config.vocab_size, (CONTEXTS, CONTEXT_LENGTH), generator=generator)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def _entropy(logits: torch.Tensor) -> float:
    logp = torch.log_softmax(logits.float(), dim=-1)
    return float(-(logp.exp() * logp).sum(-1).mean())
