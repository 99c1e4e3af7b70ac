"""Loading new weights into the running engine, the way RL frameworks do each step, and what vLLM 0.32 leaves behind.

`reload_weights` puts every parameter on the meta device, lets `model.load_weights` see checkpoint names, processes
each layer once it is complete and copies the result into the old memory. On a CPU three things escape it:

- expert weights are packed at the first load only, so the kernel then reads unpacked memory as packed;
- a tied language-model head gets no weight of its own, so its packed copy keeps the old values;
- a parameter that the model's `load_weights` writes to directly, not through its `weight_loader` (the attention sinks
  of GPT-OSS), is written on the meta device and lost.

`prepare` and `finish` make up for them with the engine's own first-load code, and name what they touched. Experts that
the reload never reached (GPT-OSS loads them past the `weight_loader`s too) are an error: the engine must start again.
Aligned layers keep their weights as they were loaded, so there only the last of these three is left, and such experts
are loaded again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.engines.vllm import align
from logdiff_kernels.errors import EngineError


def prepare(worker: Any) -> list[str]:
    """Before the reload: expert layers forget their kernel, so that the engine takes its first-load path again.

    Returns:
        Names of those layers; empty where nothing is packed.
    """
    from logdiff_kernels.engines.vllm.unpack import packing_kernel

    prepared = []
    for name, module in worker.model_runner.get_model().named_modules():
        if hasattr(module, "w13_weight") and packing_kernel(module) is not None:
            module.quant_method.moe_kernel = None
            prepared.append(name)
    return prepared


def finish(worker: Any, folder: str, shapes: dict[str, list[int]]) -> list[str]:
    """After the reload: pack tied heads again, load parameters again that the reload lost.

    Args:
        worker: the vLLM worker.
        folder: the checkpoint that was loaded.
        shapes: its tensors (`checkpoint_shapes`).

    Returns:
        Names of what was made up for.

    Raises:
        EngineError: expert weights that the engine's reload did not load; the engine can't go on.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    from logdiff_kernels.engines.vllm.unpack import is_packed

    model: Any = worker.model_runner.get_model()
    touched = []
    spec = align.active()
    unpacked = spec is not None and "moe" in spec  # aligned experts have no kernel and need none
    unloaded = [] if unpacked else [name for name, module in model.named_modules() if _without_kernel(module)]
    if unloaded:
        raise EngineError(
            "vLLM's reload_weights did not load the experts of this model",
            value=unloaded,
            hint="start the engine again with the new weights",
        )
    tied = bool(getattr(worker.model_config.hf_text_config, "tie_word_embeddings", False))
    with set_current_vllm_config(worker.vllm_config):
        for name, module in model.named_modules():
            head: Any = module
            if tied and isinstance(module, ParallelLMHead) and is_packed(head) and head.weight.numel():
                head.quant_method.process_weights_after_loading(head)
                touched.append(name)
        lost = _lost(model, folder, shapes)
        if unpacked:
            lost |= _lost_experts(model, folder, shapes)
        if lost:
            model.load_weights(iter(lost.items()))
    return touched + sorted(lost)


def _without_kernel(module: Any) -> bool:
    """Whether `prepare` took this expert layer's kernel and the reload did not build another."""
    method: Any = getattr(module, "quant_method", None)
    return hasattr(module, "w13_weight") and hasattr(method, "experts_cls") and method.moe_kernel is None


def _lost(model: Any, folder: str, shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """Checkpoint tensors of plain parameters (neither fused nor packed) whose values are not in memory."""
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from logdiff_kernels.engines.vllm.checkpoint_names import NameTable

    names = NameTable(model, shapes)
    wanted: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, (LinearBase, VocabParallelEmbedding, RoutedExperts)):
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            name = names.find(f"{path}.{leaf}" if path else leaf)
            if name in shapes:
                wanted[name] = parameter.data
    lost = {}
    for name, tensor in _tensors(folder, set(wanted)):
        memory = wanted[name]
        local = tensor
        for dim, (have, full) in enumerate(zip(memory.shape, tensor.shape, strict=False)):
            if have != full:
                local = local.narrow(dim, get_tensor_model_parallel_rank() * have, have)
        if local.shape == memory.shape and not torch.equal(local.to(memory.dtype).to(memory.device), memory):
            lost[name] = tensor
    return lost


def _lost_experts(model: Any, folder: str, shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """Checkpoint tensors of expert layers that load them past the `weight_loader`s that the reload watches."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    kinds = {type(module) for module in model.modules() if isinstance(module, RoutedExperts)}
    if all(kind.weight_loader is RoutedExperts.weight_loader for kind in kinds):
        return {}
    return dict(_tensors(folder, {name for name in shapes if ".experts." in name}))


def _tensors(folder: str, names: set[str]) -> Any:
    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as stream:
            for name in names & set(stream.keys()):
                yield name, stream.get_tensor(name)
