"""From logits to pair files: the evidence of one fault, and the registry of pair-file faults."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.draw import Draw
from tests.faults.fault import Made
from tests.faults.pairs import logits
from tests.faults.pairs.logits import Change, Scored, Tokens
from tests.faults.registry import Registry

DENSE = ("qwen3", "llama", "qwen2", "mistral")
COUNT = 12
LENGTHS = ((5, 9), (24, 40), (60, 90))

BLOCK = 16
"""Tokens of a cache block: shorter prompts are never found in a prefix cache."""


@functools.lru_cache(maxsize=32)
def _sampled(name: str, seed: int, temperature: float, tokens: int, attention: str, count: int) -> Tokens:
    generator = np.random.default_rng(seed)
    lengths = [int(generator.integers(*LENGTHS[i % 3])) for i in range(count)]
    model = logits.load(name, seed, attention)
    prompts = logits.prompts_of(lengths, model.config.vocab_size, seed)
    return logits.decode(model, prompts, tokens=tokens, temperature=temperature, seed=seed)


@functools.lru_cache(maxsize=32)
def _plain(name: str, seed: int, temperature: float, tokens: int, attention: str, count: int) -> Scored:
    return logits.score(logits.load(name, seed, attention), _sampled(name, seed, temperature, tokens, attention, count))


@dataclass(slots=True)
class Evidence:
    """One comparison without a fault, ready to be changed; `rows` and `meta` become the file.

    Args:
        name, model: the small model.
        tokens: what the rollout decoded.
        rows: fields of a pair file per sample.
        meta: header.
    """

    name: str
    model: Any
    tokens: Tokens
    plain: Scored
    rows: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def set(self, column: str, values: list[Any]) -> None:
        """Put one value per sample into the rows; arrays become lists."""
        for row, value in zip(self.rows, values, strict=True):
            row[column] = value.tolist() if isinstance(value, np.ndarray) else value

    def logprobs(self, side: list[Any], temperature: float | None = None) -> list[Any]:
        """Log-probabilities of the responses under one side's logits; default: at the sampling temperature."""
        return logits.logprobs(side, self.tokens.responses, temperature or self.tokens.temperature)

    def score(self, **how: Any) -> Scored:
        """`logits.score` of these tokens."""
        return logits.score(self.model, self.tokens, **how)

    def train(self, scored: Scored) -> None:
        """Let the trainer have computed these logits (and, for MoE, chosen these experts)."""
        self.set("train_logprobs", self.logprobs(scored.logits))
        if scored.experts is not None:
            self.set("train_experts", scored.experts)

    def write(self, folder: Path, facts: dict[str, Any] | None = None) -> Made:
        """Write `pairs.jsonl`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "pairs.jsonl"
        lines = [json.dumps({"format": "logdiff-pair/1", "meta": self.meta}), *(json.dumps(row) for row in self.rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return Made([path], None, facts or {})


def evidence(
    draw: Draw,
    name: str,
    *,
    temperature: float = 1.0,
    meta: str = "full",
    rescore: bool = False,
    tokens: int = 32,
    count: int = COUNT,
) -> Evidence:
    """A clean comparison of one model at the draw's seed.

    Args:
        draw: gives the seed of weights, prompts and sampling.
        name: the model.
        temperature: that tokens are sampled at; both sides' log-probabilities are at it.
        meta: "full" (what a live run knows), "sizes" (vocabulary and dtype alone) or "none".
        rescore: with the rollout engine's own prefill; here the trainer's forward with rows one by one.
        tokens: per response.
        count: samples.
    """
    seed = draw.weights_seed(name)
    attention = "eager" if name in ("gemma2", "gpt-oss") else "sdpa"
    model = logits.load(name, seed, attention)
    sampled = _sampled(name, seed, temperature, tokens, attention, count)
    plain = _plain(name, seed, temperature, tokens, attention, count)
    found = Evidence(name, model, sampled, plain)
    found.rows = [
        {"sample_id": f"s{i:03}", "prompt_token_ids": prompt, "response_token_ids": response}
        for i, (prompt, response) in enumerate(zip(sampled.prompts, sampled.responses, strict=True))
    ]
    found.set("rollout_logprobs", found.logprobs(sampled.rollout))
    found.train(plain)
    if sampled.experts is not None:
        found.set("rollout_experts", sampled.experts)
    if rescore:
        found.set("rescore_logprobs", found.logprobs(found.score(batch=1).logits))
    config = model.config
    sizes = {"vocab_size": config.vocab_size, "tokenizer_size": config.vocab_size, "dtype": "bfloat16"}
    full = sizes | {
        "model": name,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "logprobs_mode": "processed_logprobs",
        "moe": sampled.experts is not None,
        "sliding_window": getattr(config, "sliding_window", None),
        "rollout": {"engine": "vllm", "config": {"block_size": 128}},
        "train": {"engine": "fsdp"},
    }
    found.meta = {"full": {k: v for k, v in full.items() if v is not None}, "sizes": sizes, "none": {}}[meta]
    return found


def stepped(
    draw: Draw,
    name: str,
    versions: list[tuple[Change, Change]],
    *,
    prompt: Callable[[int], Change | None] | None = None,
    meta: str = "full",
    tokens: int = 24,
    count: int = 9,
) -> Evidence:
    """Several steps of training as one file, each with its own prompts.

    Args:
        draw, name, meta, tokens, count: as for `evidence`.
        versions: per step, the weights of the rollout engine and of the trainer as changes of the checkpoint.
        prompt: per step, the weights that the keys and values of long prompts were computed with, if others; the
            prompts are then the same at each step, as a cache of their prefixes needs it.
    """
    whole = evidence(draw, name, meta=meta)
    rows: list[dict[str, Any]] = []
    for step, (rollout, train) in enumerate(versions):
        seed = draw.weights_seed(name) + 7919 * step
        generator = np.random.default_rng(seed if prompt is None else 1)
        lengths = [int(generator.integers(*LENGTHS[i % 3])) for i in range(count)]
        prompts = logits.prompts_of(lengths, whole.model.config.vocab_size, seed if prompt is None else 1)
        decoded = logits.decode(whole.model, prompts, tokens=tokens, temperature=1.0, seed=seed, change=rollout)
        stale = prompt(step) if prompt is not None else None
        if stale is not None:
            cached = [i for i, row in enumerate(prompts) if len(row) >= BLOCK]
            other = logits.decode(
                whole.model,
                [prompts[i] for i in cached],
                tokens=tokens,
                temperature=1.0,
                seed=seed,
                change=rollout,
                prompt_change=stale,
            )
            for place, i in enumerate(cached):
                decoded.responses[i], decoded.rollout[i] = other.responses[place], other.rollout[place]
        scored = logits.score(whole.model, decoded, change=train)
        columns = {
            "rollout_logprobs": logits.logprobs(decoded.rollout, decoded.responses),
            "train_logprobs": logits.logprobs(scored.logits, decoded.responses),
        }
        if decoded.experts is not None and scored.experts is not None:
            columns |= {"rollout_experts": decoded.experts, "train_experts": scored.experts}
        for i in range(count):
            row = {
                "sample_id": f"step{step}-{i}",
                "step": step,
                "policy_version": step,
                "prompt_token_ids": prompts[i],
                "response_token_ids": decoded.responses[i],
            }
            rows.append(row | {column: values[i].tolist() for column, values in columns.items()})
    whole.rows = rows
    return whole


def registry() -> Registry[Evidence]:
    """For the pair-file faults of one module."""
    return Registry("pairs", lambda found, _draw, folder: found.write(folder))
