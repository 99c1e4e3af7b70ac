"""Aligned scoring has one set of bits: whatever the layout, the batch, the padding, and by key-value decoding too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from align_models import COVERED, covered
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.transformers import decoder
from logdiff_kernels.engines.transformers.align import apply
from logdiff_kernels.engines.transformers.loading import load
from logdiff_kernels.engines.transformers.scorer import Scorer
from logdiff_kernels.engines.transformers.settings import Score
from tf_reference import nothing

FAMILIES = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]
LAYOUTS = [
    Score("padded", "right", 1),
    Score("padded", "right", 2),
    Score("padded", "left", 5),
    Score("padded", "right", 16),
    Score("packed", micro_batch_size=3),
    Score("packed", micro_batch_size=16),
]


def few(names: list[str], *fast: str) -> list[Any]:
    """All names, those that aren't `fast` in the slow suite."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow(seconds=10)) for n in names]


def samples(lengths: list[int], responses: list[int], vocab: int) -> tuple[list[list[int]], list[list[int]]]:
    generator = torch.Generator().manual_seed(11)

    def draw(n: int) -> list[int]:
        return torch.randint(3, vocab, (n,), generator=generator).tolist()

    return [draw(n) for n in lengths], [draw(n) for n in responses]


def bits(model: Any, prompts: Any, responses: Any, score: Score, temperature: float = 1.0) -> Any:
    scored = Scorer(model, 0, aligned=True).score(
        prompts, responses, score, temperature=temperature, progress=nothing, topk=2
    )
    return [scored.columns[key].view(np.int32) for key in ("logprobs", "entropy", "topk_logprobs")]


def decoded(model: Any, prompts: Any, responses: Any, batch: int, temperature: float = 1.0) -> Any:
    rules = decoder.DecodeRules(0, frozenset(), 2, temperature, True)
    found = decoder.follow(model, prompts, responses, range(len(prompts)), rules, batch, lambda _n: None)
    columns = decoder.columns_of(found)
    return [columns[key].view(np.int32) for key in ("logprobs", "entropy", "topk_logprobs")]


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def assert_one_set_of_bits(model: Any, vocab: int, layouts: list[Score], temperature: float) -> None:
    prompts, responses = samples([7, 33, 12, 40, 1], [9, 5, 16, 3, 12], vocab)
    expected = bits(model, prompts, responses, Score("single"), temperature)
    for score in layouts:
        assert same(bits(model, prompts, responses, score, temperature), expected), score
    for batch in (1, 5):
        assert same(decoded(model, prompts, responses, batch, temperature), expected), f"decode, batch {batch}"


@pytest.mark.parametrize("name", few(FAMILIES, "qwen3", "gpt-oss"))
def test_layouts_and_decoding_of_a_built_model(name: str, model_folder: Callable[[str], Path]) -> None:
    model = load(str(model_folder(name)), "bfloat16", {}).model
    apply(model, AlignSpec())
    assert_one_set_of_bits(model, 1024, LAYOUTS, 1.0)


@pytest.mark.parametrize("name", few([*COVERED], "deepseek-v3", "qwen2-moe"))
def test_layouts_and_decoding_of_an_architecture(name: str) -> None:
    model = covered(name, torch.bfloat16)
    apply(model, AlignSpec())
    assert_one_set_of_bits(model, 200, LAYOUTS[1:5], 0.7)


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["qwen3", "gpt-oss"])
def test_layouts_and_decoding_in_other_dtypes(name: str, dtype: str, model_folder: Callable[[str], Path]) -> None:
    model = load(str(model_folder(name)), dtype, {}).model
    apply(model, AlignSpec())
    assert_one_set_of_bits(model, 1024, LAYOUTS[2:5], 0.7)


@pytest.mark.parametrize("name", few(["mistral", "gpt-oss"], "mistral"))
def test_a_sliding_cache_that_dropped_keys_keeps_steps_in_place(name: str, model_folder: Callable[[str], Path]) -> None:
    """Beyond 512 keys the steps of attention matter: a window's first key sits in the middle of one."""
    model = load(str(model_folder(name)), "bfloat16", {"num_hidden_layers": 2}).model
    apply(model, AlignSpec())
    prompts, responses = samples([505, 530, 21], [12, 4, 14], 1024)
    expected = bits(model, prompts, responses, Score("single"))
    assert same(bits(model, prompts, responses, Score("packed", micro_batch_size=3)), expected)
    assert same(decoded(model, prompts, responses, 3), expected)


def test_the_stock_model_breaks_these_laws(model_folder: Callable[[str], Path]) -> None:
    """Positive control: the comparison sees what alignment removes."""
    model = load(str(model_folder("qwen3")), "bfloat16", {}).model
    prompts, responses = samples([7, 33, 12, 40, 1], [9, 5, 16, 3, 12], 1024)
    expected = bits(model, prompts, responses, Score("single"))
    assert not same(bits(model, prompts, responses, Score("padded", "left", 5)), expected)
    assert not same(decoded(model, prompts, responses, 5), expected)


def test_packing_by_cumulative_lengths_is_packing_by_positions() -> None:
    model = covered("phi3", torch.bfloat16)
    apply(model, AlignSpec())
    (one, two), _ = samples([9, 14], [], 200)
    ids = torch.tensor([one + two])
    positions = torch.tensor([[*range(9), *range(14)]])
    cu = torch.tensor([0, 9, 23], dtype=torch.int32)
    with torch.no_grad():
        by_positions = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        by_lengths = model(
            input_ids=ids,
            position_ids=positions,
            cu_seq_lens_q=cu,
            cu_seq_lens_k=cu,
            max_length_q=14,
            max_length_k=14,
            use_cache=False,
        ).logits
        alone = model(input_ids=torch.tensor([two]), use_cache=False).logits
    assert torch.equal(by_positions, by_lengths)
    assert torch.equal(by_positions[:, 9:], alone)


def test_generation_of_transformers_takes_aligned_steps() -> None:
    """`generate` hands out caches and masks of its own; greedy tokens and scores are those of the scoring forward."""
    model = covered("smollm3", torch.bfloat16)
    apply(model, AlignSpec())
    (one, two), _ = samples([9, 9], [], 200)
    out = model.generate(
        torch.tensor([one, two]), max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    with torch.no_grad():
        whole = model(input_ids=out.sequences, use_cache=False).logits
    assert torch.equal(torch.stack(out.logits, dim=1), whole[:, 8:-1])
