"""Kernels on an NPU: the libraries that bisheng made, started on torch_npu's current stream. Not run on hardware."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.build import compile
from logdiff_kernels.build.arch import arch_name, arch_of_chip
from logdiff_kernels.build.cann import INSTEAD, find_cann
from logdiff_kernels.build.launcher import check, entry, load, pointers
from logdiff_kernels.errors import EngineError, UnsupportedError

PROVIDER = "aligned-ascendc"


class NpuLauncher:
    """A `Launcher` for tensors of one NPU. The kernels are built on first use.

    Args:
        index: of the device; None: the current one.
        exact_exp: exp and ln with the bits of the CPU backend instead of the hardware's.
        build: compiled kernels; None: `compile.build` for this device's architecture.

    Raises:
        UnsupportedError: torch_npu, a device or CANN is missing, or the chip is of another architecture.
    """

    def __init__(self, index: int | None = None, exact_exp: bool = False, build: compile.Build | None = None) -> None:
        self._npu = _torch_npu()
        number = self._npu.current_device() if index is None else index
        self.device = torch.device("npu", number)
        self.provider = PROVIDER
        self.chip = str(self._npu.get_device_name(number))
        self.arch = arch_of_chip(self.chip)
        facts = self._npu.get_device_properties(number)
        self.cores = int(facts.cube_core_num)
        self.vectors_per_core = int(facts.vector_core_num) // self.cores
        self.exact_exp = exact_exp
        self.build = build or compile.build(arch_name(self.arch), exact_exp)
        self._entries: dict[str, Any] = {}

    def launch(self, kernel: str, tensors: Sequence[Tensor | None], plan: ctypes.Structure, blocks: int) -> None:
        """`Launcher.launch`, on the stream that is current on this device."""
        start = self._entries.get(kernel)
        if start is None:
            start = self._entries[kernel] = entry(load(self.build.of(kernel).path), kernel)
        addresses = pointers(self, kernel, tensors, blocks)
        # A launch goes to another device than the tensors' if that one is current.
        with self._npu.device(self.device):
            stream = self._npu.current_stream(self.device)
            for x in tensors:
                # Memory that was allocated under another stream may be given to someone else as soon as its owner
                # drops it, while the kernel still waits on this stream: the allocator has to know of this use. Under
                # its own stream this does nothing.
                if x is not None:
                    x.record_stream(stream)
            # torch_npu's operators wait in a queue on the host before they reach the stream. Reading `npu_stream`
            # drains that queue; a kernel started on a handle that was read earlier overtakes what has been queued
            # since. So the handle is read last, used once and never kept.
            handle = stream.npu_stream
            if not handle:
                raise EngineError(
                    "torch_npu's task queue could not be drained", value=kernel, hint="an earlier operator has failed"
                )
            status = start(blocks, handle, addresses, len(addresses), ctypes.byref(plan), ctypes.sizeof(plan))
        check(kernel, status)

    @property
    def binary_hash(self) -> str:
        """`Launcher.binary_hash`: of the libraries."""
        return self.build.sha256

    def workspace(self, size: int) -> Tensor:
        """`Launcher.workspace`: memory of torch_npu's allocator."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def launcher(index: int | None = None, exact_exp: bool = False) -> NpuLauncher:
    """The launcher of a device (None: the current one), one in each process."""
    return _launcher(_torch_npu().current_device() if index is None else index, exact_exp)


@cache
def _launcher(index: int, exact_exp: bool) -> NpuLauncher:
    return NpuLauncher(index, exact_exp)


def wait() -> None:
    """Return when everything that was started on the current device has ended."""
    _torch_npu().synchronize()


def device_arch() -> int:
    """2201 or 3510, of the current device.

    Raises:
        UnsupportedError: there is none, torch_npu is missing, or the chip is of another architecture.
    """
    npu = _torch_npu()
    return arch_of_chip(str(npu.get_device_name(npu.current_device())))


def missing() -> list[str]:
    """What stands in the way of running kernels on an NPU here, one sentence each; empty when nothing does."""
    found = []
    try:
        device_arch()
    except UnsupportedError as error:
        found.append(error.message)
    try:
        find_cann()
    except UnsupportedError as error:
        found.append(error.message)
    return found


def _torch_npu() -> Any:
    try:
        npu = importlib.import_module("torch_npu").npu
    except Exception as error:  # an ImportError, or torch_npu's own refusal of this torch or of the driver
        raise UnsupportedError(
            f"torch_npu can't be imported: {type(error).__name__}: {error}",
            value="torch_npu",
            hint=f"install the torch_npu of torch {torch.__version__} in this environment; {INSTEAD}",
        ) from error
    if not npu.is_available():
        raise UnsupportedError(
            "torch_npu sees no NPU",
            value=npu.device_count(),
            hint=f"npu-smi info, ASCEND_RT_VISIBLE_DEVICES; {INSTEAD}",
        )
    return npu
