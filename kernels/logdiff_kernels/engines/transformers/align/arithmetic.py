"""Arithmetic in a model's own code: what is neither an aligned operator nor exact by itself is refused.

With everything aligned, one forward is watched operation by operation: moving data and single IEEE operations on each
element (a sum, a product, rounded once) have the same bits in any batch and on the other side; any other arithmetic on
floating-point numbers (a sigmoid, a matrix product, a reduction) has not, and no aligned operator owns it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logdiff_kernels.engines.exact import EXACT, floating
from logdiff_kernels.engines.transformers.align.scene import Scene, evaluation, refuse

_EXACT = EXACT | frozenset(
    """
    _reshape_alias index_copy index_copy_ index_put scatter slice_scatter
    """.split()  # noqa: SIM905
)
"""With the forms in which autograd and Transformers' caches move data."""

_OWN = ("logdiff", "c10d", "_c10d_functional", "fsdp", "prim", "prims")


def watch(scene: Scene) -> None:
    """Run three tokens through an aligned model; a model under FSDP2 is watched in its first forward instead.

    Raises:
        UnsupportedError: naming the module and the operation.
    """
    model = scene.model
    if not scene.spec.complete or any(p.device.type == "meta" for p in model.parameters()):
        return
    if any("FSDPModule" in (base.__name__ for base in type(m).__mro__) for m in model.modules()):
        _watch_first(scene)
        return
    with evaluation(model), _Watch(scene):
        model(input_ids=torch.arange(3).unsqueeze(0), use_cache=False)


def _watch_first(scene: Scene) -> None:
    """Hooks around the next forward, which remove themselves."""
    running: list[Any] = []

    def enter(_module: Any, _args: Any) -> None:
        running.append(_Watch(scene))
        running[-1].__enter__()

    def leave(_module: Any, _args: Any, _output: Any) -> None:
        if running:
            running.pop().__exit__(None, None, None)
        remove()

    handles = [
        scene.model.register_forward_pre_hook(enter),
        scene.model.register_forward_hook(leave, always_call=True),
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    scene.patches.undo_with(remove)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, scene: Scene) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._scene = scene

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace not in _OWN and name not in _EXACT and floating(result):
            module = _running()
            if module is not None:
                raise refuse(
                    self._scene.name(module), module, f"its own code computes {name}, which no aligned operator owns"
                )
        return result


def _running() -> torch.nn.Module | None:
    """The innermost module whose code is on the stack."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            return owner
        frame = frame.f_back
    return None
