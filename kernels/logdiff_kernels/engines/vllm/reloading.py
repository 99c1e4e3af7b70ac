"""Loading new weights into the running engine, the way RL frameworks do each step."""

from __future__ import annotations

from typing import Any


def prepare(worker: Any) -> list[str]:
    """Let a second load pack expert weights again on vLLM's CPU backend.

    vLLM 0.32 packs expert weights only while `quant_method.moe_kernel` is None (its first load); `reload_weights`
    then copies unpacked weights into memory that the kernel reads as packed. Without the old kernel object the
    engine's own code takes the first-load path again.

    Returns:
        Names of the layers that were prepared; empty elsewhere.
    """
    from logdiff_kernels.engines.vllm.unpack import packing_kernel

    prepared = []
    for name, module in worker.model_runner.get_model().named_modules():
        if hasattr(module, "w13_weight") and packing_kernel(module) is not None:
            module.quant_method.moe_kernel = None
            prepared.append(name)
    return prepared
