"""Which module holds which engine; nothing is imported before it is asked for."""

from __future__ import annotations

import importlib

from logdiff_kernels.engines.base import Adapter
from logdiff_kernels.errors import InputError
from logdiff_kernels.protocol import Request

ENGINES = {
    "vllm": "logdiff_kernels.engines.vllm.adapter",
    "transformers": "logdiff_kernels.engines.transformers.adapter",
    "transformers-generate": "logdiff_kernels.engines.transformers.adapter",
}
"""Engine name -> module with `create(request) -> Adapter`."""


def create(request: Request) -> Adapter:
    """Build the engine that `request.engine` names.

    Raises:
        InputError: no such engine.
        EngineError: the engine refused (raised by its module).
    """
    name = request.engine
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}", value=name, hint=f"one of: {', '.join(sorted(ENGINES))}")
    adapter: Adapter = importlib.import_module(ENGINES[name]).create(request)
    return adapter
