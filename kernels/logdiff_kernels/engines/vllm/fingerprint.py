"""What really runs: vLLM's resolved configuration, as far as it can move a log-probability."""

from __future__ import annotations

import enum
import hashlib
from typing import Any

from logdiff_kernels.engines.vllm.launch import Started
from logdiff_kernels.protocol import Request

_SECTIONS: dict[str, tuple[str, ...]] = {
    "model_config": (
        "dtype",
        "max_model_len",
        "quantization",
        "enforce_eager",
        "logprobs_mode",
        "max_logprobs",
        "seed",
        "generation_config",
        "override_generation_config",
        "disable_sliding_window",
        "disable_cascade_attn",
        "logits_processors",
        "trust_remote_code",
        "model_impl",
        "hf_overrides",
    ),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "decode_context_parallel_size",
        "distributed_executor_backend",
        "disable_custom_all_reduce",
        "world_size",
        "worker_cls",
        "worker_extension_cls",
    ),
    "scheduler_config": (
        "enable_chunked_prefill",
        "max_num_batched_tokens",
        "max_num_seqs",
        "long_prefill_token_threshold",
        "max_num_partial_prefills",
        "policy",
        "async_scheduling",
    ),
    "cache_config": (
        "block_size",
        "enable_prefix_caching",
        "cache_dtype",
        "num_gpu_blocks",
        "sliding_window",
        "kv_cache_memory_bytes",
        "calculate_kv_scales",
    ),
    "compilation_config": ("mode", "backend", "cudagraph_mode", "custom_ops", "splitting_ops", "pass_config"),
    "attention_config": ("backend",),
    "load_config": ("load_format",),
    "device_config": ("device_type",),
}


def worker_facts(worker: Any) -> dict[str, Any]:
    """Facts of one worker: kernels that were chosen, threads, process, the user's modules that it imported."""
    import os

    import torch

    from logdiff_kernels import modules
    from logdiff_kernels.engines.vllm import dispatch as home
    from logdiff_kernels.observe.dispatch import brief

    runner = worker.model_runner
    groups = [group for level in getattr(runner, "attn_groups", []) for group in level]
    layers: dict[str, int] = {}
    for module in runner.get_model().modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            name = f"{type(module).__name__}/{type(method).__name__}"
            experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
            name += f"/{type(experts).__name__}" if experts is not None else ""
            layers[name] = layers.get(name, 0) + 1
    return {
        "rank": int(worker.rank),
        "pid": os.getpid(),
        "model_runner": type(runner).__name__,
        "model_class": type(runner.get_model()).__name__,
        "attention_backends": sorted({group.backend.get_name() for group in groups}),
        "layers": layers,
        "threads": torch.get_num_threads(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "device": str(worker.device),
        "sampler": type(getattr(runner, "sampler", None)).__name__,
        "aligned": aligned_facts(runner.get_model()),
        "modules": modules.loaded(),
        "dispatch": brief(home.PACKAGE, home.MODULES, home.registries()),
    }


def aligned_facts(model: Any) -> dict[str, Any] | None:
    """What is aligned in this process: contract, provider, kernels, operators, RoPE tables; None if nothing is."""
    from logdiff_kernels.engines.vllm import align

    facts = align.describe()
    if facts is None:
        return None
    from logdiff_kernels.engines.vllm.align.rope import HASH

    hashes = {getattr(module, HASH, None) for module in model.modules()} - {None}
    return {**facts, "rope": sorted(map(str, hashes))}


def resolved_config(config: Any) -> dict[str, Any]:
    """The sections of a `VllmConfig` that can move a log-probability, as plain values."""
    found: dict[str, Any] = {}
    for section, names in _SECTIONS.items():
        part = getattr(config, section, None)
        if part is not None:
            found[section] = {name: _plain(getattr(part, name)) for name in names if hasattr(part, name)}
    for section in ("speculative_config", "lora_config", "kv_transfer_config"):
        if getattr(config, section, None) is not None:
            found[section] = str(getattr(config, section))
    return found


def fingerprint(
    request: Request,
    started: Started,
    workers: list[dict[str, Any]],
    effective: dict[str, Any],
    repaired: list[str],
) -> dict[str, Any]:
    """The `logdiff-fingerprint/1` document of a running vLLM engine.

    Args:
        request: what was asked for.
        started: the engine.
        workers: `worker_facts` of every rank.
        effective: sampling as the engine resolved it, of the last task that sampled.
        repaired: layers whose reload was repaired (`reloading.prepare`).
    """
    import vllm

    from logdiff_kernels.observe.fingerprint import fingerprint as document

    config = started.llm.llm_engine.vllm_config
    model = config.model_config
    tokenizer = started.llm.get_tokenizer() if started.tokenizer else None
    template = getattr(tokenizer, "chat_template", None)
    return document(
        {
            "engine": {"name": "vllm", "version": vllm.__version__},
            "config": {
                **resolved_config(config),
                "arguments": {key: _plain(value) for key, value in started.arguments.items()},
                "defaults_applied": started.defaults,
                "workers": [{k: v for k, v in worker.items() if k != "dispatch"} for worker in workers],
            },
            "effective": {
                **effective,
                "seed": request.sampling.get("seed"),
                "engine_seed": model.seed,
                "logprobs_mode": str(model.logprobs_mode),
                "max_model_len": int(model.max_model_len),
                "dtype": _plain(model.dtype),
            },
            "model": _plain(model.hf_config.to_dict()),
            "quantization": model.quantization,
            "adapters": [] if config.lora_config is None else [{"name": "lora", "config": str(config.lora_config)}],
            "patched": _patched(workers, repaired),
            "dispatch": {"ranks": [worker["dispatch"] for worker in workers]},
            "aligned": _aligned(workers),
            "chat_template": hashlib.sha256(str(template).encode()).hexdigest() if template else None,
            "tokenizer_size": len(tokenizer) if tokenizer is not None else None,
            "vocab_size": int(model.get_vocab_size()),
            "eos_token_ids": effective.get("stop_token_ids"),
        }
    )


def _patched(workers: list[dict[str, Any]], repaired: list[str]) -> list[dict[str, str]]:
    """What differs from stock vLLM, besides the observers of a running task."""
    found = [{"target": name, "why": "vLLM's reload_weights left the old or unpacked values"} for name in repaired]
    if any(worker["device"] == "cpu" and worker["model_runner"] == "CPUModelRunner" for worker in workers):
        why = "on a CPU vLLM can't rewind the generator of a seeded request between chunks of its prompt"
        found.append({"target": "CPUModelRunner._bookkeeping_sync", "why": why})
    aligned = _aligned(workers) or {}
    found += [{"target": target, "why": "aligned operators"} for target in aligned.get("replaced", ())]
    return found


def _aligned(workers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The facts of rank 0, with the ranks that differ from it, if any."""
    first: dict[str, Any] | None = workers[0]["aligned"] if workers else None
    others = [worker["rank"] for worker in workers if worker["aligned"] != first]
    return {**(first or {}), "differing_ranks": others} if others else first


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value).removeprefix("torch.")
