"""vllm-ascend's batch-invariant operators, Triton and what `batch_invariant.py` defines itself. Not run on hardware.

Signatures: vllm_ascend/ops/triton/batch_invariant/ (matmul, mean, rmsnorm, softmax), vllm_ascend/batch_invariant.py of
0.23.0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

from torch import Tensor

from logdiff_kernels.probes.families.norms import EPS
from logdiff_kernels.probes.records import AbsentError, Impl, Provider

TRITON = "vllm_ascend.ops.triton.batch_invariant"


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:
        raise AbsentError(f"{name} can't be used here: {type(error).__name__}: {error}"[:300]) from None


def _about() -> str:
    try:
        return f"vllm-ascend {metadata.version('vllm-ascend')}"
    except metadata.PackageNotFoundError:
        return "vllm-ascend ?"


def _linear() -> Callable[..., Any]:
    product = _module(f"{TRITON}.matmul").linear_batch_invariant
    return lambda x, weight: product(x, weight)


def _matmul() -> Callable[..., Any]:
    product = _module(f"{TRITON}.matmul").matmul_batch_invariant
    return lambda x, weight: product(x, weight.t())


def _rms_norm() -> Callable[..., Any]:
    norm = _module(f"{TRITON}.rmsnorm").rms_norm_batch_invariant
    return lambda x, weight: norm(x, weight, EPS)


def _add_rms_norm() -> Callable[..., Any]:
    norm = _module("vllm_ascend.batch_invariant").add_rms_norm

    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, _, total = norm(x, residual, weight, EPS)
        return y, total

    return add_rms_norm


def _softmax() -> Callable[..., Any]:
    softmax = _module(f"{TRITON}.softmax").softmax_batch_invariant
    return lambda x: softmax(x, -1)


def _mean() -> Callable[..., Any]:
    mean = _module(f"{TRITON}.mean").mean_batch_invariant
    return lambda x: mean(x, [-1], dtype=None)


def _rows(make: Callable[[], Callable[..., Any]]) -> Callable[[str, str], Impl]:
    return lambda device, dtype: Impl(make(), gradients=False, about=_about())


PROVIDERS = (
    Provider(
        "vllm_ascend",
        ("npu",),
        {
            "linear": _rows(_linear),
            "linear_row": _rows(_matmul),
            "rms_norm": _rows(_rms_norm),
            "add_rms_norm": _rows(_add_rms_norm),
            "softmax": _rows(_softmax),
            "mean": _rows(_mean),
        },
        "batch-invariant operators (Triton); not run on hardware",
    ),
)
