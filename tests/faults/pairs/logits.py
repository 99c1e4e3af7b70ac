"""Real logits behind the pair files: tokens sampled by decoding with a KV cache, scored again in one forward.

Both come from a small local model of Transformers in bf16. The decode (one token a step, left-padded batch) and the
forward over whole sequences differ by what two real code paths differ by; everything that a pair-file fault adds is a
change of the model, of its inputs or of what is made of the logits.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Array = Any
Change = Callable[[Any], AbstractContextManager[None]]
"""A temporary change of a model of Transformers."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompts and sampled responses of N samples.

    Args:
        prompts, responses: token ids.
        rollout: per sample, fp32 logits [tokens, V] of the decode, before the temperature.
        temperature: that the tokens were sampled at.
        experts: per sample, chosen experts [tokens, layers, k] of the decode; None for a dense model.
    """

    prompts: list[list[int]]
    responses: list[list[int]]
    rollout: list[Array]
    temperature: float
    experts: list[Array] | None = None


@dataclass(slots=True)
class Scored:
    """fp32 logits [tokens, V] per sample and, for MoE, the experts [tokens, layers, k]."""

    logits: list[Array]
    experts: list[Array] | None = None
    seen: list[list[int]] = field(default_factory=list)


@functools.lru_cache(maxsize=8)
def load(name: str, seed: int, attention: str = "sdpa") -> Any:
    """A small local model in bf16."""
    from logdiff_kernels.models import build
    from transformers import AutoModelForCausalLM

    folder = build(name, seed=0 if name == "smollm2" else seed)
    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=attention).eval()


def prompts_of(lengths: Sequence[int], vocabulary: int, seed: int) -> list[list[int]]:
    """Random ids, special ones left out."""
    generator = np.random.default_rng(seed)
    return [generator.integers(4, vocabulary, length).tolist() for length in lengths]


@contextlib.contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """The model as it is."""
    yield


@contextlib.contextmanager
def _routes(model: Any) -> Iterator[list[Array]]:
    """The experts that every router of the model chooses, one [rows, k] per layer and forward."""
    seen: list[Array] = []
    handles = []
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            handles.append(module.register_forward_hook(lambda _m, _i, out: seen.append(out[-1].detach())))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def decode(
    model: Any,
    prompts: list[list[int]],
    *,
    tokens: int,
    temperature: float,
    seed: int,
    change: Change = unchanged,
    prompt_change: Change | None = None,
    cut: Callable[[Array], Array] | None = None,
) -> Tokens:
    """Sample `tokens` per prompt with a KV cache, prompts padded on the left.

    `prompt_change` holds for the prompts' forward alone, in place of `change`: their keys and values are of another
    moment than those of the response. `cut` takes scaled logits [rows, V] and leaves those that are sampled from; the
    logits that are kept are those before it.
    """
    rows, longest = len(prompts), max(map(len, prompts))
    ids = torch.zeros(rows, longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp_(min=0)
    generator = torch.Generator().manual_seed(seed)
    logits, chosen, routes, cache = [], [], [], None
    with _routes(model) as seen:
        for step in range(tokens):
            now = prompt_change if step == 0 and prompt_change is not None else change
            with now(model):
                out = model(
                    input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
                )
            cache, last = out.past_key_values, out.logits[:, -1].float()
            if seen:
                routes.append(np.stack([s.view(rows, -1, s.shape[-1])[:, -1].numpy() for s in seen], axis=1))
                seen.clear()
            logits.append(last.numpy())
            scaled = last / temperature
            if cut is not None:
                scaled = torch.as_tensor(cut(scaled.numpy()))
            ids = torch.multinomial(torch.softmax(scaled, -1), 1, generator=generator)
            chosen.append(ids[:, 0].tolist())
            mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=-1)
            positions = positions[:, -1:] + 1
    per_row = np.stack(logits, axis=1)
    return Tokens(
        prompts,
        np.array(chosen).T.tolist(),
        list(per_row),
        temperature,
        list(np.stack(routes, axis=1)) if routes else None,
    )


@torch.no_grad()
def score(
    model: Any,
    tokens: Tokens,
    *,
    change: Change = unchanged,
    ids: list[list[int]] | None = None,
    hidden: Callable[[int, int], Array] | None = None,
    batch: int = 8,
    first: int = 0,
) -> Scored:
    """Score the responses in forwards over whole rows, padded on the right.

    Args:
        model: the scoring model.
        tokens: whose responses to score.
        change: of the model.
        ids: other rows than prompt + response, with the response at their end.
        hidden: (length of the prompt, of the row) -> mask [length] of what a row may attend to.
        batch: rows of one forward.
        first: position that every row counts from.
    """
    rows = ids or [[*p, *r] for p, r in zip(tokens.prompts, tokens.responses, strict=True)]
    scored = Scored([], [] if tokens.experts is not None else None, rows)
    with change(model), _routes(model) as seen:
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            width = max(map(len, part))
            padded, mask = torch.zeros(len(part), width, dtype=torch.int64), torch.zeros(len(part), width).long()
            for row, sequence in enumerate(part):
                padded[row, : len(sequence)] = torch.tensor(sequence)
                mask[row, : len(sequence)] = 1
                if hidden is not None:
                    prompt = len(sequence) - len(tokens.responses[start + row])
                    mask[row, : len(sequence)] = torch.as_tensor(hidden(prompt, len(sequence)))
            positions = first + torch.arange(width).expand(len(part), width)
            out = model(input_ids=padded, attention_mask=mask, position_ids=positions, use_cache=False).logits.float()
            chosen = [s.view(len(part), width, -1).numpy() for s in seen]
            seen.clear()
            for row, sequence in enumerate(part):
                count = len(tokens.responses[start + row])
                window = slice(len(sequence) - count - 1, len(sequence) - 1)
                scored.logits.append(out[row, window].numpy())
                if scored.experts is not None:
                    scored.experts.append(np.stack([c[row, window] for c in chosen], axis=1))
    return scored


@torch.no_grad()
def score_packed(model: Any, tokens: Tokens, *, leak: bool, counted_on: bool = False, pack: int = 3) -> Scored:
    """Score rows packed `pack` at a time into one; with `leak` nothing keeps them apart.

    Args:
        model: the scoring model.
        tokens: whose responses to score.
        leak: the attention is causal over the whole pack.
        counted_on: positions go on over the pack instead of starting again.
        pack: rows of a pack.
    """
    rows = [[*p, *r] for p, r in zip(tokens.prompts, tokens.responses, strict=True)]
    scored = Scored([], None, rows)
    for start in range(0, len(rows), pack):
        part = rows[start : start + pack]
        ids = torch.tensor([[token for row in part for token in row]])
        own = torch.cat([torch.arange(len(row)) for row in part])[None]
        positions = torch.arange(ids.shape[-1])[None] if counted_on else own
        place = torch.cat([torch.full((len(row),), n) for n, row in enumerate(part)])
        allowed = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool).tril()
        if not leak:
            allowed &= place[:, None] == place[None, :]
        out = model(input_ids=ids, attention_mask=allowed[None, None], position_ids=positions, use_cache=False)
        end = 0
        for n, row in enumerate(part):
            end += len(row)
            count = len(tokens.responses[start + n])
            scored.logits.append(out.logits[0, end - count - 1 : end - 1].float().numpy())
    return scored


def logprobs(logits: Sequence[Array], responses: Sequence[Sequence[int]], temperature: float = 1.0) -> list[Array]:
    """fp32 log-probabilities of the given tokens, per sample."""
    found = []
    for rows, ids in zip(logits, responses, strict=True):
        scaled = torch.as_tensor(rows) / temperature
        table = torch.log_softmax(scaled, dim=-1)
        found.append(table.gather(-1, torch.tensor(ids)[:, None])[:, 0].numpy())
    return found


def best(logits: Sequence[Array], count: int, temperature: float = 1.0) -> list[list[list[list[float]]]]:
    """The `count` best tokens of every position as [[id, logprob], ...]."""
    found = []
    for rows in logits:
        values, ids = torch.log_softmax(torch.as_tensor(rows) / temperature, dim=-1).topk(count, dim=-1)
        found.append(
            [
                [[int(i), float(v)] for i, v in zip(*pair, strict=True)]
                for pair in zip(ids.tolist(), values.tolist(), strict=True)
            ]
        )
    return found
