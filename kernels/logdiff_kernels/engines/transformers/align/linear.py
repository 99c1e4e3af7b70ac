"""`linear` and `linear_row`: every unquantised linear layer but the head."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.contract.linear import is_row_parallel, row_leaves
from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse, text_config
from logdiff_kernels.engines.transformers.align.stand_in import own_class


def find(scene: Scene) -> None:
    """Plan the replacement of the linear layers that are asked for.

    Raises:
        UnsupportedError: a linear layer with a forward of its own (quantised, LoRA).
    """
    wanted = {"linear", "linear_row"} & scene.spec.ops
    plan = tp_plan(scene.model)
    head = scene.model.get_output_embeddings()
    rows: dict[str, int] = {}
    columns = 0
    for name, module in scene.modules():
        if not isinstance(module, torch.nn.Linear) or module is head:
            continue
        row = is_row_parallel(name, plan)
        if ("linear_row" if row else "linear") not in wanted:
            continue
        if own_class(module).forward is not torch.nn.Linear.forward:
            raise refuse(name, module, "its forward is not that of nn.Linear")
        if row:
            rows[name] = module.in_features
            scene.replace(module, _linear_row, "linear_row")
        else:
            columns += 1
            scene.replace(module, _linear, "linear")
    if wanted:
        scene.facts["linear"] = {"column": columns, "row": leaves_by_length(rows)}


def leaves_by_length(rows: dict[str, int]) -> dict[str, int]:
    """K of the row-parallel layers, as text, to L."""
    return {str(k): row_leaves(k) for k in sorted(set(rows.values()))}


def tp_plan(model: Any) -> dict[str, str]:
    """The model's tensor-parallel plan, as its configuration gives it."""
    return dict(getattr(text_config(model), "base_model_tp_plan", None) or {})


def _linear(self: Any, input: torch.Tensor) -> torch.Tensor:
    return ops.linear(input, plain_weight(self, "weight"), self.bias)


def _linear_row(self: Any, input: torch.Tensor) -> torch.Tensor:
    return ops.linear_row(input, plain_weight(self, "weight"), self.bias)
