"""Aligned models compute what the stock ones compute, come back exactly, and refuse what isn't covered by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from align_models import COVERED, REFUSED, covered, make, refused
from logdiff_kernels.align import AlignSpec, parse_ops
from logdiff_kernels.engines.transformers.align import apply
from logdiff_kernels.engines.transformers.loading import load
from logdiff_kernels.errors import InputError, UnsupportedError

FAMILIES = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss", "deepseek-v3"]
IDS = torch.tensor([[5, 9, 170, 31, 8, 77, 120, 3, 44, 44, 61, 199, 10, 11, 12, 13, 14, 90, 91, 92]])


def logits(model: Any, ids: torch.Tensor = IDS, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, use_cache=False, **more).logits
    return found


@pytest.fixture
def fresh(model_folder: Callable[[str], Path]) -> Callable[..., Any]:
    """A model of its own, to change."""

    def loaded(name: str, dtype: str = "float32") -> Any:
        return load(str(model_folder(name)), dtype, {"attn_implementation": "eager"}).model  # sdpa drops Gemma 2's cap

    return loaded


def state(model: Any) -> dict[str, Any]:
    """Everything that alignment may touch, by identity."""
    found = {name: (type(module), dict(module.__dict__)) for name, module in model.named_modules()}
    return found | {"config": dict(vars(model.config))}


def assert_same_objects(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name in before:
        old, new = (v[1] if isinstance(v, tuple) else v for v in (before[name], after[name]))
        assert old.keys() == new.keys(), name
        assert all(old[key] is new[key] for key in old), name


@pytest.mark.parametrize("name", FAMILIES)
def test_a_built_model_aligns_to_the_same_function_and_back_to_the_same_bits(
    name: str, fresh: Callable[..., Any]
) -> None:
    model = fresh(name)
    before, native = state(model), logits(model)
    handle = apply(model, AlignSpec())
    found = logits(model)
    assert found.dtype == torch.float32
    assert not torch.equal(found, native), "nothing was replaced"
    assert torch.allclose(found, native, rtol=0, atol=3e-4)
    handle.restore()
    assert_same_objects(before, state(model))
    assert torch.equal(logits(model), native)


@pytest.mark.parametrize("name", COVERED)
def test_an_architecture_is_recognised_by_what_it_computes(name: str) -> None:
    model = covered(name)
    before, native = state(model), logits(model)
    handle = apply(model, AlignSpec())
    found = logits(model)
    assert not torch.equal(found, native)
    assert torch.allclose(found, native, rtol=0, atol=1e-5 * float(native.abs().max()) + 1e-6)
    handle.restore()
    assert_same_objects(before, state(model))
    assert torch.equal(logits(model), native)


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_is_not_covered_is_refused_by_module_and_left_alone(name: str) -> None:
    model, where = refused(name)
    before = state(model)
    with pytest.raises(UnsupportedError) as raised:
        apply(model, AlignSpec())
    assert raised.value.value == where
    assert where in raised.value.message
    assert_same_objects(before, state(model))


def test_an_error_half_way_leaves_the_model_as_it_was() -> None:
    model = covered("phi3")
    before, native = state(model), logits(model)
    model.model.layers[1].mlp.__dict__["forward"] = model.model.layers[1].mlp.forward  # as a wrapper would do
    with pytest.raises(UnsupportedError) as raised:
        apply(model, AlignSpec())
    assert raised.value.value == "model.layers.1.mlp"
    del model.model.layers[1].mlp.__dict__["forward"]
    assert_same_objects(before, state(model))
    assert torch.equal(logits(model), native)


def test_restoring_after_a_failed_forward_gives_the_native_model() -> None:
    model = covered("granite")
    before, native = state(model), logits(model)
    handle = apply(model, AlignSpec())
    with pytest.raises(UnsupportedError):
        logits(model, attention_mask=torch.ones(1, 1, IDS.shape[1], IDS.shape[1], dtype=torch.bool))
    handle.restore()
    assert_same_objects(before, state(model))
    assert torch.equal(logits(model), native)


def test_without_an_overlay_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGDIFF_ALIGN", raising=False)
    model = covered("phi3")
    before = state(model)
    handle = apply(model)
    assert handle.report() is None
    assert not handle.active
    assert_same_objects(before, state(model))


def test_aligning_twice_is_refused() -> None:
    model = covered("phi3")
    apply(model, AlignSpec())
    with pytest.raises(InputError, match="aligned already"):
        apply(model, AlignSpec())


def test_other_models_of_the_process_stay_native() -> None:
    model, other = covered("glm4"), covered("glm4")
    native = logits(other)
    apply(model, AlignSpec())
    assert torch.equal(logits(other), native)


def test_a_model_that_shares_the_configuration_object_is_told_apart() -> None:
    model = covered("phi3")
    other = type(model)(model.config).eval()
    apply(model, AlignSpec())
    with pytest.raises(UnsupportedError, match="shares its configuration"):
        logits(other)


def test_a_copied_model_runs_on_its_own_weights() -> None:
    model = covered("phi3")
    apply(model, AlignSpec())
    copied = copy.deepcopy(model)
    expected = logits(copied)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.zero_()
    assert torch.equal(logits(copied), expected)
    assert not torch.equal(logits(model), expected)


class _Lora(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


def test_a_linear_layer_with_a_forward_of_its_own_is_refused() -> None:
    model = covered("phi3")
    model.model.layers[1].self_attn.o_proj = _Lora(64, 64, bias=False)
    with pytest.raises(UnsupportedError) as raised:
        apply(model, AlignSpec())
    assert raised.value.value == "model.layers.1.self_attn.o_proj"


def test_a_parameter_that_nothing_covers_is_refused() -> None:
    model = covered("phi3")
    model.model.layers[0].extra = torch.nn.Conv1d(4, 4, 3)
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.extra"):
        apply(model, AlignSpec())


class _Gated(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * torch.sigmoid(x)


def test_arithmetic_in_a_models_own_code_is_refused_and_undone() -> None:
    """A gate without parameters or known activation shows only in what is computed."""
    model = covered("phi3")
    model.model.layers[1].mlp = _Gated(model.model.layers[1].mlp)
    before, native = state(model), logits(model)
    with pytest.raises(UnsupportedError, match="sigmoid") as raised:
        apply(model, AlignSpec())
    assert raised.value.value == "model.layers.1.mlp"
    assert_same_objects(before, state(model))
    assert torch.equal(logits(model), native)
    apply(model, AlignSpec(parse_ops("all") - {"embedding"}))  # a subset promises nothing about the rest


def test_noise_on_a_routers_input_is_refused() -> None:
    model = make("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.1})
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.mlp.*noise"):
        apply(model, AlignSpec())


def test_quantised_weights_are_refused() -> None:
    model = covered("phi3")
    model.config.quantization_config = {"quant_method": "awq"}
    with pytest.raises(UnsupportedError, match="quantised"):
        apply(model, AlignSpec())


def test_dropout_is_refused_in_training_and_harmless_in_evaluation() -> None:
    model = make("Phi3Config", {"resid_pdrop": 0.1})
    apply(model, AlignSpec())
    logits(model)
    model.train()
    with pytest.raises(UnsupportedError, match="resid_attn_dropout"):
        model(input_ids=IDS)
    model = make("LlamaConfig", {"attention_dropout": 0.1})
    apply(model, AlignSpec())
    model.train()
    with pytest.raises(UnsupportedError, match="drops attention weights"):
        model(input_ids=IDS)


def test_autocast_is_refused() -> None:
    model = covered("phi3")
    apply(model, AlignSpec())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedError, match="autocast"):
        logits(model)


def test_padding_between_tokens_is_refused() -> None:
    model = covered("phi3")
    apply(model, AlignSpec())
    mask = torch.ones_like(IDS)
    mask[0, 4] = 0
    with pytest.raises(UnsupportedError, match="padding between"):
        logits(model, attention_mask=mask)


def test_positions_that_a_rule_does_not_cover_are_refused() -> None:
    rule = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = make("LlamaConfig", {"max_position_embeddings": 16, "rope_parameters": rule})
    apply(model, AlignSpec())
    logits(model, IDS[:, :16])
    with pytest.raises(UnsupportedError, match="below 16"):
        logits(model)


def test_the_report_says_what_runs() -> None:
    from logdiff_kernels.contract import CONTRACT
    from logdiff_kernels.contract.rope import RopeSpec

    model = covered("deepseek-v3")
    handle = apply(model, AlignSpec(parse_ops("all"), id="plan-1"))
    report = handle.report()
    assert report is not None
    assert (report["contract"], report["provider"], report["id"]) == (CONTRACT, "aligned-cpu", "plan-1")
    assert report["rope"] == [RopeSpec.from_hf(model.config, head_dim=8).hash()]
    rules = report["operators"]["moe"]["routers"]
    assert [(r["scoring"], r["groups"], r["topk_groups"], r["scaling"]) for r in rules] == [("sigmoid", 4, 2, 2.5)]
    assert report["operators"]["linear"]["row"] == {"32": 2, "64": 4, "96": 2}
    assert any(line.startswith("model.layers.1.mlp.experts.forward") for line in handle.patched())
    handle.restore()
    assert handle.report() is None
