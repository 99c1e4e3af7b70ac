"""Checks at the call, for what can only be known then."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels.errors import UnsupportedError

_PLAIN = (torch.nn.Parameter, torch.Tensor)


def plain_weight(module: Any, name: str) -> torch.Tensor:
    """A parameter of `module` as it takes part in this call.

    Raises:
        UnsupportedError: it is sharded (tensor parallel DTensor), or autocast is on, under which the residual stream
            would be fp32 on this side alone.
    """
    weight: Any = getattr(module, name)
    if type(weight) not in _PLAIN and hasattr(weight, "device_mesh"):
        raise UnsupportedError(
            f"{type(module).__name__}.{name} is a shard of a tensor-parallel model",
            value=name,
            hint="train with FSDP2, or in one process",
        )
    if torch.is_autocast_enabled("cpu"):
        raise UnsupportedError(
            "torch.autocast can't be aligned: it keeps the residual stream in fp32",
            value="autocast",
            hint="bf16 parameters, or fp32 ones under FSDP2's MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        )
    return weight  # type: ignore[no-any-return]
