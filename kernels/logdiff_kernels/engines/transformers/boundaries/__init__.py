"""Boundaries of a Transformers model: which module or function makes each, how it is taken, what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from logdiff_kernels.engines.transformers.align.scene import evaluation
from logdiff_kernels.engines.transformers.boundaries.calls import Batch, Found
from logdiff_kernels.engines.transformers.boundaries.watch import Watch
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.rowhash import same

TRIAL = 7
"""Tokens of the forward by which `discover` looks at a model."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a boundary of a model is.

    Args:
        name: as in `names`.
        where: the module that makes it, or whose function does.
        take: how its rows lie in what that leaves.
        module: the module; None where it is a sum or the like without weights.
        facts: plain values; see `kinds`.
        width: features.
        inputs: boundaries whose rows the operator receives; "" for an argument that is none of them.
    """

    name: str
    where: str
    take: str
    module: Any
    facts: dict[str, Any] = field(default_factory=dict)
    width: int = 0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """What `discover` found.

    Args:
        places: in execution order.
        unmapped: [{"where", "why"}] of modules with weights that no boundary stands for.
    """

    places: list[Place]
    unmapped: list[dict[str, str]]


def discover(model: Any, input_ids: torch.Tensor | None = None) -> Coverage:
    """Look at one forward of a causal language model and name its boundaries.

    A capture names them in each of its own forwards by the same rules and needs none of this: a trial forward would
    change the state of user code that counts its calls.

    Args:
        model: of transformers; left as it is.
        input_ids: int64 [1, L] tokens of the trial; None: the first few ids.
    """
    ids = torch.arange(TRIAL).unsqueeze(0) if input_ids is None else input_ids
    ids = ids.remainder(model.get_input_embeddings().weight.shape[0]).to(model.device)
    found: list[Found] = []
    watch = Watch(model)
    watch.batch, watch.emit = Batch((int(ids.shape[0]), int(ids.shape[1]))), found.append
    with watch, evaluation(model):
        model(input_ids=ids, use_cache=False)
    found.sort(key=lambda one: names.order(one.name))
    rows = {one.name: one.values for one in found}
    return Coverage([_place(one, rows) for one in found], watch.unmapped())


def _place(one: Found, rows: dict[str, torch.Tensor]) -> Place:
    before = [name for name in rows if names.order(name) < names.order(one.name)]
    inputs = tuple(next((n for n in reversed(before) if same(rows[n], given)), "") for given in one.given)
    module = one.modules[0] if one.modules else None
    return Place(one.name, one.where, one.take, module, one.facts, int(one.values.shape[1]), inputs)


__all__ = ["Coverage", "Place", "discover"]
