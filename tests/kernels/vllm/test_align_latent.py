"""Latent attention in vLLM: what is refused by name, copies of weights, a stock kernel that takes heads for tokens."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.align import AlignSpec  # noqa: E402
from logdiff_kernels.engines.vllm.align import checks, rope  # noqa: E402
from logdiff_kernels.engines.vllm.checkpoint_names import NameTable  # noqa: E402
from logdiff_kernels.engines.vllm.checksums import RankChecksums  # noqa: E402
from logdiff_kernels.errors import UnsupportedError  # noqa: E402

ALL = AlignSpec()
NORMS = AlignSpec(frozenset({"rms_norm"}))


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def bare(kind: Any, **attributes: Any) -> Any:
    """A module of that class with these attributes alone; building a whole one takes an engine."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name, value in attributes.items():
        module.__dict__[name] = value
    return module


def projection(**attributes: Any) -> Any:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    return SimpleNamespace(**{"quant_method": UnquantizedLinearMethod(), "bias": None, **attributes})


def layer(kind: Any = None, **changes: Any) -> Any:
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

    impl = CPUMLAImpl.__new__(CPUMLAImpl)
    impl.dcp_world_size = 1
    covered = {
        "use_sparse": False,
        "indexer": None,
        "impl": impl,
        "kv_cache_dtype": "auto",
        "sliding_window": None,
        "non_causal_multi_token_decode": False,
        "use_pcp": False,
        "hisparse_cache": None,
        "kv_b_proj": projection(),
    }
    return bare(kind or MLAAttention, **{**covered, **changes})


def wrapper(kind: Any = None, eps: float = 1e-6, **changes: Any) -> Any:
    from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper

    covered = {
        "is_sparse": False,
        "indexer": None,
        "g_proj": None,
        "dcp_q_replicate": False,
        "fuse_qkv_rmsnorm": False,
        "kv_a_layernorm": SimpleNamespace(variance_epsilon=eps),
    }
    return bare(kind or MultiHeadLatentAttentionWrapper, **{**covered, **changes})


def refusal(module: Any, spec: AlignSpec = ALL) -> str:
    with pytest.raises(UnsupportedError) as error:
        checks._check_module("layers.3.attn", module, spec)
    assert "layers.3.attn" in error.value.message
    return error.value.message


def test_plain_latent_attention_is_covered() -> None:
    for module in (layer(), layer(kv_cache_dtype="bfloat16"), wrapper()):
        checks._check_module("layers.3.attn", module, ALL)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_sparse": True}, "indexer"),
        ({"indexer": object()}, "indexer"),
        ({"impl": SimpleNamespace(dcp_world_size=1)}, "SimpleNamespace"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "cache of fp8"),
        ({"sliding_window": 64}, "sliding window"),
        ({"non_causal_multi_token_decode": True}, "not causally"),
        ({"use_pcp": True}, "context parallelism"),
        ({"hisparse_cache": object()}, "two memories"),
        ({"kv_b_proj": projection(quant_method=object())}, "object"),
        ({"kv_b_proj": projection(bias=object())}, "bias"),
    ],
)
def test_latent_layers_of_other_kinds(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(layer(**changes))
    checks._check_module("layers.3.attn", layer(**changes), NORMS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_sparse": True}, "indexer"),
        ({"indexer": object()}, "indexer"),
        ({"g_proj": object()}, "gate"),
        ({"dcp_q_replicate": True}, "other ranks"),
        ({"fuse_qkv_rmsnorm": True}, "one kernel"),
        ({"eps": 1e-5}, "eps 1e-05, Transformers with 1e-06"),
    ],
)
def test_what_surrounds_latent_attention(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(wrapper(**changes))


def test_subclasses_are_refused() -> None:
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper

    own = type("Own", (MLAAttention,), {})
    assert "Own" in refusal(layer(own))
    own = type("Own", (MultiHeadLatentAttentionWrapper,), {})
    assert "Own" in refusal(wrapper(own))


def test_halves_and_pairs_are_told_apart() -> None:
    from transformers import DeepseekV3Config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    plain = {"rope_type": "default", "rope_theta": 10000.0}
    config = DeepseekV3Config(qk_rope_head_dim=32, rope_parameters=plain)
    pairs = get_rope(32, 64, rope_parameters=plain, is_neox_style=False, dtype=torch.bfloat16)
    rope.prepare("layers.0.rotary_emb", pairs, config, 0, 64)
    halves = DeepseekV3Config(qk_rope_head_dim=32, rope_parameters=plain, rope_interleave=False)
    again = get_rope(32, 96, rope_parameters=plain, is_neox_style=False, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="rope_interleave = False"):
        rope.prepare("layers.0.rotary_emb", again, halves, 0, 64)


def test_yarn_by_vllms_own_name_is_the_rule_of_transformers() -> None:
    """DeepSeek's code in vLLM renames the rule in the configuration that it was given."""
    from transformers import DeepseekV3Config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    rule = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    }
    config = DeepseekV3Config(qk_rope_head_dim=32, max_position_embeddings=256, rope_parameters=rule)
    config.rope_parameters["rope_type"] = "deepseek_yarn"
    rotary = get_rope(32, 256, rope_parameters=config.rope_parameters, is_neox_style=False, dtype=torch.bfloat16)
    rope.prepare("layers.0.rotary_emb", rotary, config, 0, 256)
    assert config.rope_parameters["rope_type"] == "deepseek_yarn"
    assert rotary.logdiff_cos.shape == (256, 16)
    twice = DeepseekV3Config(qk_rope_head_dim=32, max_position_embeddings=256, rope_parameters={**rule, "factor": 8.0})
    with pytest.raises(UnsupportedError, match="different rules"):
        rope.prepare("layers.1.rotary_emb", rotary, twice, 1, 256)


class _Copies(torch.nn.Module):
    """A model of one latent layer with the copies that vLLM keeps of its up-projection."""

    def __init__(self, weight: Any, **copies: Any) -> None:
        from vllm.model_executor.layers.attention.mla_attention import MLAAttention

        super().__init__()
        attention = bare(MLAAttention, num_heads=2, qk_nope_head_dim=3, kv_b_proj=SimpleNamespace(weight=weight))
        for name, copy in copies.items():
            attention.register_parameter(name, torch.nn.Parameter(copy))
        self.attn = attention


def test_copies_of_the_up_projection_must_be_its_parts() -> None:
    weight = torch.randn(2 * (3 + 5), 4, generator=torch.Generator().manual_seed(1))
    heads = weight.view(2, 8, 4)
    keys, values = heads[:, :3].clone(), heads[:, 3:].transpose(1, 2).clone()

    def told(**copies: Any) -> list[str]:
        model = _Copies(weight, **copies)
        found = RankChecksums(model, NameTable(model, {"attn.kv_b_proj.weight": [16, 4]}), tied=False).run()
        assert found["entries"] == []
        return [entry["name"] for entry in found["not_covered"]]

    assert told() == []
    assert told(W_UK_T=keys, W_UV=values) == []
    assert told(W_UK_T=keys + 1, W_UV=values) == ["attn.W_UK_T"]
    assert told(W_UK_T=keys, W_UV=values, other=keys) == ["attn.other"]


def test_the_stock_cpu_kernel_for_rotations_takes_heads_for_tokens() -> None:
    """Why eager vLLM on a CPU is wrong for DeepSeek, whose heads stand in a dimension of their own.

    Where this fails, the kernel has been mended: the stock tests then need no `-rotary_embedding`.
    """
    from vllm import _custom_ops
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    rotary = get_rope(32, 64, rope_parameters=plain, is_neox_style=False, dtype=torch.float32)
    positions = torch.arange(3, 8)
    query, key = torch.randn(5, 4, 32), torch.randn(5, 1, 32)
    expected, _ = rotary.forward_native(positions, query.clone(), key.clone())
    found = query.clone()
    _custom_ops.rotary_embedding(positions, found, key.clone(), 32, rotary._match_cos_sin_cache_dtype(query), False)
    heads = query.view(20, 1, 32)
    mistaken, _ = rotary.forward_native(positions, heads[:5].clone(), key.clone())
    assert torch.allclose(found.view(20, 1, 32)[:5], mistaken, atol=1e-5)
    assert torch.equal(found.view(20, 1, 32)[5:], heads[5:])
    assert not torch.allclose(found, expected, atol=0.1)
