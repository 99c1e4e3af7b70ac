"""Compiled models: aligned graphs never meet native ones in a cache, and fused arithmetic keeps its roundings.

Under torch.compile the aligned operators are opaque calls in the graph, so nothing is fused into them or replaced.
"""

from __future__ import annotations

import json
from typing import Any

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches

KEEP_ROUNDINGS = "emulate_precision_casts"
"""Inductor's switch: between two fused operations a bf16 value is rounded as it is when they run apart."""


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Add the alignment to the key of vLLM's cache of compiled models, which knows a model's own sources only."""
    from vllm.compilation import caching

    def factors(stock: Any) -> Any:
        def aot_compile_hash_factors(vllm_config: Any) -> list[str]:
            return [*stock(vllm_config), json.dumps({"logdiff": spec.as_dict()}, sort_keys=True)]

        return aot_compile_hash_factors

    patches.wrap(caching, "aot_compile_hash_factors", factors)


def prepare(config: Any) -> None:
    """Set what a compiled model needs, before it is built."""
    config.compilation_config.inductor_compile_config.setdefault(KEEP_ROUNDINGS, True)
