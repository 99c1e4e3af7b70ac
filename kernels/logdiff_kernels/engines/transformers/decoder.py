"""Decodes with a key-value cache, choosing tokens or following given ones, one batch of left-padded rows at a time.

The log-probability of a token is taken from the very logits of its decode step: fp32 logits divided by the temperature
(as rollout engines do, vLLM and transformers' own generation among them), fp32 log-softmax over the whole vocabulary
before any top-k or top-p cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from logdiff_kernels.engines.settings import Sampling
from logdiff_kernels.engines.transformers.head import keeps_positions
from logdiff_kernels.engines.transformers.layout import Expect, padded, rows_of
from logdiff_kernels.engines.transformers.logprobs import RowScores, score_rows, score_rows_aligned
from logdiff_kernels.engines.transformers.routing import RoutingRecorder
from logdiff_kernels.engines.transformers.sampling import TokenSampler
from logdiff_kernels.errors import UnsupportedError

Choose = Callable[[int, int, torch.Tensor], int]
"""(row, step, fp32 log-probabilities [V]) -> token id."""


@dataclass(slots=True)
class Decoded:
    """One sample: token ids and, per token, fp32 log-probability, entropy, optional top-k and experts (numpy)."""

    tokens: list[int] = field(default_factory=list)
    facts: dict[str, list[Any]] = field(default_factory=dict)
    finish: str = "length"


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """What holds for every batch.

    Args:
        filler: token id of finished rows and padding.
        ends: ids that end a response.
        topk: number of most likely tokens to keep.
        temperature: that log-probabilities are scored at.
        aligned: log-probabilities by the contract's operator.
    """

    filler: int
    ends: frozenset[int]
    topk: int
    temperature: float
    aligned: bool = False

    def scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """fp32 logits [rows, V] as `distribution` and `score` take them: the contract's operator divides by itself."""
        logits = logits.float()
        return logits if self.aligned or self.temperature == 1.0 else logits.div_(self.temperature)

    def distribution(self, scaled: torch.Tensor) -> torch.Tensor:
        """fp32 log-probabilities of every token."""
        if self.aligned:
            from logdiff_kernels import ops

            return ops.log_softmax(scaled, self.temperature)
        return torch.log_softmax(scaled, dim=-1)

    def score(self, scaled: torch.Tensor, tokens: torch.Tensor) -> RowScores:
        """Scores of one token per row."""
        if self.aligned:
            return score_rows_aligned(scaled, tokens, self.temperature, topk=self.topk)
        return score_rows(scaled, tokens, topk=self.topk)


def decode_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    rules: DecodeRules,
    limits: Sequence[int],
    choose: Choose,
    on_step: Callable[[int], None],
    expect: Expect | None = None,
) -> list[Decoded]:
    """Decode one batch.

    Args:
        model: a causal language model of transformers.
        prompts: token ids, none empty.
        rules: see `DecodeRules`.
        limits: most tokens per row.
        choose: (row, step, fp32 log-probabilities [V]) -> token id.
        on_step: told how many tokens a step added.
        expect: told before each forward who its rows are, by place in `prompts`; rows that are done are nobody's.

    A row that is done stays in the batch and is fed the filler token, so that shapes depend on the batch alone.

    Raises:
        UnsupportedError: the model keeps no cache.
    """
    rows = len(prompts)
    results = [Decoded() for _ in range(rows)]
    active = [limit > 0 for limit in limits]
    batch = padded([list(p) for p in prompts], list(range(rows)), "left", rules.filler)
    device = model.device
    mask, positions = batch.attention_mask, batch.position_ids
    assert mask is not None
    ids, mask, positions = batch.input_ids.to(device), mask.to(device), positions.to(device)
    extra = {"logits_to_keep": 1} if keeps_positions(model) else {}
    cache: Any = None
    with torch.no_grad(), RoutingRecorder(model) as recorder:
        for step in range(max(limits, default=0)):
            if expect is not None:
                expect(*_rows(batch.places, prompts, active, step, ids.shape[1]))
            output = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                **extra,
            )
            cache = output.past_key_values
            if cache is None:
                raise UnsupportedError(f"{type(model).__name__} keeps no cache to decode with", hint="engine: vllm")
            logits = rules.scaled(output.logits[:, -1])
            logp = rules.distribution(logits)
            tokens = [choose(r, step, logp[r]) if active[r] else rules.filler for r in range(rows)]
            chosen = torch.tensor(tokens, dtype=torch.int64, device=device)
            scored = rules.score(logits, chosen)
            experts = recorder.take(*ids.shape)
            columns: dict[str, torch.Tensor | None] = {
                "logprobs": scored.logprob,
                "entropy": scored.entropy,
                "topk_ids": scored.topk_ids,
                "topk_logprobs": scored.topk_logprobs,
                "experts": None if experts is None else experts[:, -1],
            }
            arrays = {name: value.cpu().numpy() for name, value in columns.items() if value is not None}
            added = 0
            for r in range(rows):
                if not active[r]:
                    continue
                added += 1
                results[r].tokens.append(tokens[r])
                for name, array in arrays.items():
                    results[r].facts.setdefault(name, []).append(array[r])
                if tokens[r] in rules.ends:
                    results[r].finish, active[r] = "stop", False
                elif len(results[r].tokens) >= limits[r]:
                    active[r] = False
            on_step(added)
            if not any(active):
                break
            ids = chosen.unsqueeze(-1)
            mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=-1)
            positions = positions[:, -1:] + 1
    return results


def _rows(
    places: Sequence[tuple[int, int, int]],
    prompts: Sequence[Sequence[int]],
    active: Sequence[bool],
    step: int,
    length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sample, position) int64 [rows, length] of a step: the prompts, then one token of each row that goes on."""
    if step == 0:
        return rows_of(places, [len(p) for p in prompts], (len(prompts), length))
    sample = torch.tensor([[r if active[r] else -1] for r in range(len(prompts))])
    return sample, torch.tensor([[len(p) + step - 1] for p in prompts])


def sample(
    model: Any,
    sample_ids: Sequence[str],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    rules: DecodeRules,
    batch: int,
    on_step: Callable[[int], None],
) -> list[Decoded]:
    """Decode `sampling.max_tokens` tokens per prompt, `batch` rows at a time, until one of `rules.ends`."""
    results: list[Decoded] = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        samplers = [TokenSampler(sampling, name) for name in sample_ids[start : start + batch]]
        limits = [sampling.max_tokens] * len(part)
        results += decode_batch(model, part, rules, limits, _drawing(samplers), on_step)
    return results


def follow(
    model: Any,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    order: Sequence[int],
    rules: DecodeRules,
    batch: int,
    on_step: Callable[[int], None],
    expect: Expect | None = None,
) -> list[Decoded]:
    """Decode the given responses again, `batch` rows at a time in `order`; results stand in the given order."""
    results: list[Decoded] = [Decoded() for _ in prompts]
    free = replace(rules, ends=frozenset())
    for start in range(0, len(order), batch):
        part = list(order[start : start + batch])
        given = [list(responses[i]) for i in part]
        decoded = decode_batch(
            model,
            [prompts[i] for i in part],
            free,
            [len(tokens) for tokens in given],
            _following(given),
            on_step,
            None if expect is None else _of(part, expect),
        )
        for i, result in zip(part, decoded, strict=True):
            results[i] = result
    return results


def _of(part: Sequence[int], expect: Expect) -> Expect:
    """`expect` of a batch's own samples as one of the whole task's."""
    numbers = torch.tensor([*part, -1])
    return lambda sample, position: expect(numbers[sample], position)


def _drawing(samplers: Sequence[TokenSampler]) -> Choose:
    return lambda row, _step, logp: samplers[row].choose(logp)


def _following(given: Sequence[Sequence[int]]) -> Choose:
    return lambda row, step, _logp: int(given[row][step])


def columns_of(results: Sequence[Decoded]) -> dict[str, Any]:
    """The columns of a sequence file, samples one after the other."""
    names = {name for result in results for name in result.facts}
    return {
        name: np.stack([value for result in results for value in result.facts.get(name, [])]) for name in sorted(names)
    }
