"""A stand-in for torch_npu: tensors of torch's device for NPUs in host memory, and a `torch_npu` that keeps a record.

It has exactly the names that the launcher relies on; `NAMES` lists them for a comparison with the real package.

`install()` changes the process: for children of tests only.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAMES = ("is_available", "device_count", "current_device", "device", "current_stream", "get_device_name",
         "get_device_properties", "synchronize")  # fmt: skip
"""Of `torch_npu.npu`."""

STREAM_NAMES = ("npu_stream",)
PROPERTY_NAMES = ("cube_core_num", "vector_core_num")

events: list[Any] = []
chip = "Ascend910B2"
devices = 1
drained = True


_OWN = ("alias", "detach", "arange", "arange.start", "arange.start_step", "scaled_dot_product_attention")
"""Operators whose implementation for any device would make a tensor without `host`, or one of the CPU."""

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
"""By this key shape and strides alone change: the stand-in's tensors have no storage of their own."""


class Stream:
    """A stream whose handle differs at each reading, so that one which is kept shows."""

    readings = 0

    @property
    def npu_stream(self) -> int:
        Stream.readings += 1
        handle = 0x1000 + Stream.readings if drained else 0
        events.append(["handle", handle])
        return handle


def wrap(x: torch.Tensor) -> torch.Tensor:
    """A tensor of device npu:0 with the memory, shape and strides of `x`."""
    made: torch.Tensor = torch._C._acc.create_empty_tensor((0,), x.dtype)
    made = torch.ops.aten.as_strided.default.redispatch(_META, made, x.shape, x.stride(), x.storage_offset())
    made.host = x  # type: ignore[attr-defined]
    made.data_ptr = x.data_ptr  # type: ignore[method-assign]
    # No reference to `made` itself: torch forgets the attributes of a tensor that is part of a cycle.
    made.record_stream = lambda stream: events.append(["record", x.data_ptr()])  # type: ignore[method-assign]
    return made


def host(x: Any) -> Any:
    """The memory of a tensor; anything else as it is."""
    return getattr(x, "host", x)


def install() -> None:
    """Make `npu` a device of this process and `torch_npu` importable."""
    _setup_privateuseone_for_python_backend("npu", backend_module=_DummyBackendModule())
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")

    def empty(size: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return wrap(torch.empty(size, dtype=dtype or torch.float32))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return wrap(torch.empty_strided(size, stride, dtype=dtype or torch.float32))

    def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        host(target).copy_(host(source))
        return target

    library.impl("empty.memory_format", empty)
    library.impl("empty_strided", empty_strided)

    def zero(x: torch.Tensor) -> torch.Tensor:
        host(x).zero_()
        return x

    library.impl("_copy_from", copy_from)
    library.impl("zero_", zero)
    for name in _OWN:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, partial(_on_the_host, operator))
    everything = torch.library.Library("_", "IMPL", "PrivateUse1")
    everything.fallback(_on_the_host)
    _kept.extend([library, everything])

    package, npu = types.ModuleType("torch_npu"), types.ModuleType("torch_npu.npu")
    npu.is_available = lambda: devices > 0  # type: ignore[attr-defined]
    npu.device_count = lambda: devices  # type: ignore[attr-defined]
    npu.current_device = lambda: 0  # type: ignore[attr-defined]
    npu.device = _guard  # type: ignore[attr-defined]
    npu.current_stream = _current_stream  # type: ignore[attr-defined]
    npu.synchronize = lambda: events.append(["synchronize"])  # type: ignore[attr-defined]
    npu.get_device_name = lambda index: chip  # type: ignore[attr-defined]
    npu.get_device_properties = lambda index: types.SimpleNamespace(cube_core_num=24, vector_core_num=48)  # type: ignore[attr-defined]
    package.npu = npu  # type: ignore[attr-defined]
    sys.modules["torch_npu"], sys.modules["torch_npu.npu"] = package, npu


_kept: list[Any] = []


def _on_the_host(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Any other operator: computed on the tensors' memory, the device kept."""
    if options.get("device") is not None:
        options = {**options, "device": "cpu"}
    foreign = [x for x in tree_flatten((arguments, options))[0] if isinstance(x, torch.Tensor) and x.is_cpu and x.dim()]
    if foreign:
        raise RuntimeError(f"{operator}: a tensor of the CPU beside one of an NPU: {tuple(foreign[0].shape)}")
    made = operator(*tree_map(host, arguments), **tree_map(host, options))
    return tree_map(lambda x: wrap(x) if isinstance(x, torch.Tensor) else x, made)


@contextlib.contextmanager
def _guard(device: torch.device) -> Iterator[None]:
    events.append(["enter", str(device)])
    yield
    events.append(["leave", str(device)])


def _current_stream(device: torch.device) -> Stream:
    events.append(["stream", str(device)])
    return Stream()
