"""`embedding`: rows copied, times the model's scale as its own code rounds it."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.engines.transformers.align.stand_in import attempt, own_class, stand_in


def find(scene: Scene) -> None:
    """Plan the replacement of the token embedding.

    Raises:
        UnsupportedError: an embedding that does more than copy rows and scale them.
    """
    if "embedding" not in scene.spec:
        return
    for name, module in scene.modules():
        if not isinstance(module, torch.nn.Embedding):
            continue
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise refuse(name, module, "max_norm, scale_grad_by_freq and sparse aren't covered")
        scale = _scale(module, scene)
        if scale is None:
            raise refuse(name, module, "it does more than copy rows and multiply them by one number")
        scene.replace(module, _scaled if scale else _plain, "embedding")


def _scale(module: Any, scene: Scene) -> bool | None:
    """Whether the module scales its rows by `embed_scale`; None if it computes something else."""
    if own_class(module).forward is torch.nn.Embedding.forward:
        return False
    shadow = stand_in(module, generator=scene.generator())
    rows = shadow._parameters["weight"][:4]
    found = attempt(shadow.forward, torch.arange(4))
    factor = getattr(shadow, "embed_scale", None)
    if found is None or factor is None:
        return None
    return True if torch.equal(found, rows * torch.as_tensor(factor).to(rows.dtype)) else None


def _plain(self: Any, input: torch.Tensor) -> torch.Tensor:
    return ops.embedding(input, plain_weight(self, "weight"), None, self.padding_idx)


def _scaled(self: Any, input_ids: torch.Tensor) -> torch.Tensor:
    weight = plain_weight(self, "weight")
    return ops.embedding(input_ids, weight, self.embed_scale, self.padding_idx)
