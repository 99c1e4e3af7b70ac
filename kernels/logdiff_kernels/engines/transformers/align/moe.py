"""`router` and `moe`: mixture-of-experts blocks, told by what they compute."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.engines.transformers.align.activations import Activation, activation_modules, gate_of
from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.router import Router, recognise, router_forward
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.engines.transformers.align.stand_in import Stub, attempt, close, stand_in

_GATE = RouterSpec(top_k=1, scoring="sigmoid")


@dataclass(frozen=True)
class Block:
    """Names of the children of a block. `shared` and `shared_gate` may be None.

    `extra`: the router's output that the block gives besides the hidden states; None: it gives those alone.
    """

    router: str
    experts: str
    shared: str | None
    shared_gate: str | None
    extra: str | None


def find(scene: Scene) -> None:
    """Plan the replacement of routers, stacked experts and the sum with a shared expert.

    Raises:
        UnsupportedError: experts in another form, an unknown router, activation or combination.
    """
    wanted = {"router", "moe"} & scene.spec.ops
    if not wanted:
        return
    specs: set[RouterSpec] = set()
    activations: set[str] = set()
    for name, module in scene.modules():
        children = dict(module.named_children())
        stacked = [key for key, child in children.items() if _is_stacked(child)]
        lists = [key for key, child in children.items() if isinstance(child, torch.nn.ModuleList) and "expert" in key]
        if lists:
            raise refuse(f"{name}.{lists[0]}", module, "experts that are separate modules aren't covered")
        if not stacked:
            continue
        if len(stacked) > 1:
            raise refuse(name, module, "it has several stacks of experts")
        if getattr(module, "jitter_noise", 0):
            raise refuse(name, module, "it adds noise to its input in training", "set router_jitter_noise to 0")
        experts = children[stacked[0]]
        routers = {key: recognise(child, scene) for key, child in children.items() if _has_matrix(child)}
        found = {key: router for key, router in routers.items() if router is not None}
        if len(found) != 1:
            raise refuse(name, module, "its router isn't covered")
        key, router = next(iter(found.items()))
        block = _recognise_block(module, key, router, stacked[0], scene)
        if block is None:
            raise refuse(name, module, "the way it combines router, experts and shared expert isn't covered")
        specs.add(router.spec)
        if "router" in wanted:
            scene.replace(children[key], router_forward(router), "router")
        scene.cover(children[key])
        if "moe" in wanted:
            activation = _activation(experts, scene)
            if activation is None:
                raise refuse(f"{name}.{stacked[0]}", experts, "its activation isn't covered")
            activations.add(activation.name)
            scene.replace(experts, _experts_forward(experts, activation), "moe")
            for act in activation_modules(experts):
                scene.cover(act)
            if block.shared is not None:
                scene.replace(module, _block_forward(block, router), "moe")
        else:
            scene.cover(experts)
    if specs:
        scene.facts["moe"] = {
            "routers": [asdict(spec) for spec in sorted(specs, key=repr)],
            "activations": sorted(activations),
        }


def _is_stacked(module: torch.nn.Module) -> bool:
    stacks = [module._parameters.get(key) for key in ("gate_up_proj", "down_proj")]
    return all(stack is not None and stack.ndim == 3 for stack in stacks)


def _has_matrix(module: torch.nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.ndim == 2 and not isinstance(module, torch.nn.Linear)


def _activation(experts: Any, scene: Scene) -> Activation | None:
    """What the experts do between their products, found by running the code."""
    if not getattr(experts, "has_gate", True) or not hasattr(experts, "_apply_gate"):
        return None
    generator = scene.generator()
    both = 4 * torch.randn(4, 256, generator=generator)
    found = attempt(experts._apply_gate, both)
    numbers = tuple(v for v in vars(experts).values() if isinstance(v, float))
    gate, up = both.chunk(2, dim=-1) if getattr(experts, "is_concatenated", True) else (both[:, ::2], both[:, 1::2])
    return gate_of(found, gate, up, numbers)


def _recognise_block(module: Any, router_key: str, router: Router, experts_key: str, scene: Scene) -> Block | None:
    """How a block puts its parts together, found by running its code on stubs of them."""
    generator = scene.generator()
    hidden = module._modules[router_key]._parameters["weight"].shape[1]
    experts_count = module._modules[router_key]._parameters["weight"].shape[0]
    tokens, k = 6, router.spec.top_k
    x = torch.randn(2, 3, hidden, generator=generator)
    made = {
        "logits": torch.randn(tokens, experts_count, generator=generator),
        "weights": torch.rand(tokens, k, generator=generator),
        "ids": torch.stack([torch.randperm(experts_count, generator=generator)[:k] for _ in range(tokens)]),
    }
    stubs: dict[str, torch.nn.Module] = {
        router_key: Stub(tuple(made[slot] for slot in router.slots)),
        experts_key: Stub(torch.randn(tokens, hidden, generator=generator)),
    }
    others = [
        key for key, child in module.named_children() if key not in stubs and any(True for _ in child.parameters())
    ]
    shapes: dict[str, torch.Tensor] = {}
    for key in others:
        child = module._modules[key]
        gate = isinstance(child, torch.nn.Linear) and child.out_features == 1
        shapes[key] = torch.randn(tokens, 1 if gate else hidden, generator=generator)
        stubs[key] = _Shaped(shapes[key])
    shadow = stand_in(module, generator=generator, children=stubs)
    if set(shadow._parameters.values()) - {None}:
        return None
    result = attempt(shadow.forward, x)
    extra = None
    if isinstance(result, tuple) and len(result) == 2:
        extra = next((slot for slot, value in made.items() if result[1] is value), None)
        result = result[0]
        if extra is None:
            return None
    if not isinstance(result, torch.Tensor) or result.shape != x.shape:
        return None
    experts: Any = stubs[experts_key]
    given = [*experts.args, *experts.kwargs.values()]
    if len(given) < 3 or not torch.equal(given[0].reshape(-1), x.reshape(-1)):
        return None
    if not any(value is made["ids"] for value in given) or not any(value is made["weights"] for value in given):
        return None
    result = result.reshape(tokens, hidden)
    routed = experts.output
    if torch.equal(result, routed) and not others:
        return Block(router_key, experts_key, None, None, extra)
    gates = [key for key in others if shapes[key].shape[1] == 1]
    shared = [key for key in others if key not in gates]
    if len(shared) != 1 or len(gates) > 1:
        return None
    value = shapes[shared[0]]
    if gates:
        value = value * torch.sigmoid(shapes[gates[0]])
    if not close(result, routed + value):
        return None
    return Block(router_key, experts_key, shared[0], gates[0] if gates else None, extra)


class _Shaped(torch.nn.Module):
    """Gives its rows in the leading shape of its input."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.__dict__["rows"] = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the rows."""
        rows: torch.Tensor = self.__dict__["rows"]
        return rows.reshape(*x.shape[:-1], rows.shape[-1])


def _experts_forward(experts: Any, activation: Activation) -> Any:
    transposed = bool(getattr(experts, "is_transposed", False))
    interleaved = not getattr(experts, "is_concatenated", True)
    biased = bool(getattr(experts, "has_bias", False))

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
        shared: torch.Tensor | None = None,
    ) -> torch.Tensor:
        gate_up, down = plain_weight(self, "gate_up_proj"), plain_weight(self, "down_proj")
        if transposed:
            gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        out = ops.moe(
            rows,
            top_k_index,
            top_k_weights.float(),
            gate_up,
            down,
            self.gate_up_proj_bias if biased else None,
            self.down_proj_bias if biased else None,
            activation=activation.argument,
            interleaved=interleaved,
            shared=shared,
        )
        return out.view(hidden_states.shape)

    return forward


def _block_forward(block: Block, router: Router) -> Any:
    """A block with a shared expert: its output joins the sum in fp32, last, times its own gate if it has one."""
    shared_key = block.shared
    assert shared_key is not None

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        made = dict(zip(router.slots, getattr(self, block.router)(rows), strict=True))
        shared = getattr(self, shared_key)(rows)
        if block.shared_gate is not None:
            shared = shared_gate(getattr(self, block.shared_gate)(rows)) * shared.float()
        out = getattr(self, block.experts)(rows, made["ids"], made["weights"], shared=shared)
        out = out.view(hidden_states.shape)
        return out if block.extra is None else (out, made[block.extra])

    return forward


def shared_gate(logits: torch.Tensor) -> torch.Tensor:
    """The contract's sigmoid of logits [T, 1], in fp32: a router's score of one expert."""
    weights, _ = ops.router(logits.float(), _GATE)
    return weights
