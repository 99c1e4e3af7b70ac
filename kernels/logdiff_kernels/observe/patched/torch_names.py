"""Python stand-ins for torch's own functions: `torch.*`, `torch.Tensor.*`, C modules, and `torch.ops`."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from logdiff_kernels.observe.patched.compare import attribute
from logdiff_kernels.observe.patched.layers import function_of, hash_of, is_a
from logdiff_kernels.observe.patched.owners import Owners, normalised
from logdiff_kernels.observe.patched.record import Record


def torch_records(owners: Owners, stock: frozenset[str]) -> Iterator[Record]:
    """Names that torch binds to C functions and that hold Python functions of somebody else now."""
    torch = sys.modules["torch"]
    torch_c: Any = torch._C
    for holder, table in (("torch", vars(torch)), ("torch.Tensor", vars(torch.Tensor))):
        native = torch_c._VariableFunctions if holder == "torch" else torch_c.TensorBase
        for name, value in list(table.items()):
            if not name.startswith("__") and hasattr(native, name):
                yield from _foreign(f"{holder}.{name}", value, owners, stock)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._C") and is_a(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                yield from _foreign(f"{name}.{key}", value, owners, stock)
    for space, operators in list(vars(torch.ops).items()):
        if is_a(operators, types.ModuleType):
            for name, packet in list(vars(operators).items()):
                yield from _foreign(f"torch.ops.{space}.{name}", packet, owners, stock)
                for overload, inner in list(getattr(packet, "__dict__", {}).items()):
                    yield from _foreign(f"torch.ops.{space}.{name}.{overload}", inner, owners, stock)


def _foreign(target: str, value: Any, owners: Owners, stock: frozenset[str]) -> Iterator[Record]:
    function = function_of(value)
    if function is None or not is_a(value, (types.FunctionType, types.MethodType, staticmethod, classmethod)):
        return
    file = function.__code__.co_filename
    owner = owners.of(file) if not file.startswith("<") else None
    if owner is not None and normalised(owner.name) == "torch":
        return
    detail = f"a Python function stands in its place: {function.__module__}.{function.__qualname__}"
    live = f"{file}:{function.__code__.co_firstlineno}"
    record = Record("replaced", target, detail, live=live, code=hash_of(function.__code__))
    attribute(record, file, owners, stock)
    yield record
