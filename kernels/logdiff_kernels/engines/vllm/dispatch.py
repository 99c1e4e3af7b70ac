"""What vLLM would run in a process of this environment, and whether it can run aligned; no model is loaded."""

from __future__ import annotations

from typing import Any

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.errors import RunnerError

PACKAGE = "vllm"
_LAYERS = "vllm.model_executor.layers"
MODULES = [
    "vllm.model_executor.custom_op",
    "vllm.model_executor.model_loader.base_loader",
    f"{_LAYERS}.linear",
    f"{_LAYERS}.layernorm",
    f"{_LAYERS}.activation",
    f"{_LAYERS}.logits_processor",
    f"{_LAYERS}.vocab_parallel_embedding",
    f"{_LAYERS}.attention.attention",
    f"{_LAYERS}.attention.mla_attention",
    f"{_LAYERS}.mla",
    f"{_LAYERS}.rotary_embedding.base",
    f"{_LAYERS}.rotary_embedding.common",
    f"{_LAYERS}.rotary_embedding.deepseek_scaling_rope",
    f"{_LAYERS}.fused_moe.layer",
    f"{_LAYERS}.fused_moe.routed_experts",
    f"{_LAYERS}.fused_moe.unquantized_fused_moe_method",
    f"{_LAYERS}.fused_moe.router.cpu_router",
    f"{_LAYERS}.fused_moe.runner.moe_runner",
    "vllm.distributed.communication_op",
    "vllm.distributed.parallel_state",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.attention.backends.mla.amx_mla",
    "vllm.v1.attention.backends.mla.cpu_mla",
    "vllm.v1.attention.backends.mla.prefill.cpu_sdpa",
    "vllm.v1.sample.sampler",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.gpu_model_runner",
]
"""Where vLLM keeps what decides a log-probability on a CPU."""


def load() -> str:
    """Load the plug-ins as an engine process does. Returns vLLM's version."""
    import vllm
    import vllm.plugins

    plugins: Any = vllm.plugins
    plugins.load_general_plugins()
    return str(vllm.__version__)


def registries() -> dict[str, dict[str, Any]]:
    """Tables by which vLLM chooses at run time."""
    from vllm.model_executor.custom_op import CustomOp

    names = ("op_registry", "op_registry_oot")
    return {f"CustomOp.{name}": dict(getattr(CustomOp, name, {})) for name in names}


def not_covered(
    model: str, dtype: str | None, args: dict[str, Any], spec: AlignSpec
) -> tuple[list[dict[str, str]], str | None]:
    """Engine features that can't be aligned, and what is checked only later."""
    from vllm.engine.arg_utils import EngineArgs

    from logdiff_kernels.engines.vllm.align import checks

    given = {"model": model, "skip_tokenizer_init": True, **args}
    if dtype is not None:
        given.setdefault("dtype", dtype)
    config = EngineArgs(**given).create_engine_config()
    try:
        checks.check_engine(config, spec)
    except RunnerError as error:
        return [{"module": "engine", "why": error.message, "value": str(error.value), "hint": error.hint}], None
    return [], "vLLM's modules are checked when the model is loaded"
