"""Where an operator runs: tensors of the CPU go to the CPU library, those of an NPU to the drivers of the Ascend C
kernels, which have the CPU functions' signatures with a launcher in front.

Nothing of NPUs is imported before the first tensor of one arrives.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from logdiff_kernels.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from logdiff_kernels.build.launcher import Launcher

NPU = "npu"
"""torch's name for the device type once torch_npu is imported."""

EXACT_EXP = "LOGDIFF_EXACT_EXP"
"""Environment variable: `1` for exp and ln with the bits of the CPU library on an NPU, instead of the hardware's."""

_rehearsal: Launcher | None = None
_used: list[Launcher] = []


class Kernels:
    """The functions of one part of the kernels, for a tensor's device.

    Args:
        cpu: the part's module of the CPU library; the drivers are those of the same name in `ascendc`.
    """

    def __init__(self, cpu: ModuleType) -> None:
        self._cpu = cpu
        self._part = cpu.__name__.rpartition(".")[2]

    def of(self, x: Tensor) -> Any:
        """The functions that take `x`.

        Raises:
            UnsupportedError: another device than a CPU or an NPU, or an NPU whose kernels can't run here.
        """
        if x.is_cpu and _rehearsal is None:
            return self._cpu
        return _Drivers(self._part, launcher_of(x.device))


class _Drivers:
    """The drivers of one part with their launcher."""

    __slots__ = ("_launcher", "_module")

    def __init__(self, part: str, launcher: Launcher) -> None:
        self._module = _drivers(part)
        self._launcher = launcher

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._module, name), self._launcher)


@cache
def _drivers(part: str) -> ModuleType:
    name = f"logdiff_kernels.ascendc.{part}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UnsupportedError(
            f"there are no Ascend C kernels for {part}", value=part, hint="the CPU has them"
        ) from error


def has_kernels(x: Tensor) -> bool:
    """Whether x lies on a device that operators run on."""
    return x.is_cpu or x.device.type == NPU


def launcher_of(device: torch.device) -> Launcher:
    """What starts kernels on `device`: its NPU's launcher, or that of `rehearse`.

    Raises:
        UnsupportedError: a device without kernels, or an NPU whose kernels can't run here.
    """
    if _rehearsal is not None and device.type == "cpu":
        return _rehearsal
    if device.type != NPU:
        raise UnsupportedError("aligned operators run on CPUs and NPUs", value=str(device), hint="x.cpu()")
    from logdiff_kernels.build import npu

    found = npu.launcher(device.index, exact_exp())
    if found not in _used:
        _used.append(found)
    return found


def exact_exp() -> bool:
    """Whether this process's NPU kernels are to have exp and ln of the CPU library. Raises `InputError`."""
    value = os.environ.get(EXACT_EXP, "0")
    if value not in ("0", "1"):
        raise InputError(f"{EXACT_EXP} is 0 or 1", value=value, hint=f"unset {EXACT_EXP}")
    return value == "1"


def used() -> list[Launcher]:
    """The launchers that operators of this process have used, NPUs' and the twin's."""
    return list(_used)


@contextlib.contextmanager
def rehearse(launcher: Launcher) -> Iterator[None]:
    """Send tensors of the CPU to the Ascend C drivers with `launcher`, the twin's: what an NPU would run.

    For the whole process, so that threads of autograd follow; not to be nested.
    """
    global _rehearsal
    if _rehearsal is not None:
        raise InputError("a rehearsal is already going on", hint="one twin at a time")
    _rehearsal = launcher
    _used.append(launcher)
    try:
        yield
    finally:
        _rehearsal = None
