"""The two packages that are both imported as `batch_invariant_ops`, as far as an importer can see.

The CANN wheel registers operators in torch's namespace of that name; the other one has Python functions of its own and
none of those operators (facts: the import alone proves nothing).
"""

from __future__ import annotations

from typing import Any

from standin.record import operator, refuse

SCHEMAS = {
    "npu_mm_batch_invariant": "(Tensor self, Tensor mat2) -> Tensor",
    "npu_matmul_batch_invariant": "(Tensor self, Tensor mat2) -> Tensor",
    "npu_reduce_sum_batch_invariant": "(Tensor self, int dim, bool keepdim=False) -> Tensor",
    "npu_log_softmax_batch_invariant": "(Tensor self, int dim) -> Tensor",
    "npu_fused_infer_attention_score_batch_invariant": "(Tensor query, Tensor key, Tensor value) -> (Tensor, Tensor)",
}
"""Operators of the CANN package that the recipe and vllm-ascend name; signatures only as far as needed."""

_library: list[Any] = []


def register() -> None:
    """Define the operators; each records its call and refuses it."""
    import torch

    library = torch.library.Library("batch_invariant_ops", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, operator(f"batch_invariant_ops.{name}"), "PrivateUse1")
    _library.append(library)  # an operator lives as long as its library


def set_batch_invariant_mode(enabled: bool = True) -> None:
    """The name that the other package is known by."""
    refuse("batch_invariant_ops.set_batch_invariant_mode")
