"""The loaded library: the best instruction set that this CPU has and that passes its own checks."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.cpu import build
from logdiff_kernels.errors import InputError, UnsupportedError

VARIABLE = "LOGDIFF_CPU_ISA"
"""Environment variable that forces one instruction set."""

DTYPE_CODES: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_PROBES = (("ld_self_probe", True), ("ld_bf16_dot_probe", False))
"""Checks at load: function, and whether every library has it. Each gives 0 or the number of the check that failed."""
_STATUS = {
    -1: "dtype that the kernel doesn't know",
    -2: "shape that the kernel doesn't take",
    -3: "argument that the kernel doesn't take",
    -4: "out of memory",
}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Which library runs: instruction set, file, its SHA-256, its sources', and why better ones were passed over."""

    isa: str
    path: Path
    sha256: str
    source: str
    refused: tuple[tuple[str, str], ...]
    handle: ctypes.CDLL


def lib(isa: str | None = None) -> ctypes.CDLL:
    """The library of the best instruction set, or of the named one; built on first use.

    Raises:
        UnsupportedError: it can't be built, this CPU doesn't run it, or its check at load fails.
    """
    return loaded(isa).handle


def loaded(isa: str | None = None) -> Loaded:
    """As `lib`, with what is known about it."""
    with _lock:
        return _load_best() if isa is None else _load(isa)


def first_choice() -> build.Isa:
    """The instruction set that `loaded` tries first: the forced one, or the best that CPU and compiler know.

    Raises:
        UnsupportedError: the forced one is unknown, or this CPU doesn't run it.
    """
    forced = os.environ.get(VARIABLE)
    if forced:
        return _usable(forced)
    known = (isa for isa in build.ISAS if build.usable(isa) and _buildable(isa))
    return next(known, build.ISAS[-1])


def function(name: str, argtypes: Sequence[Any], restype: Any = ctypes.c_int, isa: str | None = None) -> Any:
    """The C function `name` with its argument types set; call it with plain ints and floats."""
    found = getattr(lib(isa), name)
    found.argtypes = list(argtypes)
    found.restype = restype
    return found


def packed(name: str, argtypes: Sequence[Any]) -> Any:
    """As `function`, called through its `LD_PACKED` entry: a third of the cost of a call with many arguments.

    A null pointer is 0, not None.
    """
    pack = struct.Struct("".join("d" if kind is ctypes.c_float else "q" for kind in argtypes)).pack
    entry = function(f"packed_{name}", [ctypes.c_char_p])

    def call(*arguments: Any) -> int:
        return entry(pack(*arguments))  # type: ignore[no-any-return]

    return call


def address(x: torch.Tensor | None) -> int:
    """Where a tensor's data begins; 0, the null pointer, for None."""
    return 0 if x is None else x.data_ptr()


def pool() -> str:
    """Whose threads the kernels run on: `gomp` (the OpenMP runtime of the process) or `threads` (their own)."""
    name: bytes = function("ld_pool", [], ctypes.c_char_p)()
    return name.decode()


def check(name: str, status: int) -> None:
    """Raise what a kernel's return code means; 0 passes.

    Raises:
        InputError: the kernel refused an argument.
        MemoryError: it found no memory.
    """
    if status == -4:
        raise MemoryError(f"{name}: {_STATUS[-4]}")
    if status != 0:
        raise InputError(f"{name} refused its arguments: {_STATUS.get(status, 'unknown reason')}", value=status)


def dtype_code(dtype: torch.dtype) -> int:
    """The code of a dtype in the C functions.

    Raises:
        UnsupportedError: it is none of fp32, bf16, fp16.
    """
    try:
        return DTYPE_CODES[dtype]
    except KeyError:
        raise UnsupportedError(
            f"aligned-cpu has no kernels for {dtype}", value=str(dtype), hint="float32, bfloat16 or float16"
        ) from None


@cache
def _load_best() -> Loaded:
    forced = os.environ.get(VARIABLE)
    if forced:
        return _load(forced)
    refused: list[tuple[str, str]] = []
    for isa in build.ISAS:
        if not build.usable(isa):
            continue
        if not _buildable(isa):
            refused.append((isa.name, "the compiler can't build it"))
            continue
        try:
            found = _load(isa.name)
        except _ProbeError as error:
            refused.append((isa.name, error.message))
            continue
        return replace(found, refused=tuple(refused))
    raise UnsupportedError(
        "no instruction set of the CPU kernels passes its check", value=refused, hint="a bug: report it"
    )


def _buildable(isa: build.Isa) -> bool:
    compiler = build.find_compiler()
    return compiler is None or build.prebuilt_library(isa) is not None or build.supports(compiler, isa)


def _usable(name: str) -> build.Isa:
    isa = build.isa_named(name)
    if not build.usable(isa):
        raise UnsupportedError(f"this CPU can't run {name} code", value=name, hint=f"unset {VARIABLE}")
    return isa


class _ProbeError(UnsupportedError):
    """The library's own check at load failed."""


@cache
def _load(name: str) -> Loaded:
    isa = _usable(name)
    source = build.source_hash()
    path = build.ensure_library(isa)
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnsupportedError(
            f"the library of the CPU kernels doesn't load: {error}",
            value=str(path),
            hint="a prebuilt one may be for a newer system: install from source where a C++ compiler is present",
        ) from error
    for probe, required in _PROBES:
        if (required or hasattr(handle, probe)) and (failed := getattr(handle, probe)()) != 0:
            raise _ProbeError(f"{name}: {probe} failed at check {failed}", value=name, hint="another instruction set")
    return Loaded(name, path, hashlib.sha256(path.read_bytes()).hexdigest(), source, (), handle)
