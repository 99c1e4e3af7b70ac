"""How a driver starts a kernel: one protocol, behind it an NPU or the twin.

A kernel's library exports

    int ld_launch_<kernel>(uint32_t blocks, void* stream, void* const* pointers, uint32_t pointer_count,
                           const void* plan, uint32_t plan_bytes)

which gives 0, or a negative status when it refuses its arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.errors import EngineError, InputError, UnsupportedError

_STATUS = {
    -1: "a dtype that the kernel doesn't know",
    -2: "a shape that the kernel doesn't take",
    -3: "an argument that the kernel doesn't take",
    -6: "tiles that don't fit on a core",
}


class Launcher(Protocol):
    """What a driver needs to run kernels.

    Attributes:
        arch: 2201 or 3510, as kernels know it.
        cores: cube cores; `blocks` of a cube or mixed kernel is at most that.
        vectors_per_core: vector cores beside each of them; `blocks` of a vector kernel is at most cores times that.
        exact_exp: whether exp and ln have the bits of the CPU backend.
        device: where tensors live.
        provider: what fingerprints call it.
        chip: as its maker calls it, or `twin`.
    """

    arch: int
    cores: int
    vectors_per_core: int
    exact_exp: bool
    device: torch.device
    provider: str
    chip: str

    def launch(self, kernel: str, tensors: Sequence[Tensor | None], plan: ctypes.Structure, blocks: int) -> None:
        """Start `kernel` on the current stream.

        Args:
            kernel: name of its source.
            tensors: its GM arguments in order, workspaces included; None is the null pointer.
            plan: its plan, passed by value.
            blocks: how many cores (for a mixed kernel: groups of one cube and two vector cores) run it.

        Raises:
            InputError: the kernel refused its arguments, or a tensor lies on another device.
            UnsupportedError: there is no such kernel.
        """
        ...

    @property
    def binary_hash(self) -> str:
        """What both sides of a run compare: SHA-256 over the compiled kernels, or over what the twin compiles."""
        ...

    def workspace(self, size: int) -> Tensor:
        """`size` bytes of scratch memory for one launch, uint8, not initialised."""
        ...


def entry(library: ctypes.CDLL, kernel: str) -> Any:
    """The launcher function of a loaded library, its types set."""
    try:
        found = getattr(library, f"ld_launch_{kernel}")
    except AttributeError:
        raise UnsupportedError(
            f"the library of kernel {kernel} has no ld_launch_{kernel}", value=str(library), hint="a bug: report it"
        ) from None
    found.argtypes = [
        ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32, ctypes.c_void_p,
        ctypes.c_uint32,
    ]  # fmt: skip
    found.restype = ctypes.c_int
    return found


def load(path: Path) -> ctypes.CDLL:
    """Load a kernel's library. Raises `UnsupportedError` with the loader's words."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UnsupportedError(
            f"a kernel's library does not load: {error}", value=str(path), hint="source CANN's set_env.sh"
        ) from error


def pointers(
    launcher: Launcher, kernel: str, tensors: Sequence[Tensor | None], blocks: int
) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses of the tensors of a launch, checked.

    Raises:
        InputError: another number of tensors than the kernel takes, one on another device, no block, or more than there
            are cores of its kind (those that wait for each other would wait for ever).
    """
    record = kernels().get(kernel)
    if record is not None and len(tensors) != len(record.pointers):
        names = ", ".join(record.pointers)
        raise InputError(f"{kernel} takes {len(record.pointers)} tensors", value=len(tensors), hint=names)
    for x in tensors:
        if x is not None and x.device != launcher.device:
            raise InputError(
                f"a tensor lies on {x.device}, the kernel runs on {launcher.device}",
                value=str(x.device),
                hint="move it there",
            )
    on_vectors = record is None or record.kind == "vector"
    most = launcher.cores * launcher.vectors_per_core if on_vectors else launcher.cores
    if not 1 <= blocks <= most:
        raise InputError(
            f"{kernel}: a launch has no block, or more than there are cores", value=blocks, hint=f"1 to {most}"
        )
    return (ctypes.c_void_p * len(tensors))(*(None if x is None else x.data_ptr() for x in tensors))


def check(kernel: str, status: int) -> None:
    """Raise what the status of a launch means; 0 passes.

    Raises:
        InputError: the kernel refused its arguments.
        EngineError: the runtime refused the launch.
    """
    if status in _STATUS:
        raise InputError(f"{kernel} refused its arguments: {_STATUS[status]}", value=status)
    if status != 0:
        raise EngineError(f"{kernel} could not be launched", value=status, hint="see CANN's log (plog) on this machine")
