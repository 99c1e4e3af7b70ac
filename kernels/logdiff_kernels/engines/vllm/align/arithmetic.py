"""Arithmetic in a model's own code: what is neither an aligned operator nor exact by itself is refused.

Once the model is loaded, a few tokens run through it, eagerly, with every tensor operation watched. Moving data and
single IEEE operations on each element (a sum, a product, rounded once) give the same bits in any batch; any other
arithmetic on floating-point numbers (a sigmoid, a matrix product, a reduction) does not, and no aligned operator owns
it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.exact import EXACT, floating
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError

_TOKENS = 3

_EXACT = EXACT | frozenset(
    """
    _local_scalar_dense argmax argsort eq floor_divide ge gt isfinite isnan item le lt max min ne searchsorted sort topk
    """.split()  # noqa: SIM905
)
"""With what compares, sorts and counts."""

_OWN = ("logdiff", "vllm", "c10d", "_c10d_functional", "prim", "prims")


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Watch a few tokens after each model is loaded; only where everything is to be aligned.

    Raises (when a model is loaded):
        UnsupportedError: naming the module and the operation.
    """
    if not spec.complete:
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    def load(stock: Any) -> Any:
        def load_model(self: Any, *arguments: Any, **named: Any) -> None:
            stock(self, *arguments, **named)
            watch(self)

        return load_model

    patches.wrap(CPUModelRunner, "load_model", load)


def watch(runner: Any) -> None:
    """Run a few tokens through a model runner's model. Raises `UnsupportedError` at the first inexact operation."""
    model = runner.get_model()
    compiled = [module for module in model.modules() if getattr(module, "do_not_compile", True) is False]
    for module in compiled:
        module.do_not_compile = True
    try:
        with torch.inference_mode(), _Watch(model):
            _, last = runner._dummy_run(_TOKENS, is_profile=True)
            model.compute_logits(last)
    finally:
        for module in compiled:
            module.do_not_compile = False


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {id(module): name for name, module in model.named_modules()}
        self._root = id(model)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode composite operators arrive whole
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        result = func(*args, **(kwargs or {}))
        if _inexact(func, result):
            module = self._running()
            if module is not None:
                raise UnsupportedError(
                    f"{module} computes {func.overloadpacket.__name__} in its own code, which no aligned operator owns",
                    value=str(func),
                    hint="align a subset of the operators (--ops), or run this model native",
                )
        return result

    def _running(self) -> str | None:
        """The innermost module of the model on the stack, by name; None outside of the model."""
        frame = inspect.currentframe()
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module) and id(owner) in self._names:
                return self._names[id(owner)] or type(owner).__name__
            frame = frame.f_back
        return None


def _inexact(func: Any, result: Any) -> bool:
    if func.namespace.startswith("_C"):  # vLLM's stock kernels
        return True
    return func.namespace not in _OWN and func.overloadpacket.__name__ not in _EXACT and floating(result)
