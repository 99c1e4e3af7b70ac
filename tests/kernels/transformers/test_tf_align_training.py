"""Aligned models train: gradients near fp64, deterministic, the same under checkpointing and FSDP2."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from align_models import covered, make
from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.transformers.align import apply
from logdiff_kernels.errors import UnsupportedError

IDS = torch.tensor([[5, 9, 170, 31, 8, 77, 120, 3, 44, 61, 199, 10], [7, 7, 81, 190, 4, 6, 30, 12, 90, 0, 0, 0]])
MASK = torch.tensor([[1] * 12, [1] * 9 + [0] * 3])
SINKS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8}


def loss_of(model: Any, aligned: bool = True) -> torch.Tensor:
    logits = model(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
    picked = logits[:, :-1][MASK[:, 1:].bool()]
    targets = IDS[:, 1:][MASK[:, 1:].bool()]
    if aligned:
        return -ops.logprob(picked.float(), targets).mean()
    return torch.nn.functional.cross_entropy(picked, targets)


def gradients(model: Any, aligned: bool = True) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss_of(model, aligned).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    return make("GptOssConfig", SINKS, dtype) if name == "gpt-oss" else covered(name, dtype)


SLOW = pytest.mark.slow(seconds=10)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-v3",
        "gpt-oss",
        *(
            pytest.param(n, marks=SLOW)
            for n in ("phi3", "glm4-moe", "granite", "qwen2-moe", "qwen2-yarn", "deepseek-v3-queries", "deepseek-v2")
        ),
    ],
)
def test_gradients_are_those_of_the_stock_model_in_fp64(name: str) -> None:
    model = model_of(name).train()
    exact = copy.deepcopy(model).double()
    exact.config._experts_implementation_internal = "eager"  # the others know no fp64
    expected = gradients(exact, aligned=False)
    apply(model, AlignSpec())
    found = gradients(model)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        scale = float(value.abs().max())
        assert torch.allclose(found[key].double(), value, rtol=0, atol=2e-5 * scale + 1e-9), key


@pytest.mark.parametrize("name", ["glm4-moe", *(pytest.param(n, marks=SLOW) for n in ("qwen2-yarn", "deepseek-v3"))])
def test_checkpointing_and_repetition_give_the_same_bits(name: str) -> None:
    model = covered(name, torch.bfloat16).train()
    apply(model, AlignSpec())
    expected = gradients(model)
    again = gradients(model)
    assert all(torch.equal(expected[key], again[key]) for key in expected)
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        saved = gradients(model)
        assert saved.keys() == expected.keys()
        assert all(torch.equal(expected[key], saved[key]) for key in expected), f"reentrant {reentrant}"


def test_training_mode_has_the_bits_of_evaluation() -> None:
    model = covered("glm4-moe", torch.bfloat16).train()
    apply(model, AlignSpec())
    trained = model(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
    model.eval()
    with torch.no_grad():
        evaluated = model(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
    assert trained.requires_grad
    assert torch.equal(trained.detach(), evaluated)


def test_a_tied_head_gathers_both_gradients() -> None:
    model = covered("llama-scaled").train()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    exact = copy.deepcopy(model).double()
    apply(model, AlignSpec())
    found = gradients(model)["model.embed_tokens.weight"]
    expected = gradients(exact, aligned=False)["model.embed_tokens.weight"]
    assert torch.allclose(found.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("first", ["align", "shard"])
@pytest.mark.parametrize("name", ["glm4-moe", pytest.param("deepseek-v3", marks=SLOW)])
def test_fsdp2_keeps_bits_and_gradients(name: str, first: str, one_rank: None) -> None:
    """fp32 shards, bf16 in the forward, as trainers run it: the bits are those of the plain bf16 model."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = covered(name)
    plain = copy.deepcopy(model).to(torch.bfloat16)
    apply(plain, AlignSpec())
    expected = plain(input_ids=IDS, attention_mask=MASK, use_cache=False).logits

    if first == "align":
        apply(model, AlignSpec())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if first == "shard":
        handle = apply(model, AlignSpec())
    found = model(input_ids=IDS, attention_mask=MASK, use_cache=False).logits
    assert torch.equal(found.float(), expected.float())
    expected.square().mean().backward()
    found.square().mean().backward()
    for (name, one), (_, other) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        full = other.grad.full_tensor() if hasattr(other.grad, "full_tensor") else other.grad
        if one.grad is not None:
            assert torch.equal(one.grad.float(), full.to(torch.bfloat16).float()), name
    if first == "shard":
        handle.restore()
        assert not any("forward" in module.__dict__ for module in model.modules())


def test_arithmetic_of_a_models_own_shows_in_the_first_forward_under_fsdp2(one_rank: None) -> None:
    from torch.distributed.fsdp import fully_shard

    model = covered("phi3")
    norm = model.model.norm
    model.model.norm = torch.nn.Sequential(norm, _Squash())
    fully_shard(model)
    apply(model, AlignSpec())
    with pytest.raises(UnsupportedError, match="tanh"):
        model(input_ids=IDS, use_cache=False)


class _Squash(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


@pytest.mark.slow(seconds=90)
def test_a_compiled_model_has_the_same_bits_and_gradients() -> None:
    model = covered("phi3", torch.bfloat16).train()
    apply(model, AlignSpec())
    expected = gradients(model)
    compiled = torch.compile(model, dynamic=False)
    found = gradients(compiled)
    assert all(torch.equal(found[f"_orig_mod.{key}"], expected[key]) for key in expected)
