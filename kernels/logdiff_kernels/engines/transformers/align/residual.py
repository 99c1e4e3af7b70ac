"""Which norms follow a residual addition, seen in one forward of two tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logdiff_kernels.engines.transformers.align.scene import Scene, evaluation


def follows_residual(scene: Scene) -> set[str]:
    """Names of the modules whose input is the sum of two hidden states."""
    sums = _Sums()
    found: set[str] = set()
    handles = []

    def watch(name: str) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if args and any(args[0] is kept for kept in sums.kept):
                found.add(name)

        return hook

    for name, module in scene.modules():
        if "norm" in type(module).__name__.lower():
            handles.append(module.register_forward_pre_hook(watch(name)))
    try:
        with evaluation(scene.model), sums:
            scene.model(input_ids=torch.tensor([[0, 1]]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return found


class _Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the results of additions of two tensors of one shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor) and isinstance(args[1], torch.Tensor):
            first, second = args[:2]
            if first.ndim == 3 and first.shape == second.shape and first.dtype.is_floating_point:
                self.kept.append(result)
        return result
