"""torch.compile of the functions in `torch_eager`, with dynamic shapes as engines compile them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

from logdiff_kernels.probes.providers import torch_eager
from logdiff_kernels.probes.records import AbsentError, Impl, Provider

_OPS: dict[str, Callable[..., Any]] = {
    "linear": torch_eager.linear,
    "rms_norm": torch_eager.rms_norm,
    "add_rms_norm": torch_eager.add_rms_norm,
    "swiglu": torch_eager.swiglu,
    "geglu_tanh": torch_eager.geglu_tanh,
    "rope": torch_eager.rope,
    "log_softmax": torch_eager.log_softmax,
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "sum": lambda x: x.sum(-1),
    "router": torch_eager.router,
}


def _compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function, which raises where torch would go on eagerly without a word: after 8 compilations."""
    compiled = torch.compile(call, dynamic=True)

    def checked(**inputs: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
            return compiled(**inputs)

    return checked


def _maker(call: Callable[..., Any]) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        if device == "cpu":
            if shutil.which(os.environ.get("CXX", "g++")) is None:
                raise AbsentError("torch.compile needs a C++ compiler here (g++, or CXX)")
        elif device == "npu":
            raise AbsentError("torch.compile has no NPU back end here")
        return Impl(_compiled(call), gradients=False, about=f"torch {torch.__version__} inductor")

    return make


PROVIDERS = (
    Provider(
        "torch_compiled",
        ("cpu", "cuda"),
        {op: _maker(call) for op, call in _OPS.items()},
        "torch.compile, dynamic shapes",
        on_request="it compiles for minutes: name it with --provider",
    ),
)
