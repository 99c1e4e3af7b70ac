"""`router`: fp32 logits and the contract's choice, for routers told by what they compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logdiff_kernels import ops
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.scene import Scene
from logdiff_kernels.engines.transformers.align.stand_in import attempt, close, stand_in


@dataclass(frozen=True)
class Router:
    """A router module: `spec`, names of its bias on the logits and of its bias for the choice, and its output.

    `slots` says what each place of its output tuple holds: "logits", "weights" or "ids".
    """

    spec: RouterSpec
    logit_bias: str | None
    choice_bias: str | None
    slots: tuple[str, ...]


def recognise(module: torch.nn.Module, scene: Scene) -> Router | None:
    """What a module chooses, found by running its code on random values; None if it is no router that is covered."""
    generator = scene.generator()
    shadow = stand_in(module, generator=generator)
    weight = shadow._parameters.get("weight")
    if weight is None or weight.ndim != 2:
        return None
    experts, hidden = weight.shape
    vectors = {
        name: 0.3 * value
        for kind in ("_parameters", "_buffers")
        for name, value in getattr(shadow, kind).items()
        if value is not None and value.shape == (experts,)
    }
    for name, value in vectors.items():
        (shadow._parameters if name in shadow._parameters else shadow._buffers)[name] = value
    x = torch.randn(48, hidden, generator=generator) / hidden**0.5
    weight[:, 0] = 1.0  # a direction that all experts share: low scores show what is added to a divisor
    x[:, 0] = torch.tensor([0.0, -25.0, -50.0]).repeat_interleave(16)
    order = _Order()
    with order:
        answer = attempt(shadow.forward, x)
    if not isinstance(answer, tuple) or len(answer) not in (2, 3):
        return None
    ids = next((t for t in answer if isinstance(t, torch.Tensor) and not t.dtype.is_floating_point), None)
    if ids is None or ids.ndim != 2:
        return None
    logits = x.double() @ weight.double().T
    for names in product([None, *vectors], repeat=2):
        logit_bias, choice_bias = names
        if logit_bias is not None and logit_bias == choice_bias:
            continue
        if set(vectors) - {logit_bias, choice_bias}:
            continue  # a bias that nothing uses would be a rule not understood
        shifted = logits + vectors[logit_bias].double() if logit_bias else logits
        bias = vectors[choice_bias].double() if choice_bias else None
        for spec in _candidates(module, ids.shape[1], experts, order.scores_first):
            slots = _slots(answer, spec, shifted, bias)
            if slots is not None:
                return Router(spec, logit_bias, choice_bias, slots)
    return None


class _Order(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices whether scores are made before the first choice."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scores_first: bool | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if self.scores_first is None and name in ("_softmax", "softmax", "sigmoid", "sigmoid_"):
            self.scores_first = True
        if self.scores_first is None and name in ("topk", "sort"):
            self.scores_first = False
        return func(*args, **(kwargs or {}))


def _candidates(module: Any, k: int, experts: int, scores_first: bool | None) -> list[RouterSpec]:
    """Rules that the numbers on the module allow; those it doesn't need come later."""
    values = vars(module)
    whole = {v for n, v in values.items() if isinstance(v, int) and not isinstance(v, bool) and "group" in n.lower()}
    scales = {float(v) for n, v in values.items() if isinstance(v, (int, float)) and "scal" in n.lower()} | {1.0}
    groups = sorted(g for g in whole | {1} if g >= 1 and experts % g == 0)
    base = RouterSpec(top_k=k, choose_on="scores" if scores_first else "logits")
    found = []
    epsilons = (0.0, 1e-20, 1e-12, 1e-9, 1e-6)
    for scoring, renormalize, eps, scaling, count, best, kind in product(
        ("softmax", "sigmoid"),
        (False, True),
        epsilons,
        sorted(scales),
        groups,
        groups,
        ("max", "top2"),
    ):
        if (eps and not renormalize) or best > count or (count == 1 and (kind == "top2" or best != 1)):
            continue
        if (kind == "top2" and experts // count < 2) or k > best * (experts // count):
            continue
        found.append(
            replace(
                base,
                scoring=scoring,
                renormalize=renormalize,
                renorm_eps=eps,
                scaling=scaling,
                groups=count,
                topk_groups=best,
                group_score=kind,
            )
        )
    return found


def _slots(
    answer: tuple[Any, ...], spec: RouterSpec, logits: torch.Tensor, bias: torch.Tensor | None
) -> tuple[str, ...] | None:
    weights, ids = ops.router(logits.float(), spec, None if bias is None else bias.float())
    by_id = ids.sort(-1)
    slots = []
    given = next(t for t in answer if not t.dtype.is_floating_point)
    order = given.sort(-1)
    if not torch.equal(order.values, by_id.values):
        return None
    for value in answer:
        if not value.dtype.is_floating_point:
            slots.append("ids")
        elif value.shape == ids.shape and close(value.gather(-1, order.indices), weights.gather(-1, by_id.indices)):
            slots.append("weights")
        elif close(value, logits):
            slots.append("logits")
        else:
            return None
    return tuple(slots) if {"ids", "weights"} <= set(slots) else None


def router_forward(router: Router) -> Any:
    """The replacement: fp32 logits, fp32 weights in choice order, int64 ids, in the places of the model's own."""
    spec, slots = router.spec, router.slots

    def forward(self: Any, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> tuple[torch.Tensor, ...]:
        weight = plain_weight(self, "weight")
        rows = hidden_states.reshape(-1, weight.shape[1])
        logit_bias = getattr(self, router.logit_bias) if router.logit_bias else None
        if weight.dtype != rows.dtype:
            rows, weight = rows.float(), weight.float()
        logits = ops.linear(rows, weight, logit_bias, torch.float32)
        bias = getattr(self, router.choice_bias).float() if router.choice_bias else None
        weights, ids = ops.router(logits, spec, bias)
        made = {"logits": logits, "weights": weights, "ids": ids}
        return tuple(made[slot] for slot in slots)

    return forward
