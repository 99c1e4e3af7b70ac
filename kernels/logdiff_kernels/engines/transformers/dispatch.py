"""What Transformers would run in a process of this environment, and whether a model can be aligned; on meta tensors."""

from __future__ import annotations

import importlib.util
from typing import Any

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.errors import UnsupportedError

PACKAGE = "transformers"
MODULES = [
    "transformers.modeling_utils",
    "transformers.masking_utils",
    "transformers.activations",
    "transformers.cache_utils",
    "transformers.modeling_rope_utils",
    "transformers.integrations.sdpa_attention",
    "transformers.integrations.flash_attention",
    "transformers.integrations.hub_kernels",
    "transformers.integrations.moe",
]
"""Where Transformers keeps what decides a log-probability, whatever the model; the model's own file is added."""


MAX_ELEMENTS = 200_000_000
"""Largest model that is built for a trial."""


def load() -> str:
    """Import the package. Returns its version."""
    import transformers

    return str(transformers.__version__)


def model_modules(model: str) -> list[str]:
    """The module that defines the model of a folder; none where Transformers has no such model."""
    import json
    from pathlib import Path

    try:
        kind = json.loads((Path(model) / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError):
        return []
    name = str(kind).replace("-", "_")
    module = f"transformers.models.{name}.modeling_{name}"
    try:
        return [module] if importlib.util.find_spec(module) is not None else []
    except ModuleNotFoundError:
        return []


def registries() -> dict[str, dict[str, Any]]:
    """Tables by which Transformers chooses at run time."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return {
        "ALL_ATTENTION_FUNCTIONS": {key: ALL_ATTENTION_FUNCTIONS[key] for key in ALL_ATTENTION_FUNCTIONS},
        "ALL_MASK_ATTENTION_FUNCTIONS": {
            key: ALL_MASK_ATTENTION_FUNCTIONS[key] for key in ALL_MASK_ATTENTION_FUNCTIONS
        },
    }


def not_covered(
    model: str, dtype: str | None, args: dict[str, Any], spec: AlignSpec
) -> tuple[list[dict[str, str]], str | None]:
    """The first module that can't be aligned, and what could not be checked.

    A model of at most `MAX_ELEMENTS` parameters is built with random numbers and aligned on trial; the modules of a
    larger one are checked when its weights are loaded.
    """
    import torch
    import transformers

    from logdiff_kernels.engines.transformers.align import apply

    build: Any = transformers.AutoModelForCausalLM.from_config
    config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=bool(args.get("trust_remote_code")))
    with torch.device("meta"):
        sketch = build(config)
    if sum(p.numel() for p in sketch.parameters()) > MAX_ELEMENTS:
        return [], "the model is large: its modules are checked when its weights are loaded"
    built = build(config, dtype=getattr(torch, dtype) if dtype else None)
    try:
        apply(built, spec).restore()
    except UnsupportedError as error:
        found = {"module": str(error.value), "why": error.message, "value": str(error.value), "hint": error.hint}
        return [found], None
    return [], None
