"""What no aligned operator covers is refused by name, and only where its operator is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.align import AlignSpec  # noqa: E402
from logdiff_kernels.contract.router import RouterSpec  # noqa: E402
from logdiff_kernels.engines.vllm.align import checks, moe, rope, router  # noqa: E402
from logdiff_kernels.engines.vllm.align.arithmetic import _Watch  # noqa: E402
from logdiff_kernels.errors import UnsupportedError  # noqa: E402

ALL = AlignSpec()
NORMS = AlignSpec(frozenset({"rms_norm"}))


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def engine(**changes: Any) -> Any:
    """The parts of a `VllmConfig` that are looked at; all of them covered."""
    found: dict[str, Any] = {
        "model.quantization": None,
        "model.dtype": torch.bfloat16,
        "model.runner_type": "generate",
        "model.is_multimodal_model": False,
        "model.is_moe": True,
        "model.hf_config": SimpleNamespace(model_type="qwen3"),
        "parallel.pipeline_parallel_size": 1,
        "parallel.data_parallel_size": 1,
        "parallel.decode_context_parallel_size": 1,
        "parallel.prefill_context_parallel_size": 1,
        "parallel.enable_eplb": False,
        "cache.cache_dtype": "auto",
        "use_v2_model_runner": False,
        "quant_config": None,
        "lora_config": None,
        "speculative_config": None,
        "kv_transfer_config": None,
    }
    found.update(changes)
    parts = {
        f"{section}_config": SimpleNamespace(
            **{name.split(".")[1]: value for name, value in found.items() if name.startswith(f"{section}.")}
        )
        for section in ("model", "parallel", "cache")
    }
    return SimpleNamespace(**parts, **{name: value for name, value in found.items() if "." not in name})


def test_a_plain_engine_is_covered() -> None:
    checks.check_engine(engine(), ALL)
    checks.check_engine(engine(**{"cache.cache_dtype": "bfloat16"}), ALL)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_v2_model_runner": True}, "runner V2"),
        ({"model.quantization": "fp8"}, "quantised"),
        ({"lora_config": object()}, "LoRA"),
        ({"speculative_config": SimpleNamespace(method="eagle")}, "speculative"),
        ({"kv_transfer_config": object()}, "KV cache transfer"),
        ({"cache.cache_dtype": "fp8_e5m2"}, "KV cache"),
        ({"model.dtype": torch.float64}, "dtype"),
        ({"model.runner_type": "pooling"}, "generate"),
        ({"model.is_multimodal_model": True}, "multimodal"),
        ({"parallel.pipeline_parallel_size": 2}, "pipeline"),
        ({"parallel.decode_context_parallel_size": 2}, "decode_context"),
        ({"parallel.data_parallel_size": 2}, "data parallelism"),
        ({"parallel.enable_eplb": True}, "load balancing"),
    ],
)
def test_engine_features(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        checks.check_engine(engine(**change), ALL)


def tree(**children: Any) -> Any:
    root = torch.nn.Module()
    inner = torch.nn.Module()
    root.add_module("block", inner)
    for name, child in children.items():
        inner.add_module(name, child)
    return root


def refused(module: Any, spec: AlignSpec = ALL) -> str:
    with pytest.raises(UnsupportedError) as error:
        accepted(module, spec)
    return error.value.message


def accepted(module: Any, spec: AlignSpec = ALL) -> None:
    for name, child in tree(part=module).named_modules():
        checks._check_module(name, child, spec)


@pytest.mark.parametrize(
    "make",
    [lambda: torch.nn.LayerNorm(4), lambda: torch.nn.Linear(4, 4), torch.nn.SiLU, lambda: torch.nn.Conv1d(1, 1, 1)],
)
def test_layers_of_torch_in_a_model(make: Any) -> None:
    assert "block.part" in refused(make())
    accepted(make(), NORMS)


def test_parameters_that_a_model_computes_with_itself() -> None:
    owner = torch.nn.Module()
    owner.scale = torch.nn.Parameter(torch.ones(3))
    assert "block.part" in refused(owner)
    assert "scale" in refused(owner)
    sinks = torch.nn.Module()
    sinks.sinks = torch.nn.Parameter(torch.ones(3))
    accepted(sinks)


def test_norms_of_other_kinds() -> None:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm

    class Other(RMSNorm):  # type: ignore[misc]
        def forward_native(self, x: Any, residual: Any = None) -> Any:
            return x

    accepted(RMSNorm(8))
    accepted(GemmaRMSNorm(8))
    accepted(RMSNorm(8, has_weight=False))
    assert "Other" in refused(Other(8))
    assert "Other" in refused(Other(8), NORMS)
    assert "variance" in refused(RMSNorm(8, var_hidden_size=4))
    assert "LayerNorm" in refused(LayerNorm(8))


def test_activations_of_other_kinds() -> None:
    from vllm.model_executor.layers.activation import GeluAndMul, MulAndSilu, SiluAndMul, SiluAndMulWithClamp

    accepted(SiluAndMul())
    accepted(GeluAndMul("tanh"))
    accepted(SiluAndMulWithClamp(7.0, 1.7, 1.0))
    assert "error function" in refused(GeluAndMul("none"))
    assert "beta" in refused(SiluAndMulWithClamp(7.0))
    assert "MulAndSilu" in refused(MulAndSilu())


def test_rotary_embeddings_of_other_kinds_or_other_rules() -> None:
    from transformers import LlamaConfig
    from vllm.model_executor.layers.rotary_embedding import get_rope

    plain = {"rope_type": "default", "rope_theta": 10000.0}
    accepted(get_rope(32, 64, rope_parameters=plain, dtype=torch.bfloat16))
    mixed = get_rope(32, 64, rope_parameters={**plain, "mrope_section": [4, 6, 6]}, dtype=torch.bfloat16)
    assert "MRotaryEmbedding" in refused(mixed)
    ours = get_rope(32, 128, rope_parameters=plain, dtype=torch.bfloat16)
    config = LlamaConfig(hidden_size=128, num_attention_heads=4, rope_theta=10000.0)
    rope.prepare("layers.0.rotary_emb", ours, config, 0, 100)
    assert ours.logdiff_cos.shape == (100, 16)
    other = get_rope(32, 192, rope_parameters={**plain, "rope_theta": 500.0}, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="another rule"):
        rope.prepare("layers.0.rotary_emb", other, config, 0, 100)
    narrow = get_rope(16, 192, rope_parameters=plain, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="rotates 16"):
        rope.prepare("layers.0.rotary_emb", narrow, config, 0, 100)


def vllm_router(**changes: Any) -> Any:
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    return CPURouter(2, 8, **changes)


def test_router_rules_follow_the_model() -> None:
    assert router.rule_of(vllm_router(), "qwen3_moe", 1.0, "mlp") == RouterSpec(2, renormalize=True)
    assert router.rule_of(vllm_router(renormalize=False), "qwen2_moe", 1.0, "mlp") == RouterSpec(2)
    assert router.rule_of(vllm_router(), "gpt_oss", 1.0, "mlp") == RouterSpec(2, choose_on="logits")
    grouped = vllm_router(
        use_grouped_topk=True,
        num_expert_group=4,
        topk_group=2,
        scoring_func="sigmoid",
        routed_scaling_factor=2.5,
        e_score_correction_bias=torch.zeros(8),
    )
    expected = RouterSpec(2, "sigmoid", "scores", True, 1e-20, 2.5, 4, 2, "top2")
    assert router.rule_of(grouped, "deepseek_v3", 1.0, "mlp") == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"custom_routing_function": print},
        {"scoring_func": "sqrtsoftplus"},
        {"hash_indices_table": torch.zeros(3)},
        {"e_score_correction_bias": torch.zeros(8)},
    ],
)
def test_routers_of_other_kinds(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="mlp"):
        router.rule_of(vllm_router(**changes), "some_moe", 1.0, "mlp")


def test_expert_activations_of_other_kinds() -> None:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    def experts(kind: Any, beta: float | None = None) -> Any:
        return SimpleNamespace(layer_name="e", activation=kind, swiglu_alpha=None, swiglu_beta=beta, swiglu_limit=None)

    assert moe.activation_of(experts(MoEActivation.SWIGLUOAI)) == (("swiglu_clamped", 1.702, 7.0), True)
    for bad in (experts(MoEActivation.GELU), experts(MoEActivation.RELU2), experts(MoEActivation.SWIGLUOAI, 0.0)):
        with pytest.raises(UnsupportedError, match="e: experts"):
            moe.activation_of(bad)


class Model(torch.nn.Module):
    """A layer whose own code does `work`."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self.layer = _Layer(work)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class _Layer(torch.nn.Module):
    def __init__(self, work: Any) -> None:
        super().__init__()
        self.work = work

    def forward(self, x: Any) -> Any:
        return self.work(x)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x * 0.5 + x,
        lambda x: torch.cat([x[:, :2], x[:, 2:]], dim=1).chunk(2, dim=-1)[0],
        lambda x: (x > 0).any(),
        lambda x: x.view(-1, 2).transpose(0, 1).reshape(-1).float().to(torch.bfloat16),
    ],
)
def test_moving_data_and_single_operations_pass(work: Any) -> None:
    model = Model(work)
    with torch.inference_mode(), _Watch(model):
        model(torch.randn(3, 4))


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (torch.sigmoid, "sigmoid"),
        (lambda x: torch.nn.functional.silu(x) * x, "silu"),
        (lambda x: torch.nn.functional.linear(x, torch.ones(2, 4)), "mm"),
        (lambda x: x.sum(-1), "sum"),
        (lambda x: x.softmax(-1), "softmax"),
    ],
)
def test_other_arithmetic_in_a_model_is_refused_by_module_and_operation(work: Any, name: str) -> None:
    model = Model(work)
    with torch.inference_mode(), _Watch(model), pytest.raises(UnsupportedError, match=f"layer computes .*{name}"):
        model(torch.randn(3, 4))


def test_arithmetic_outside_of_the_model_is_nobodys_business() -> None:
    with torch.inference_mode(), _Watch(Model(lambda x: x)):
        torch.randn(3).sigmoid()
