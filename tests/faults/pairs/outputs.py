"""Pair-file faults of sampling, of what log-probabilities mean, and of how rows were put together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from tests.faults.draw import Draw
from tests.faults.pairs import logits
from tests.faults.pairs.evidence import DENSE, Evidence, evidence, registry

SP, DA = "sampling-processing", "data"
fault = registry()


def _hot(draw: Draw) -> float:
    return draw.choice([0.6, 0.7, 1.2, 1.4])


@fault(
    "pair-raw-logprobs",
    SP,
    ("temperature-missing-rollout-raw-logprobs",),
    ("rollout",),
    why="B01: values before the temperature from an engine whose header names the mode",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), temperature=_hot(draw))
    found.set("rollout_logprobs", found.logprobs(found.tokens.rollout, 1.0))
    found.meta["logprobs_mode"] = "raw_logprobs"
    return found


@fault(
    "pair-mode-lost",
    SP,
    ("temperature-missing-rollout-raw-logprobs",),
    ("rollout",),
    why="B07: the header says processed, the values are raw; top-k columns show it",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), temperature=_hot(draw))
    found.set("rollout_logprobs", found.logprobs(found.tokens.rollout, 1.0))
    found.set("rollout_topk", logits.best(found.tokens.rollout, 8, 1.0))
    found.set("train_topk", logits.best(found.plain.logits, 8, found.tokens.temperature))
    return found


@fault(
    "pair-temperature-missing-train",
    SP,
    ("temperature-missing-train", "temperature-differs"),
    ("train",),
    why="B03, B04: the scoring pass has no temperature",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), temperature=_hot(draw), rescore=draw.choice([True, False]))
    found.set("train_logprobs", found.logprobs(found.plain.logits, 1.0))
    return found


@fault(
    "pair-temperature-twice",
    SP,
    ("temperature-twice", "temperature-differs"),
    ("train",),
    why="B04, B08: T^2 on the trainer",
)
def _(draw: Draw) -> Evidence:
    temperature = _hot(draw)
    found = evidence(draw, draw.choice(DENSE), temperature=temperature)
    found.set("train_logprobs", found.logprobs(found.plain.logits, temperature**2))
    found.set("train_topk", logits.best(found.plain.logits, 8, temperature**2))
    found.set("rollout_topk", logits.best(found.tokens.rollout, 8, temperature))
    return found


def _truncated(rows: np.ndarray, top_p: float, top_k: int) -> np.ndarray:
    """Logits [tokens, V] with what a top-p or top-k cut removes at -inf; `top_k` 0 keeps all."""
    table = torch.as_tensor(rows).clone()
    order = table.argsort(dim=-1, descending=True)
    probabilities = torch.softmax(table, -1).gather(-1, order)
    before = probabilities.cumsum(-1) - probabilities
    rank = torch.arange(table.shape[-1]).expand_as(table)
    cut = before >= top_p if top_p < 1 else rank >= top_k
    return table.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), float("-inf")).numpy()


@fault(
    "pair-truncation",
    SP,
    ("truncation-renormalised",),
    ("rollout",),
    also=("framework-config",),
    why="B06: the rollout's denominator is over the kept tokens",
)
def _(draw: Draw) -> Evidence:
    top_p, top_k = draw.choice([(0.8, 0), (0.9, 0), (1.0, 20)])
    found = evidence(draw, draw.choice(DENSE), meta=draw.choice(["full", "sizes"]))
    if "top_p" in found.meta:
        found.meta |= {"top_p": top_p, "top_k": top_k or -1}
    found.tokens = logits.decode(
        found.model,
        found.tokens.prompts,
        tokens=32,
        temperature=1.0,
        seed=draw.integer(0, 9999),
        cut=lambda rows: _truncated(rows, top_p, top_k),
    )
    found.set("response_token_ids", found.tokens.responses)
    found.set("rollout_logprobs", found.logprobs([_truncated(rows, top_p, top_k) for rows in found.tokens.rollout]))
    found.train(found.score())
    return found


@fault(
    "pair-first-entry",
    SP,
    ("logprob-of-other-token",),
    ("rollout",),
    why="B09: the best token's value for the sampled one",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), meta=draw.choice(["full", "none"]))
    tables = [torch.log_softmax(torch.as_tensor(rows), -1).amax(-1).numpy() for rows in found.tokens.rollout]
    found.set("rollout_logprobs", tables)
    return found


@fault(
    "pair-rounded",
    SP,
    ("logprob-rounded",),
    ("rollout",),
    above=0.0,
    why="B14: stored in bf16",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    rounded = [torch.as_tensor(v).to(torch.bfloat16).float().numpy() for v in found.logprobs(found.tokens.rollout)]
    found.set("rollout_logprobs", rounded)
    return found


@fault(
    "pair-penalty",
    SP,
    ("penalty-one-side",),
    ("rollout",),
    above=1.5,
    open=True,
    why="a repetition penalty from the model's generation defaults, unknown to the trainer",
)
def _(draw: Draw) -> Evidence:
    penalty = draw.choice([1.2, 1.3])
    found = evidence(draw, draw.choice(DENSE))
    changed = []
    for rows, prompt, response in zip(found.tokens.rollout, found.tokens.prompts, found.tokens.responses, strict=True):
        table = torch.as_tensor(rows).clone()
        for step in range(len(response)):
            seen = torch.tensor(sorted({*prompt, *response[:step]}))
            values = table[step, seen]
            table[step, seen] = torch.where(values > 0, values / penalty, values * penalty)
        changed.append(table.numpy())
    found.set("rollout_logprobs", found.logprobs(changed))
    found.meta["rollout"] = {"engine": "vllm", "generation_config": {"repetition_penalty": penalty}}
    return found


@fault("pair-shifted", DA, ("shifted-by-one",), ("train", "both", "unknown"), why="B16, B17: one place off")
def _(draw: Draw) -> Evidence:
    by = draw.choice([-1, 1])
    found = evidence(draw, draw.choice(DENSE), meta=draw.choice(["full", "none"]))
    found.set("train_logprobs", [np.roll(v, by) for v in found.logprobs(found.plain.logits)])
    return found


@fault(
    "pair-lost-id",
    DA,
    ("shifted-by-one", "ids-differ", "retokenised"),
    why="B19: one id lost in the middle of some rows, the tail one place off",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    values = found.logprobs(found.plain.logits)
    for row in range(0, len(values), draw.choice([2, 3])):
        place = draw.integer(3, 14)
        values[row] = np.concatenate([values[row][:place], values[row][place + 1 :], values[row][-1:]])
    found.set("train_logprobs", values)
    return found


def _reencoded(draw: Draw, found: Evidence) -> list[list[int]]:
    """Prompt and response with a few ids of the prompt's end replaced by the two that their text is also made of."""
    tokenizer = json.loads((Path(found.model.config._name_or_path) / "tokenizer.json").read_text())["model"]
    ids, rows = tokenizer["vocab"], []
    parts = {ids[left + right]: [ids[left], ids[right]] for left, right in tokenizer["merges"]}
    for prompt, response in zip(found.tokens.prompts, found.tokens.responses, strict=True):
        merged = [place for place, token in enumerate(prompt) if token in parts][-draw.integer(2, 4) :]
        split = [parts[token] if place in merged else [token] for place, token in enumerate(prompt)]
        rows.append([*(token for pieces in split for token in pieces), *response])
    return rows


@fault(
    "pair-retokenised",
    DA,
    ("retokenised", "ids-differ"),
    why="B23: the trainer's context went through text; it kept its own ids",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    ids = _reencoded(draw, found)
    found.train(found.score(ids=ids))
    found.set("train_token_ids", ids)
    return found


@fault(
    "pair-retokenised-hidden",
    DA,
    ("retokenised", "ids-differ", "template-differs"),
    open=True,
    why="B23 without the trainer's ids: the file alone cannot tell",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), meta="sizes")
    found.train(found.score(ids=_reencoded(draw, found)))
    return found


@fault(
    "pair-prefix-in-response",
    DA,
    ("prefix-in-response", "placeholder-logprobs"),
    also=("sampling-processing",),
    why="B20: a fixed prefix of the answer is prompt for the engine and response for the trainer",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    prefix, scored = draw.integer(2, 4), found.logprobs(found.plain.logits)
    values = found.logprobs(found.tokens.rollout)
    for row in values:
        row[:prefix] = 0.0
    found.set("rollout_logprobs", values)
    found.set("train_logprobs", scored)
    return found


@fault(
    "pair-placeholders",
    DA,
    ("placeholder-logprobs", "mask-misaligned"),
    also=("sampling-processing",),
    why="B22: tool output inside the response with zeros for log-probabilities and no mask",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    values = found.logprobs(found.tokens.rollout)
    for row in values:
        start, length = draw.integer(4, 14), draw.integer(4, 9)
        row[start : start + length] = 0.0
    found.set("rollout_logprobs", values)
    return found


@fault(
    "pair-padded-id",
    DA,
    ("padded-vocabulary-id", "sampler-race"),
    also=("operator", "sampling-processing", "invalid-evidence"),
    above=0.0,
    why="B10: sampled ids beyond the tokenizer, with -inf",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    found.meta["vocab_size"] = found.meta["tokenizer_size"] + 64
    for row in found.rows[:: draw.choice([3, 4])]:
        place = draw.integer(2, 28)
        row["response_token_ids"] = list(row["response_token_ids"])
        row["response_token_ids"][place] = found.meta["tokenizer_size"] + draw.integer(0, 60)
        row["rollout_logprobs"][place] = float("-inf")
    return found


@fault(
    "pair-shard-edge",
    DA,
    ("labels-at-shard-edge", "shifted-by-one"),
    ("train", "unknown"),
    also=("framework-implementation",),
    above=1.2,
    why="B34: one wrong label at each shard's edge",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), tokens=48)
    shards = draw.choice([2, 4])
    tables = [torch.log_softmax(torch.as_tensor(rows), -1).numpy() for rows in found.plain.logits]
    values = found.logprobs(found.plain.logits)
    generator = np.random.default_rng(draw.integer(0, 9999))
    for row, table, prompt in zip(values, tables, found.tokens.prompts, strict=True):
        whole = len(prompt) + len(row)
        for edge in range(1, shards):
            place = edge * whole // shards - len(prompt)
            if 0 <= place < len(row):
                row[place] = table[place, int(generator.integers(4, table.shape[-1]))]
    found.set("train_logprobs", values)
    found.meta["train"] = {"engine": "megatron", "config": {"context_parallel_size": shards}}
    return found


FAULTS = fault.faults
