"""Feed-forward blocks: gated or not, fused or not, and mixtures of experts with what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from logdiff_kernels.engines.transformers.boundaries import kinds
from logdiff_kernels.engines.transformers.boundaries.calls import Call, Part, part_of
from logdiff_kernels.observe.boundaries.rowhash import same

if TYPE_CHECKING:
    from logdiff_kernels.engines.transformers.boundaries.layer import Layer


def feed_forward(room: Layer) -> torch.Tensor | None:
    """Place the calls of a layer's feed-forward block. Returns the rows that the block leaves, where they are known."""
    experts = next(iter(room.of("experts")), None)
    if experts is not None:
        _experts(room, experts)
    home = experts.home if experts is not None else room.expert_block
    groups: dict[str, list[Call]] = {}
    for call in room.of("linear"):
        if not room.inside(call):
            groups.setdefault(call.home, []).append(call)
    for where, linears in groups.items():
        shared = bool(home) and (where == home or where.startswith(f"{home}."))
        activations = [c for c in room.of("activation") if c.home == where]
        _mlp(room, linears, activations, "shared_" if shared else "")
    if experts is not None:
        _sum(room, experts)
    return room.rows("moe_out", "experts_out", "mlp_out")


def _mlp(room: Layer, linears: Sequence[Call], activations: Sequence[Call], prefix: str) -> None:
    """down(act(gate(x)) * up(x)), down(act(up(x))), or with gate and up in one projection."""
    first = linears[0]
    ins = [c for c in linears if same(c.given[0], first.given[0])]
    outs = [c for c in linears if c not in ins and room.calls.index(c) > room.calls.index(ins[-1])]
    if not outs:
        return
    down = outs[0]
    act = down.given[0]
    named: dict[str, tuple[Call, Part | None, torch.Tensor]] = {}
    if len(ins) >= 2:
        gate, up = _order(ins[:2], activations, act)
        named = {"gate": (gate, None, gate.left[0]), "up": (up, None, up.left[0])}
    elif ins[0].left[0].shape[1] == 2 * act.shape[1]:
        for name, half in zip(("gate", "up"), _halves(ins[0], activations, act), strict=True):
            named[name] = ins[0], half, half.of(ins[0].left[0])
    else:
        named = {"up": (ins[0], None, ins[0].left[0])}
    for name, (call, piece, values) in named.items():
        own = kinds.linear_facts(call.module)
        room.add(f"{prefix}{name}", call, values, call.given[:1], piece=piece, facts=own)
    function = activations[0] if activations else None
    facts: dict[str, Any] = {
        "activation": kinds.activation_name(room.config),
        "gated": "gate" in named,
        **({"class": kinds.name_of(function.module)} if function else {}),
    }
    owner = Call("block", down.home, None, [], [act])
    given = [values for _, _, values in named.values()]
    room.add(f"{prefix}act", owner, act, given, take="argument of the output projection", facts=facts)
    for call in activations:
        room.placed.add(id(call))
    part = "shared_out" if prefix else "mlp_out"
    room.add(part, down, down.left[0], [act], facts=kinds.linear_facts(down.module))


def _order(ins: Sequence[Call], activations: Sequence[Call], act: torch.Tensor) -> tuple[Call, Call]:
    """Of two projections the one that is activated, first."""
    for call in activations:
        for gate, up in (ins, ins[::-1]):
            if call.given and same(call.given[0], gate.left[0]):
                return gate, up
    first, second = ins
    swapped = _away(second.left[0], first.left[0], act) < _away(first.left[0], second.left[0], act)
    return (second, first) if swapped else (first, second)


def _halves(call: Call, activations: Sequence[Call], act: torch.Tensor) -> tuple[Part, Part]:
    width = act.shape[1]
    first, second = Part(1, 0, width), Part(1, width, 2 * width)
    whole = call.left[0]
    for one in activations:
        piece = part_of(whole, one.given[0], width) if one.given and one.given[0].shape[1] == width else None
        if piece is not None:
            return (first, second) if piece == first else (second, first)
    pairs = [(first, second), (second, first), (Part(width, 0, 1), Part(width, 1, 2))]
    return min(pairs, key=lambda pair: _away(pair[0].of(whole), pair[1].of(whole), act))


def _away(gate: torch.Tensor, up: torch.Tensor, act: torch.Tensor) -> float:
    """How far `act` is from any usual gated activation, on a few rows."""
    g, u, a = (t[:4].float() for t in (gate, up, act))
    usual = (torch.nn.functional.silu(g), torch.nn.functional.gelu(g, approximate="tanh"), torch.relu(g))
    return min(float((a - one * u).square().sum()) for one in usual)


def _experts(room: Layer, call: Call) -> None:
    """Router and routed experts; ids and weights are those that the experts were given."""
    x = call.given[0]
    ids = next((t for t in call.given if not t.dtype.is_floating_point), None)
    weights = None if ids is None else next(
        (t for t in call.given[1:] if t.dtype.is_floating_point and t.shape == ids.shape), None
    )  # fmt: skip
    router = next(iter(room.of("router")), None)
    if router is None and ids is not None:
        router = _linear_router(room, call, ids.shape[1])
    logits = None
    if router is not None:
        width = _experts_count(call.module)
        floats = [t for t in router.left if t.dtype.is_floating_point]
        logits = next((t for t in floats if t.shape[1] == width), floats[0] if len(floats) == 1 else None)
        facts = {"bias": getattr(router.module, "bias", None) is not None, "class": kinds.name_of(router.module)}
        if logits is not None:
            room.add("router_logits", router, logits, router.given[:1], facts=facts)
    given = [] if logits is None else [logits]
    owner = call if router is None else router
    if ids is not None and weights is not None:
        order = weights.argsort(dim=-1, descending=True, stable=True)
        facts = kinds.router_facts(owner.module, room.config, _experts_count(call.module), ids.shape[1])
        take = "argument of the experts, by descending weight"
        weights = weights.gather(-1, order)
        ids = ids.gather(-1, order)
        room.add("expert_ids", owner, ids, given, take=take, facts=facts)
        room.add("expert_weights", owner, weights, given, take=take, facts=facts)
        for part in ("expert_ids", "expert_weights"):
            room.found[part].modules = (owner.module,) if router is not None else ()
    shared = [t for t in call.given[1:] if t.shape == x.shape and t.dtype.is_floating_point]
    inputs = [x, *(t for t in (weights, ids) if t is not None), *shared]
    facts = {**kinds.experts_facts(call.module, room.config), **({"shared_inside": True} if shared else {})}
    room.add("experts_out", call, call.left[0], inputs, facts=facts)


def _linear_router(room: Layer, experts: Call, top_k: int) -> Call | None:
    """A router that is a plain linear layer: as many features as there are experts, before they run."""
    count = _experts_count(experts.module)
    at = room.calls.index(experts)
    fit = [
        c for c in room.of("linear") if c.left[0].shape[1] == count and room.calls.index(c) < at and not room.inside(c)
    ]
    return fit[-1] if fit and count >= top_k else None


def _experts_count(module: Any) -> int:
    return next((int(p.shape[0]) for p in module.parameters(recurse=False) if p.ndim == 3), 0)


def _sum(room: Layer, experts: Call) -> None:
    """The sum of routed and shared experts, where need be by a gate of theirs: what the block around them leaves."""
    block = next((c for c in room.calls if c.kind == "block" and c.where == experts.home), None)
    if block is None or not block.left:
        return
    for call in room.of("linear"):
        if call.home == experts.home and call.left[0].shape[1] == 1:
            room.add("shared_scale", call, call.left[0], call.given[:1], facts=kinds.linear_facts(call.module))
    terms = [room.found[p].values for p in ("experts_out", "shared_out", "shared_scale") if p in room.found]
    if room.found["experts_out"].facts.get("shared_inside"):
        terms = terms[:1]
    room.add("moe_out", block, block.left[0], terms, facts={"shared": "shared_out" in room.found})
