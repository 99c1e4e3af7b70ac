"""Huawei's CANN package `batch_invariant_ops` (AscendC), as vllm-ascend and MindSpeed call it. Not run on hardware.

A CUDA package has the same import name: the operators themselves are looked for, not the package alone.
Signatures: vllm_ascend/batch_invariant.py, mindspeed/core/batch_invariant.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from logdiff_kernels.probes.providers.torch_npu import infer_attention
from logdiff_kernels.probes.records import AbsentError, Impl, Provider


def _operator(name: str) -> Any:
    try:
        package = import_module("batch_invariant_ops")
    except Exception as error:
        raise AbsentError(f"batch_invariant_ops can't be used here: {type(error).__name__}: {error}"[:300]) from None
    operators = torch.ops.batch_invariant_ops
    if not hasattr(operators, name):
        place = getattr(package, "__file__", "?")
        raise AbsentError(f"the package batch_invariant_ops here ({place}) has no operator {name}")
    return getattr(operators, name)


def _made(name: str, call: Callable[[Any], Callable[..., Any]]) -> Callable[[str, str], Impl]:
    return lambda device, dtype: Impl(call(_operator(name)), gradients=False, about=name)


def _attention(device: str, dtype: str) -> Impl:
    name = "npu_fused_infer_attention_score_batch_invariant"
    return Impl(
        infer_attention(_operator(name)), layouts=("paged",), pages=(128, 256), gradients=False, about=name
    )  # fmt: skip


PROVIDERS = (
    Provider(
        "cann_batch_invariant",
        ("npu",),
        {
            "linear": _made("npu_mm_batch_invariant", lambda op: lambda x, weight: op(x, weight.t())),
            "linear_row": _made("npu_matmul_batch_invariant", lambda op: lambda x, weight: op(x, weight.t())),
            "sum": _made("npu_reduce_sum_batch_invariant", lambda op: lambda x: op(x, -1, False)),
            "log_softmax": _made("npu_log_softmax_batch_invariant", lambda op: lambda logits: op(logits.float(), -1)),
            "attention": _attention,
        },
        "CANN batch_invariant_ops (AscendC); not run on hardware",
    ),
)
