"""`swiglu`: gated activations, told by what the code between the linear layers computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from logdiff_kernels.engines.transformers.align.activations import Activation, activation_modules, gate_of
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.engines.transformers.align.stand_in import Stub, attempt, stand_in

WIDTH = 64


@dataclass(frozen=True)
class GatedMlp:
    """down(activation(gate(x), up(x))); `up` is None where one layer gives both halves."""

    gate: str
    up: str | None
    down: str
    activation: Activation
    gate_first: bool = True


def find(scene: Scene) -> None:
    """Plan the replacement of gated feed-forward blocks.

    Raises:
        UnsupportedError: a block with an activation that isn't covered.
    """
    if "swiglu" not in scene.spec:
        return
    kinds: set[str] = set()
    for name, module in scene.modules():
        if hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, torch.nn.Parameter):
            continue  # stacked experts: the moe operator's
        acts = activation_modules(module)
        found = recognise(module, scene)
        if found is None and not acts:
            continue
        if found is None:
            raise refuse(name, module, "its activation isn't a gate of SiLU or tanh-GELU between linear layers")
        kinds.add(found.activation.name)
        scene.replace(module, _forward(found), "swiglu")
        for act in acts:
            scene.cover(act)
    scene.facts["swiglu"] = {"kinds": sorted(kinds)}


def recognise(module: torch.nn.Module, scene: Scene) -> GatedMlp | None:
    """What a block computes, found by running its code with the linear layers replaced by fixed numbers."""
    names = [name for name, child in module.named_children() if isinstance(child, torch.nn.Linear)]
    if len(names) not in (2, 3):
        return None
    generator = scene.generator()
    for down in reversed(names):
        rest = [name for name in names if name != down]
        width = WIDTH * (2 if len(rest) == 1 else 1)
        values = {name: 4 * torch.randn(2, width, generator=generator) for name in rest}
        stubs = {name: Stub(value) for name, value in values.items()} | {down: Stub(torch.randn(2, WIDTH))}
        shadow = stand_in(module, generator=generator, children=dict(stubs))
        result = attempt(shadow.forward, torch.randn(2, WIDTH, generator=generator))
        end = stubs[down]
        if result is not end.output or not end.args or not isinstance(end.args[0], torch.Tensor):
            continue
        inner = end.args[0]
        if len(rest) == 2:
            for gate, up in (rest, rest[::-1]):
                kind = gate_of(inner, values[gate], values[up])
                if kind is not None:
                    return GatedMlp(gate, up, down, kind)
        else:
            first, second = values[rest[0]].chunk(2, dim=-1)
            for order, (gate_value, up_value) in ((True, (first, second)), (False, (second, first))):
                kind = gate_of(inner, gate_value, up_value)
                if kind is not None:
                    return GatedMlp(rest[0], None, down, kind, order)
    return None


def _forward(mlp: GatedMlp) -> Any:
    activation, gate, up, down = mlp.activation, mlp.gate, mlp.up, mlp.down
    if up is not None:
        second = up

        def separate(self: Any, x: torch.Tensor) -> torch.Tensor:
            return getattr(self, down)(activation(getattr(self, gate)(x), getattr(self, second)(x)))  # type: ignore[no-any-return]

        return separate

    def fused(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        halves = getattr(self, gate)(hidden_states).chunk(2, dim=-1)
        return getattr(self, down)(activation(*(halves if mlp.gate_first else halves[::-1])))  # type: ignore[no-any-return]

    return fused
