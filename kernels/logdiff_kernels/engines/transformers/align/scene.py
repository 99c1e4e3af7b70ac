"""What every operator's file works on: the model, what is asked for, what is covered so far."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.transformers.align.patching import Patches
from logdiff_kernels.errors import UnsupportedError


@dataclass
class Scene:
    """One alignment of one model while it is put together.

    Attributes:
        model: the model.
        spec: the operators asked for.
        patches: collects the replacements; operators register them, and nothing is changed before all are found.
        covered: modules that some operator answers for, by id.
        facts: what the fingerprint says, by operator.
        max_length: the longest sequence that either side will see, for RoPE rules that depend on it.
    """

    model: Any
    spec: AlignSpec
    max_length: int | None = None
    patches: Patches = field(default_factory=Patches)
    covered: set[int] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    steps: list[Callable[[], None]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {id(module): name or "model" for name, module in self.model.named_modules()}

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """(name, module) of every distinct module."""
        yield from self.model.named_modules()

    def replace(self, module: torch.nn.Module, function: Callable[..., Any], op: str) -> None:
        """Plan that `module.forward` becomes `function(module, ...)`, and count the module as covered."""
        name = self.name(module)
        self.cover(module)
        self.steps.append(lambda: self.patches.forward(name, module, function, op))

    def cover(self, module: torch.nn.Module) -> None:
        """Count a module as answered for."""
        self.covered.add(id(module))

    def name(self, module: torch.nn.Module) -> str:
        """Its path in the model."""
        return self.names.get(id(module), type(module).__name__)

    def generator(self) -> torch.Generator:
        """Random values for stand-ins: the same in every process."""
        return torch.Generator().manual_seed(20240607)


@contextlib.contextmanager
def evaluation(model: Any) -> Iterator[None]:
    """Every module in evaluation mode without gradients, and back to what each was."""
    before = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in before:
            module.training = training


def refuse(name: str, module: Any, why: str, hint: str = "") -> UnsupportedError:
    """The error for a module that the contract or this provider doesn't cover."""
    return UnsupportedError(
        f"{name} ({type(module).__name__}) can't be aligned: {why}",
        value=name,
        hint=hint or "leave its operator out of the aligned ops; both sides then differ there",
    )


def text_config(model: Any) -> Any:
    """The configuration of the language model."""
    return model.config.get_text_config(decoder=True)
