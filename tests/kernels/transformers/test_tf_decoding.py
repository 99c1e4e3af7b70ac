"""Decoding with a key-value cache: sampling, following given tokens, and what both report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.engines.settings import Sampling
from logdiff_kernels.engines.transformers import decoder
from logdiff_kernels.engines.transformers.decoder import DecodeRules
from logdiff_kernels.engines.transformers.sampling import TokenSampler
from tf_reference import PROMPTS, RESPONSES, SAMPLE_IDS, reference

FAMILIES = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]


def sampled(
    model: Any, batch: int = 4, rows: slice = slice(None), ends: frozenset[int] = frozenset(), **options: Any
) -> Any:
    sampling = Sampling.parse({"max_tokens": 12, "seed": 3, **options})
    rules = DecodeRules(0, ends, sampling.topk, sampling.scored_temperature)
    return decoder.sample(model, SAMPLE_IDS[rows], PROMPTS[rows], sampling, rules, batch, lambda _count: None)


def followed(model: Any, responses: list[list[int]], batch: int, order: list[int], temperature: float = 1.0) -> Any:
    rules = DecodeRules(0, frozenset(), 0, temperature)
    return decoder.follow(model, PROMPTS, responses, order, rules, batch, lambda _count: None)


def logprobs(results: Any) -> np.ndarray[Any, Any]:
    found = decoder.columns_of(results)["logprobs"]
    assert found.dtype == np.float32
    return np.asarray(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_decoding_agrees_with_whole_sequences(name: str, load_model: Callable[..., Any]) -> None:
    model = load_model(name)
    results = sampled(model)
    responses = [r.tokens for r in results]
    expected, entropies = reference(model, PROMPTS, responses)
    assert [len(r) for r in responses] == [12] * 4
    assert np.abs(logprobs(results) - expected).max() < 2e-4
    assert np.abs(decoder.columns_of(results)["entropy"] - entropies).max() < 2e-4


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "gemma2"])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_following_the_sampled_tokens_gives_the_same_bits(
    name: str, batch: int, load_model: Callable[..., Any]
) -> None:
    model = load_model(name, "bfloat16")
    ends = frozenset(range(0, 1024, 7))  # rows end at different steps
    first = sampled(model, batch, ends=ends)
    again = followed(model, [r.tokens for r in first], batch, [0, 1, 2, 3])
    assert len({len(r.tokens) for r in first}) > 1
    assert np.array_equal(logprobs(first).view(np.int32), logprobs(again).view(np.int32))


def test_followed_samples_stand_in_the_given_order(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    expected, _ = reference(model, PROMPTS, RESPONSES)
    for order in ([3, 1, 0, 2], [0, 1, 2, 3]):
        found = followed(model, RESPONSES, 3, order)
        assert [r.tokens for r in found] == RESPONSES
        assert np.abs(logprobs(found) - expected).max() < 2e-4


def test_a_samples_tokens_do_not_depend_on_who_shares_the_batch(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    together = sampled(model, 4)
    for i in range(4):
        (alone,) = sampled(model, 1, slice(i, i + 1))
        assert alone.tokens == together[i].tokens


def test_the_seed_decides_the_tokens(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    one, same, other = (sampled(model, seed=s) for s in (1, 1, 2))
    assert [r.tokens for r in one] == [r.tokens for r in same]
    assert [r.tokens for r in one] != [r.tokens for r in other]


def test_temperature_zero_takes_the_most_likely_token_and_scores_at_one(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    results = sampled(model, temperature=0, topk=1)
    facts = decoder.columns_of(results)
    tokens = np.concatenate([r.tokens for r in results])
    assert np.array_equal(facts["topk_ids"][:, 0], tokens)
    expected, _ = reference(model, PROMPTS, [r.tokens for r in results])
    assert np.abs(logprobs(results) - expected).max() < 2e-4


def test_temperature_is_in_the_logprobs_and_truncation_is_not(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    results = sampled(model, temperature=0.6, top_k=5, top_p=0.8, topk=5)
    facts = decoder.columns_of(results)
    tokens = np.concatenate([r.tokens for r in results])
    assert all(token in top for token, top in zip(tokens, facts["topk_ids"], strict=True))
    expected, _ = reference(model, PROMPTS, [r.tokens for r in results], 0.6)
    assert np.abs(logprobs(results) - expected).max() < 4e-4


def test_an_end_token_is_kept_and_ends_the_row(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    free = [r.tokens for r in sampled(model)]
    end = free[0][4]
    results = sampled(model, ends=frozenset({end}))
    for tokens, result in zip(free, results, strict=True):
        expected = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        assert result.tokens == expected
        assert result.finish == ("stop" if end in tokens else "length")


def test_experts_of_decode_steps_are_recorded(load_model: Callable[..., Any]) -> None:
    model = load_model("qwen3-moe")
    results = sampled(model)
    found = decoder.columns_of(results)["experts"]
    assert found.shape == (48, 4, 4)
    with torch.no_grad():
        ids = torch.tensor([PROMPTS[0] + results[0].tokens])
        out = model.model(input_ids=ids, output_router_logits=True)
    expected = torch.stack([r.topk(4, -1).indices for r in out.router_logits], 1)[len(PROMPTS[0]) - 1 : -1]
    assert (found[:12] == expected.numpy()).mean() > 0.99


def test_draws_follow_the_distribution() -> None:
    logp = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    counts = np.zeros(4)
    sampler = TokenSampler(Sampling.parse({"seed": 1}), "s")
    for _ in range(4000):
        counts[sampler.choose(logp)] += 1
    assert np.abs(counts / 4000 - [0.5, 0.3, 0.15, 0.05]).max() < 4 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"top_p": 0.51}, [0.625, 0.375, 0, 0]),
        ({"top_p": 1e-6}, [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.9}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"top_k": 100}, [0.5, 0.3, 0.15, 0.05]),
    ],
)
def test_truncation_keeps_the_documented_tokens(options: dict[str, Any], kept: list[float]) -> None:
    order = [2, 0, 3, 1]  # the most likely token is not the first id
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logp = torch.empty(4)
    logp[order] = torch.log(p)
    sampler = TokenSampler(Sampling.parse({"seed": 2, **options}), "s")
    counts = np.zeros(4)
    for _ in range(3000):
        counts[sampler.choose(logp)] += 1
    share = counts[order] / 3000
    assert np.abs(share - kept).max() < 4 * np.sqrt(0.25 / 3000)
    assert all(s == 0 for s, k in zip(share, kept, strict=True) if k == 0)
