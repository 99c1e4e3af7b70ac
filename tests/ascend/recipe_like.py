"""Patches like those of the public true-on-policy recipe, written from its description; nothing is copied from it.

They replace what the recipe replaces, in the ways in which it does: registrations for the NPU key, functions of torch,
methods of vLLM's and vllm-ascend's classes, functions of modules. None of them computes anything.
"""

from __future__ import annotations

from typing import Any

from standin.record import refuse

PATCHED = (
    "vllm.model_executor.layers.linear.RowParallelLinear.forward",
    "vllm.v1.sample.sampler.Sampler.compute_logprobs",
    "vllm_ascend.ascend_forward_context.select_moe_comm_method",
    "vllm_ascend.ops.activation.AscendSiluAndMul.forward_oot",
    "vllm_ascend.ops.fused_moe.experts_selector.select_experts",
    "vllm_ascend.ops.fused_moe.moe_mlp.unified_apply_mlp",
    "vllm_ascend.ops.layernorm.AscendRMSNorm.forward_oot",
    "vllm_ascend.platform.NPUPlatform.get_attn_backend_cls",
)
"""Full names that `apply` puts other functions in place of."""

REGISTERED = ("aten::mm", "aten::matmul", "aten::sum", "aten::log_softmax", "aten::_log_softmax")
"""Operators that `apply` registers for the NPU; the bare `log_softmax` and `sum` reach less than their names say."""

_library: list[Any] = []


def mm(left: Any, right: Any) -> Any:
    """In place of aten::mm."""
    return refuse("recipe.mm")


def matmul(left: Any, right: Any) -> Any:
    """In place of aten::matmul."""
    return refuse("recipe.matmul")


def reduced(tensor: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """In place of torch.sum and torch.Tensor.sum."""
    return refuse("recipe.sum")


def log_softmax(tensor: Any, dim: int, dtype: Any = None) -> Any:
    """In place of log_softmax, with a dtype where the inner operator passes a bool."""
    return refuse("recipe.log_softmax")


def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """In place of a method."""
    return refuse("recipe.method")


def function(*arguments: Any, **keywords: Any) -> Any:
    """In place of a function."""
    return refuse("recipe.function")


def apply() -> None:
    """Do all of it."""
    import importlib

    import torch

    library = torch.library.Library("aten", "IMPL")
    for name, by in zip(REGISTERED, (mm, matmul, reduced, log_softmax, log_softmax), strict=True):
        library.impl(name, by, "NPU")
    _library.append(library)
    torch.sum = reduced
    torch.Tensor.sum = reduced  # type: ignore[method-assign, assignment]
    for name in PATCHED:
        home, owner, attribute = _parts(name)
        holder = importlib.import_module(home)
        target = getattr(holder, owner) if owner else holder
        if attribute == "get_attn_backend_cls":
            setattr(target, attribute, classmethod(method))
        elif attribute == "compute_logprobs":
            setattr(target, attribute, staticmethod(function))
        else:
            setattr(target, attribute, method if owner else function)


def _parts(name: str) -> tuple[str, str, str]:
    """(module, class or "", attribute)."""
    rest, _, attribute = name.rpartition(".")
    home, _, owner = rest.rpartition(".")
    return (home, owner, attribute) if owner[:1].isupper() else (rest, "", attribute)
