"""Every operator that runs in a phase, with dtypes, shapes, layouts, the module it runs in and who called it.

A `TorchDispatchMode` sees operators below autograd; custom operators that are written in Python are looked into. What
runs without torch's dispatcher (generated code, direct kernels) is seen by `observe.native` in a pass of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MAX_ENTRIES = 4000
"""Different operator calls that a trace of one phase keeps."""

MAX_SHAPES = 3
"""Shapes of one operator at one place; with more, the sizes that vary become `*`."""

_SHORT = {
    torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int64: "i64",
    torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
_QUIET = {
    "detach",
    "alias",
    "lift_fresh",
    "_unsafe_view",
    "_reshape_alias",
    "sym_size",
    "empty",
    "empty_like",
    "resize_",
}
_LOOKED_OVER = ("torch.", "logdiff_kernels.observe.")

Key = tuple[str, str, str, tuple[str, ...], tuple[str, ...], str]


@dataclass(slots=True)
class Phase:
    """What ran in one phase: `entries` {key: [count, layers]}, in the order of their first call."""

    entries: dict[Key, list[Any]] = field(default_factory=dict)
    views: int = 0
    calls: int = 0
    beyond: int = 0
    steps: int = 0


class Trace:
    """Records operators while it is active; `phase` says where they are counted.

    Args:
        model: its modules' names become the boundaries.
        inside: full names ("aten::mm") of operators with a Python implementation, to look into.
    """

    def __init__(self, model: torch.nn.Module, inside: frozenset[str] = frozenset()) -> None:
        self.phases: dict[str, Phase] = {}
        self.sizes: dict[int, str] = {}
        self._phase = Phase()
        self._inside = inside
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._spans: list[list[Any]] = []

    @contextmanager
    def phase(self, name: str, sizes: dict[int, str] | None = None) -> Iterator[None]:
        """Count what runs under `name`; sizes that stand for tokens or sequences get their symbol."""
        self.switch(name, sizes)
        before = torch.nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        try:
            with _Mode(self):
                yield
        finally:
            before.remove()
            after.remove()
            self._stack.clear()
            self._spans.clear()

    def switch(self, name: str, sizes: dict[int, str] | None = None) -> None:
        """Count what runs from now on under `name`."""
        self._phase = self.phases.setdefault(name, Phase())
        self._phase.steps += 1
        self.sizes = {size: symbol for size, symbol in (sizes or {}).items() if size > 1}

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        name = self._names.get(id(module))
        self._stack.append(name if name is not None else (self._stack[-1] if self._stack else ""))
        if torch.is_grad_enabled():
            self._spans.append([_sequence(), None, self._stack[-1]])

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if not self._stack:
            return
        name = self._stack.pop()
        for span in reversed(self._spans):
            if span[1] is None and span[2] == name:
                span[1] = _sequence()
                return

    def _where(self) -> str:
        """The innermost module; in a backward pass the one whose forward made the node that runs."""
        if self._stack:
            return self._stack[-1]
        node = _node()
        if node is None:
            return ""
        number, best = node._sequence_nr(), ""
        size = None
        for begin, end, name in self._spans:
            if begin <= number and (end is None or number < end):
                width = (end if end is not None else number + 1) - begin
                if size is None or width <= size:
                    best, size = name, width
        return f"grad {best}".strip()

    def record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count one call."""
        phase = self._phase
        phase.calls += 1
        if func.is_view or func.overloadpacket.__name__ in _QUIET:
            phase.views += 1
            return
        where, layer = split_layer(self._where())
        inputs = tuple(self._tensors((args, kwargs)))
        outputs = tuple(self._tensors(result))
        key = (where, str(func), _caller(), inputs, outputs, _options(kwargs))
        entry = phase.entries.get(key)
        if entry is None:
            if len(phase.entries) >= MAX_ENTRIES:
                phase.beyond += 1
                return
            entry = phase.entries[key] = [0, set()]
        entry[0] += 1
        if layer is not None:
            entry[1].add(layer)

    def _tensors(self, value: Any) -> Iterator[str]:
        if isinstance(value, torch.Tensor):
            yield self._tensor(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from self._tensors(item)
        elif isinstance(value, dict):
            for item in value.values():
                yield from self._tensors(item)

    def _tensor(self, x: torch.Tensor) -> str:
        shape = ",".join(self.sizes.get(size, str(size)) for size in map(int, x.shape))
        text = f"{_SHORT.get(x.dtype, str(x.dtype).removeprefix('torch.'))}[{shape}]"
        kind = _layout(x)
        text += f":{kind}" if kind else ""
        return text if x.device.type == "cpu" else f"{text}@{x.device.type}"

    def as_dict(self) -> dict[str, Any]:
        """{phase: {"entries": [...], "calls", "views", "steps", "beyond"}}, entries with layers put together."""
        return {name: _plain(phase) for name, phase in self.phases.items()}


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self._call(func, args, kwargs)
        self._trace.record(func, args, kwargs, result)
        return result

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator; one that is written in Python with this mode on again, so that what it calls is seen too."""
        name = func.name()
        if func.namespace in ("aten", "prims", "logdiff", "higher_order") and name not in self._trace._inside:
            return func(*args, **kwargs)
        if name in _custom_ops() or any(_needs_gradient(a) for a in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        key = _backend_key(args, kwargs)
        if key is None or not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return func(*args, **kwargs)
        with self:
            return func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)


def split_layer(name: str) -> tuple[str, int | None]:
    """("model.layers.*.mlp", 3) of "model.layers.3.mlp"; other numbers (experts) become `#`."""
    layer, parts = None, []
    for part in name.split("."):
        if part.isdigit():
            parts.append("*" if layer is None else "#")
            layer = int(part) if layer is None else layer
        else:
            parts.append(part)
    return ".".join(parts), layer


def ranges(numbers: set[int]) -> str:
    """ "0-3,5" of {0, 1, 2, 3, 5}."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _plain(phase: Phase) -> dict[str, Any]:
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    variants: dict[tuple[Any, ...], int] = {}
    for where, op, caller, inputs, outputs, options in phase.entries:
        general = (where, op, caller, _no_sizes(inputs), _no_sizes(outputs), options)
        variants[general] = variants.get(general, 0) + 1
    for (where, op, caller, inputs, outputs, options), (count, layers) in phase.entries.items():
        general = (where, op, caller, _no_sizes(inputs), _no_sizes(outputs), options)
        many = variants[general] > MAX_SHAPES
        key = general if many else (where, op, caller, inputs, outputs, options)
        entry = merged.setdefault(
            key,
            {"where": where, "op": op, "from": caller, "in": list(inputs), "out": list(outputs), "options": options,
             "count": 0, "layers": set()},
        )  # fmt: skip
        entry["count"] += count
        entry["layers"] |= layers
        if many:
            entry["in"] = [_star(a, b) for a, b in zip(entry["in"], inputs, strict=True)]
            entry["out"] = [_star(a, b) for a, b in zip(entry["out"], outputs, strict=True)]
    entries = [{**entry, "layers": ranges(entry["layers"])} for entry in merged.values()]
    return {
        "entries": entries, "calls": phase.calls, "views": phase.views, "steps": phase.steps, "beyond": phase.beyond,
    }  # fmt: skip


def _no_sizes(tensors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(t.partition("[")[0] + f"[{t.count(',')}]" + t.partition("]")[2] for t in tensors)


def _star(known: str, new: str) -> str:
    head, _, rest = known.partition("[")
    sizes, _, tail = rest.partition("]")
    other = new.partition("[")[2].partition("]")[0]
    joined = [a if a == b else "*" for a, b in zip(sizes.split(","), other.split(","), strict=True)]
    return f"{head}[{','.join(joined)}]{tail}"


def _layout(x: torch.Tensor) -> str:
    """ "" contiguous, `t` its last two dimensions swapped, `e` expanded, `s` other strides, or the layout's name."""
    if x.layout != torch.strided:
        return str(x.layout).removeprefix("torch.")
    if x.is_contiguous():
        return ""
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
        return "e"
    return "t" if x.ndim > 1 and x.transpose(-1, -2).is_contiguous() else "s"


def _options(kwargs: dict[str, Any]) -> str:
    parts = [f"{k}={v}" for k, v in kwargs.items() if isinstance(v, (bool, int, float, str, torch.dtype))]
    return " ".join(parts)[:80].replace("torch.", "")


def _caller() -> str:
    """ "module.function" of the nearest frame outside of torch and of this package."""
    frame: FrameType | None = sys._getframe(3)
    for _ in range(60):
        if frame is None:
            return ""
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_LOOKED_OVER) and module not in ("torch", "contextlib", "functools"):
            code = frame.f_code
            return f"{module}.{getattr(code, 'co_qualname', code.co_name)}"
        frame = frame.f_back
    return ""


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _backend_key(args: Any, kwargs: Any) -> str | None:
    keys = {"cpu": "CPU", "cuda": "CUDA", "npu": "PrivateUse1", "privateuseone": "PrivateUse1"}
    for value in (*args, *kwargs.values()):
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, torch.Tensor):
                return keys.get(one.device.type)
    return None


def _custom_ops() -> Any:
    from torch._library.custom_ops import OPDEFS

    return OPDEFS


def _sequence() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _node() -> Any:
    return torch._C._current_autograd_node()
