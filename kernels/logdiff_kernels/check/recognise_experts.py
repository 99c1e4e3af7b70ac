"""The parameters of a clean model's routers and experts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from logdiff_kernels.check.clean import Clean, numbers, same
from logdiff_kernels.check.experts import choose
from logdiff_kernels.check.formulas import GATES
from logdiff_kernels.check.given import Given, Parameters, cast
from logdiff_kernels.check.kinds import KINDS


def router(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    """Candidates for the rule of a router: those that give the weights, and then the choice."""
    holder = module if module is not None else clean.config
    owners = (holder, clean.config)
    k, count = out.shape[-1], given.x[0].shape[-1]
    scales = {1.0}
    groups = {1}
    for owner in owners:
        scales |= numbers(owner, lambda key: "scal" in key)
        groups |= {int(g) for g in numbers(owner, lambda key: "group" in key) if g >= 1 and count % int(g) == 0}
    vectors: list[Any] = [None]
    if module is not None:
        for source in (module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            vectors += [v.detach() for _, v in source if v.shape == (count,)]
    ids = given.x[1].long().sort(-1).values
    for on, scoring, renormalize, scaling in itertools.product(
        ("scores", "logits"), ("softmax", "sigmoid"), (True, False), sorted(scales)
    ):
        for eps in (0.0, 1e-20) if renormalize else (0.0,):
            base = {"top_k": k, "scoring": scoring, "choose_on": on, "renormalize": renormalize, "renorm_eps": eps,
                    "scaling": scaling, "groups": 1, "topk_groups": 1, "group_score": "max", "bias": None}  # fmt: skip
            if not same(KINDS["router"].formula(given, base), out):
                continue
            for bias, g, best, kind in itertools.product(vectors, sorted(groups), sorted(groups), ("max", "top2")):
                p = base | {"bias": bias, "groups": g, "topk_groups": best, "group_score": kind}
                if best > g or (g == 1 and (best, kind) != (1, "max")) or k > best * (count // g):
                    continue
                if kind == "top2" and count // g < 2:
                    continue
                if torch.equal(choose(given, cast(p, torch.float64)).sort(-1).values, ids):
                    yield p


def experts(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    """Candidates for the weights and the activation of stacked experts."""
    stacks = expert_stacks(module, given.x[0].shape[-1])
    if stacks is None:
        return
    constants = sorted(v for v in numbers(module, lambda k: True) if (v and not float(v).is_integer()) or v == 7.0)
    kinds: list[Parameters] = [{"kind": kind} for kind in GATES]
    kinds += [
        {"kind": "swiglu_oai", "alpha": a, "limit": limit, "up_offset": 1.0}
        for a, limit in itertools.product(constants, [*constants, None])
    ]
    for stack in stacks:
        for kind in kinds:
            yield {**stack, **kind}


def expert_stacks(module: Any, width: int) -> list[Parameters] | None:
    """Candidate layouts of a module's stacked experts: gate and up [E, I, K], down [E, F, I], and their biases."""
    if module is None:
        return None
    held = dict(module.named_parameters(recurse=False))
    both, down = held.get("gate_up_proj"), held.get("down_proj")
    if both is None or down is None or both.ndim != 3:
        return None
    both, down = both.detach(), down.detach()
    both_bias, down_bias = held.get("gate_up_proj_bias"), held.get("down_proj_bias")
    found: list[Parameters] = []
    for w, d in ((both, down), (both.transpose(1, 2), down.transpose(1, 2))):
        if w.shape[2] != width or d.shape[1] != width or d.shape[2] * 2 != w.shape[1]:
            continue
        half = w.shape[1] // 2
        for gate, up in ((slice(0, half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))):
            b = None if both_bias is None else both_bias.detach()
            found.append(
                {
                    "gate": w[:, gate], "up": w[:, up], "down": d,
                    "gate_bias": None if b is None else b[:, gate], "up_bias": None if b is None else b[:, up],
                    "down_bias": None if down_bias is None else down_bias.detach(),
                }
            )  # fmt: skip
    return found or None
