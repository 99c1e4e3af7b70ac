"""What aligned mode refuses: engine features and model parts that no aligned operator covers.

Checked when a model is loaded, in every process that loads one. Nothing of a model that is asked to be aligned runs on
a stock kernel without being named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align import compiling, latent, moe, rope, router
from logdiff_kernels.engines.vllm.align.linear import OPERATOR
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_CONTAINERS = ("Module", "ModuleList", "ModuleDict", "Sequential", "Identity")
_SUBSET = "leave that operator out of the aligned ones, or this model native"


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Check before and after every model that vLLM's loaders build.

    Raises (when a model is loaded):
        UnsupportedError: what isn't covered, named.
    """
    import vllm.model_executor.model_loader  # noqa: F401  (defines the loaders)
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    def load(stock: Any) -> Any:
        def load_model(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> Any:
            check_engine(vllm_config, spec)
            compiling.prepare(vllm_config)
            model = stock(self, vllm_config, *arguments, **named)
            prepare_model(model, vllm_config, spec)
            return model

        return load_model

    for loader in (BaseModelLoader, *subclasses(BaseModelLoader)):
        if "load_model" in vars(loader):
            patches.wrap(loader, "load_model", load)


def check_engine(config: Any, spec: AlignSpec) -> None:
    """Refuse engine features that change what is computed where. Raises `UnsupportedError`."""
    for feature, value in _engine_features(config):
        raise UnsupportedError(f"aligned vLLM doesn't cover {feature}", value=value, hint="leave it out, or run native")


def _engine_features(config: Any) -> Iterator[tuple[str, Any]]:
    from vllm.platforms import current_platform

    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    if not current_platform.is_cpu():
        yield "this device", current_platform.device_name
    if config.use_v2_model_runner:
        yield "the model runner V2", "set VLLM_USE_V2_MODEL_RUNNER=0"
    if model.quantization is not None or config.quant_config is not None:
        yield "quantised weights", str(model.quantization)
    if config.lora_config is not None:
        yield "LoRA", str(config.lora_config)
    if config.speculative_config is not None:
        yield "speculative decoding", str(getattr(config.speculative_config, "method", None))
    if config.kv_transfer_config is not None:
        yield "KV cache transfer", str(config.kv_transfer_config)
    if cache.cache_dtype not in ("auto", str(model.dtype).removeprefix("torch.")):
        yield "a KV cache of another dtype than the model's", cache.cache_dtype
    if model.dtype not in _DTYPES:
        yield "this dtype", str(model.dtype)
    if model.runner_type != "generate":
        yield "models that don't generate", model.runner_type
    if model.is_multimodal_model:
        yield "multimodal models", getattr(model.hf_config, "model_type", None)
    if parallel.pipeline_parallel_size > 1:
        yield "pipeline parallelism", parallel.pipeline_parallel_size
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            yield name, getattr(parallel, name)
    if parallel.data_parallel_size > 1 and model.is_moe:
        yield "data parallelism of experts", parallel.data_parallel_size
    if parallel.enable_eplb:
        yield "expert load balancing", True


def prepare_model(model: Any, config: Any, spec: AlignSpec) -> None:
    """Check every module of a loaded model, and give routers and rotary embeddings what their operators need.

    Raises:
        UnsupportedError: the first module that isn't covered, by name.
    """
    for name, module in model.named_modules():
        _check_module(name or type(module).__name__, module, spec)
    text = config.model_config.hf_text_config
    length = int(config.model_config.max_model_len)
    for name, module in model.named_modules():
        if {"router", "moe"} & spec.ops:
            _prepare_experts(name, module, text, spec)
        if "rope" in spec:
            for leaf, child in module._modules.items():
                if isinstance(child, rope.covered()):
                    rope.prepare(f"{name}.{leaf}", child, text, _layer(name), length)


def _prepare_experts(name: str, module: Any, text: Any, spec: AlignSpec) -> None:
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.linear import ReplicatedLinear

    for leaf, runner in module._modules.items():
        if not isinstance(runner, MoERunner):
            continue
        if "moe" in spec:
            moe.prepare(runner)
        if "router" in spec:
            scaling = float(runner.routed_scaling_factor) if "moe" in spec else 1.0
            rule = router.rule_of(runner.router, str(text.model_type), scaling, f"{name}.{leaf}")
            setattr(runner.router, router.SPEC, rule)
            for gate in module._modules.values():
                chooses = type(gate) is ReplicatedLinear and gate.output_size == runner.moe_config.num_experts
                if chooses and getattr(gate, OPERATOR, None) == "linear":  # else its product stays stock, as asked for
                    setattr(gate, OPERATOR, "router")


def _check_module(name: str, module: Any, spec: AlignSpec) -> None:
    from vllm.model_executor.custom_op import CustomOp, PluggableLayer

    for check in (_linear, _embedding, _norm, _rotary, _activation, latent.check, _attention, _experts):
        known = check(name, module, spec)
        if known:
            return
    if not spec.complete:
        return
    kind = type(module)
    if isinstance(module, (CustomOp, PluggableLayer)):
        raise _refused(name, module)
    if kind.__module__.startswith("torch.nn") and kind.__name__ not in _CONTAINERS:
        raise _refused(name, module)
    own = {leaf for leaf, _ in module.named_parameters(recurse=False)}
    if own - {"sinks"}:
        raise UnsupportedError(
            f"{name} ({kind.__name__}) computes with parameters of its own: {', '.join(sorted(own))}",
            value=kind.__name__,
            hint=_SUBSET,
        )


def _refused(name: str, module: Any, why: str = "") -> UnsupportedError:
    kind = type(module).__name__
    return UnsupportedError(f"no aligned operator for {name} ({kind}){why and f': {why}'}", value=kind, hint=_SUBSET)


def _linear(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear

    kinds = (
        linear.ReplicatedLinear,
        linear.ColumnParallelLinear,
        linear.MergedColumnParallelLinear,
        linear.QKVParallelLinear,
        linear.RowParallelLinear,
        GateLinear,
    )
    if not isinstance(module, linear.LinearBase):
        return False
    if not {"linear", "linear_row", "router"} & spec.ops:
        return True
    kind = type(module)
    if getattr(module, "_use_min_latency_gemm", None) is False:  # DeepSeek's, without the GPU kernel that it is for
        kind = kind.__mro__[1]
    if kind not in kinds:
        raise _refused(name, module)
    if not isinstance(module.quant_method, linear.UnquantizedLinearMethod):
        raise _refused(name, module, type(module.quant_method).__name__)
    if module.skip_bias_add and module.bias is not None:
        raise _refused(name, module, "its bias is added by the model")
    partial = isinstance(module, linear.RowParallelLinear) and module.tp_size > 1 and not module.reduce_results
    if partial and "linear_row" in spec and "shared_expert" not in name:
        raise _refused(name, module, "its sum over ranks is left to the model")
    return True


def _embedding(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers import vocab_parallel_embedding as vocab
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    if isinstance(module, LogitsProcessor):
        if "lm_head" in spec and (type(module) is not LogitsProcessor or module.logits_as_input):
            raise _refused(name, module)
        if "lm_head" in spec and module.scale != 1.0 and module.soft_cap is not None:
            raise _refused(name, module, "vLLM caps before it scales")
        return True
    if not isinstance(module, vocab.VocabParallelEmbedding):
        return False
    if not {"embedding", "lm_head"} & spec.ops:
        return True
    if type(module) not in (vocab.VocabParallelEmbedding, vocab.ParallelLMHead):
        raise _refused(name, module)
    if type(module.quant_method) is not vocab.UnquantizedEmbeddingMethod:
        raise _refused(name, module, type(module.quant_method).__name__)
    if module.num_added_embeddings or module.parallel_group is not None or not module.reduce_results:
        raise _refused(name, module, "a vocabulary that is not sharded plainly")
    return True


def _norm(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    if not isinstance(module, (RMSNorm, GemmaRMSNorm)):
        return False
    if {"rms_norm", "add_rms_norm"} & spec.ops:
        if type(module) not in (RMSNorm, GemmaRMSNorm):
            raise _refused(name, module)
        if getattr(module, "variance_size_override", None) is not None:
            raise _refused(name, module, "the variance of a part of the row")
    return True


def _rotary(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
    from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb

    if isinstance(module, ApplyRotaryEmb):
        return True  # part of a rotary embedding, which is checked itself
    if not isinstance(module, RotaryEmbeddingBase):
        return False
    if "rope" in spec and type(module) not in rope.covered():
        raise _refused(name, module)
    return True


def _activation(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers import activation

    kinds = (activation.SiluAndMul, activation.GeluAndMul, activation.SiluAndMulWithClamp, activation.SwigluOAIAndMul)
    if not isinstance(module, kinds):
        return False
    if "swiglu" in spec:
        if type(module) not in kinds:
            raise _refused(name, module)
        if isinstance(module, activation.GeluAndMul) and module.approximate != "tanh":
            raise _refused(name, module, "GELU by the error function")
        if isinstance(module, activation.SiluAndMulWithClamp) and module.beta != 1.0:
            raise _refused(name, module, f"beta {module.beta}")
    return True


def _attention(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    if not isinstance(module, AttentionLayerBase):
        return False
    if "attention" not in spec:
        return True
    if type(module) is not Attention or type(module.impl) is not CPUAttentionBackendImpl:
        raise _refused(name, module, type(getattr(module, "impl", module)).__name__)
    impl = module.impl
    for why, bad in (
        (f"{module.attn_type} attention", module.attn_type != AttentionType.DECODER),
        ("ALiBi", impl.alibi_slopes is not None),
        (f"a KV cache of {impl.kv_cache_dtype}", impl.is_fp8_kv_cache),
        ("heads of values and keys differ", module.head_size != module.head_size_v),
        ("bidirectional prefixes", module.use_mm_prefix),
    ):
        if bad:
            raise _refused(name, module, why)
    return True


def _experts(name: str, module: Any, spec: AlignSpec) -> bool:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.fused_moe.runner.shared_experts import SharedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    if isinstance(module, (SharedExperts, UnquantizedFusedMoEMethod)):
        return True
    if isinstance(module, RoutedExperts):
        if "moe" in spec:
            if type(module).forward is not RoutedExperts.forward:
                raise _refused(name, module)
            if type(module.quant_method) is not UnquantizedFusedMoEMethod:
                raise _refused(name, module, type(module.quant_method).__name__)
            if module.apply_router_weight_on_input:
                raise _refused(name, module, "the router's weight is applied to the input")
            moe.activation_of(module)
        return True
    if not isinstance(module, MoERunner):
        return False
    if not {"moe", "router"} & spec.ops:
        return True
    for why, bad in (
        ("a runner of its own", type(module) is not MoERunner),
        (f"routing by {type(module.router).__name__}", type(module.router) is not CPURouter),
        ("a transformed input or output", module.routed_input_transform is not None),
        ("a transformed input or output", module.routed_output_transform is not None),
        ("a gate fused with its shared expert's", module.shared_expert_gate is not None),
        ("sequence parallelism", module.moe_config.is_sequence_parallel),
        ("deferred reduction", module.moe_config.skip_final_all_reduce),
    ):
        if bad:
            raise _refused(name, module, why)
    if module.routed_scaling_factor != 1.0 and module.moe_config.in_dtype == torch.float16:
        raise _refused(name, module, "in fp16 vLLM scales the shared expert instead")
    return True


def _layer(name: str) -> int | None:
    """Index of the decoder layer in a module's name."""
    found = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)", name)
    return int(found.group(1)) if found else None


def subclasses(kind: type) -> Iterator[type]:
    """Every class below `kind`."""
    child: type
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)
