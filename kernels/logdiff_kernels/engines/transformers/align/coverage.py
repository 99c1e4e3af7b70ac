"""What no operator answers for: modules that would stay stock without a word."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels.engines.transformers.align.activations import is_activation
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.errors import UnsupportedError


def check_model(model: Any) -> None:
    """Raise `UnsupportedError` for a model that can't be aligned at all."""
    from logdiff_kernels.engines.transformers.tensors import adapters, quantization

    if quantization(model):
        raise UnsupportedError(
            f"{type(model).__name__} is quantised", value=str(quantization(model)), hint="load it dequantised"
        )
    for name, module in model.named_modules():
        if type(module).__module__.startswith("peft.") or hasattr(module, "lora_A"):
            raise refuse(name, module, "LoRA and other adapters aren't covered", "merge the adapter first")
    if adapters(model):
        raise UnsupportedError(f"{type(model).__name__} has adapters", value=str(adapters(model)), hint="merge them")
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedError(f"{type(model).__name__} is an encoder-decoder", value="attention")
    for name, parameter in model.named_parameters():
        if parameter.device.type not in ("cpu", "meta"):
            raise UnsupportedError(
                f"{name} is on {parameter.device}; the provider aligned-cpu works on the CPU",
                value=str(parameter.device),
            )


def check_rest(scene: Scene) -> None:
    """Raise `UnsupportedError` for modules with parameters of their own, or activations, that nothing covers.

    With a subset of operators only what belongs to one of them counts: matrices to `linear`, vectors to `rms_norm`.
    """
    inside = _inside_covered(scene)
    spec = scene.spec
    for name, module in scene.modules():
        if id(module) in scene.covered or id(module) in inside:
            continue
        if is_activation(module):
            if "swiglu" in spec:
                raise refuse(name, module, "nothing that is covered uses this activation")
            continue
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            continue  # each has its own operator, which found it or was not asked for
        for key, parameter in module.named_parameters(recurse=False):
            if spec.complete and not _handed_to_attention(module, key):
                raise refuse(name, module, f"its parameter {key} is used by code that isn't covered")
            op = "linear" if parameter.ndim >= 2 else "rms_norm"
            if op in spec and not _known_elsewhere(module, key):
                raise refuse(name, module, f"its parameter {key} is used by code that isn't covered")


def forbid_dropout(scene: Scene) -> None:
    """Plan that dropout layers which would drop in training raise there."""
    for name, module in scene.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            scene.replace(module, _no_dropout(name), "no dropout")


def _no_dropout(name: str) -> Any:
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        if self.training and self.p > 0:
            raise refuse(name, self, f"it drops with probability {self.p} in training", "set dropout to 0")
        return input

    return forward


def _handed_to_attention(module: torch.nn.Module, key: str) -> bool:
    """Attention sinks reach the attention operator through the layer's own code."""
    return key == "sinks" and hasattr(module, "layer_idx")


def _known_elsewhere(module: torch.nn.Module, key: str) -> bool:
    """Parameters of operators that a subset may leave out."""
    parameters = module._parameters
    stacked = "gate_up_proj" in parameters
    router = key in ("weight", "bias") and "router" in type(module).__name__.lower()
    norm = "norm" in type(module).__name__.lower()
    return stacked or router or norm or key == "sinks"


def _inside_covered(scene: Scene) -> set[int]:
    """Activations inside a covered block count with it; those of stacked experts belong to `moe` alone."""
    found: set[int] = set()
    for _, module in scene.modules():
        if id(module) in scene.covered or "gate_up_proj" in module._parameters:
            found |= {id(child) for child in module.children() if is_activation(child)}
    return found
