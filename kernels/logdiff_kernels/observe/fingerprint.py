"""The parts of `logdiff-fingerprint/1` that every engine shares."""

from __future__ import annotations

from typing import Any

from logdiff_kernels import modules
from logdiff_kernels.observe import environment as env

_ENGINE_KEYS = (
    "config",
    "effective",
    "model",
    "quantization",
    "adapters",
    "patched",
    "dispatch",
    "aligned",
    "chat_template",
    "tokenizer_size",
    "vocab_size",
    "eos_token_ids",
)


def fingerprint(engine: dict[str, Any]) -> dict[str, Any]:
    """The whole document.

    Args:
        engine: what the adapter knows: `engine` {"name", "version"} and any of config, effective, model, quantization,
            adapters, patched, dispatch, aligned, chat_template, tokenizer_size, vocab_size, eos_token_ids; None where
            missing.
    """
    return {
        "format": "logdiff-fingerprint/1",
        "engine": engine["engine"],
        "python": env.python(),
        "platform": env.platform_facts(),
        "cpu": env.cpu(),
        "torch": env.torch_facts(),
        "packages": env.packages(),
        "device": {**env.device(), "cann": env.cann()},
        "env": env.environment_variables(),
        "modules": modules.loaded(),
        **{key: engine.get(key) for key in _ENGINE_KEYS},
    }
