"""Gradient versions: an implementation whose result is the gradient of its row inputs for given output gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Impl, Layout, Problem, Sequence

PREFIX = "gradient_of_output_"


def with_output_gradients(family: Family, impl: Impl, problem: Problem, draw: Draw) -> Problem:
    """The problem with one more row input per differentiable output: what its gradient is."""
    from logdiff_kernels.probes.relations import sequence_trials

    if family.kind == "rows":
        listed = _floats(impl.call(**problem.rows, **problem.fixed))
        extra = {f"{PREFIX}{i}": draw.normal(*x.shape).to(x.dtype).to(x.device) for i, x in enumerate(listed)}
        return problem.with_rows({**problem.rows, **extra})
    one = sequence_trials.sequences(problem)[0]
    results = sequence_trials.run(impl, [one], sequence_trials.alone(impl), problem.fixed)[0]
    device = next(iter(problem.rows.values())).device
    extra = {
        f"{PREFIX}{i}": draw.normal(problem.count, *x.shape).to(x.dtype).to(device)
        for i, x in enumerate(_floats(results))
    }
    return problem.with_rows({**problem.rows, **extra})


def graded(family: Family, impl: Impl, *, weights: bool = False) -> Impl:
    """The implementation of the gradient; `weights`: also of what all rows share, as one long first row."""
    layouts = tuple(kind for kind in impl.layouts if kind != "paged")
    common: dict[str, Any] = {"layouts": layouts, "split": None, "pieces": None, "base": None}
    if family.kind == "rows":
        return replace(impl, call=row_gradient(impl.call, family, weights), **common)
    return replace(impl, call=_sequence_gradient(impl.call, family), **common)


def row_gradient(call: Callable[..., Any], family: Family, weights: bool = False) -> Callable[..., Any]:
    """`call(**rows, **fixed)` -> gradients of the rows `family.wrt`."""

    def gradient(**inputs: Any) -> tuple[Tensor, ...]:
        given = [inputs.pop(name) for name in sorted(inputs) if name.startswith(PREFIX)]
        names = [*family.wrt, *(family.weights if weights else ())]
        leaves = {
            name: inputs[name].detach().requires_grad_() for name in names if isinstance(inputs.get(name), Tensor)
        }
        with torch.enable_grad():
            outputs = _floats(call(**{**inputs, **leaves}))
        found = _gradients(outputs, list(leaves.values()), given)
        rows = len(family.wrt)
        return (*found[:rows], *(x.reshape(1, -1) for x in found[rows:]))

    return gradient


def _sequence_gradient(call: Callable[..., Any], family: Family) -> Callable[..., Any]:
    def gradient(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[tuple[Tensor, ...]]:
        leaves = [{name: one.parts[name].detach().requires_grad_() for name in family.wrt} for one in listed]
        plain = [
            Sequence({**{k: x for k, x in one.parts.items() if not k.startswith(PREFIX)}, **leaf})
            for one, leaf in zip(listed, leaves, strict=True)
        ]
        with torch.enable_grad():
            outputs = [x for result in call(plain, layout, fixed) for x in _floats(result)]
        given = [one.parts[name] for one in listed for name in sorted(one.parts) if name.startswith(PREFIX)]
        found = _gradients(outputs, [x for leaf in leaves for x in leaf.values()], given)
        width = len(family.wrt)
        return [tuple(found[i : i + width]) for i in range(0, len(found), width)]

    return gradient


def _floats(result: Any) -> list[Tensor]:
    listed = result if isinstance(result, (tuple, list)) else (result,)
    return [x for x in listed if x.is_floating_point()]


def _gradients(outputs: list[Tensor], leaves: list[Tensor], given: list[Tensor]) -> list[Tensor]:
    pairs = [(out, g.to(out.dtype)) for out, g in zip(outputs, given, strict=True) if out.requires_grad]
    found = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
