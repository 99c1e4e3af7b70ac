"""The plan functions as a shared library: compiled on first use, kept by content, called through ctypes."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from logdiff_kernels import toolchain
from logdiff_kernels.cpu.build import find_compiler
from logdiff_kernels.errors import InputError, UnsupportedError

SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-Wall", "-Wextra", "-shared")

_WHAT = "the plan library"
_CAPACITY = -6
_REFUSED = {-1: "a dtype that the kernel doesn't know", -2: "a shape that it doesn't take", -3: "an argument"}


def ensure() -> Path:
    """Path of the library, cached or built now.

    Raises:
        UnsupportedError: no compiler is found, or it reports an error.
    """
    compiler = find_compiler()
    if compiler is None:
        raise UnsupportedError(
            f"{_WHAT} is not built and no C++ compiler was found",
            value=os.environ.get("CXX", "g++"),
            hint="install g++ or clang++, or set CXX",
        )
    source = SOURCES / "plan.cpp"
    words = [*compiler.command, compiler.version, *FLAGS]
    target = (
        toolchain.cache_folder("plan") / f"liblogdiff_plan_{toolchain.content_key(words, toolchain.reached(source))}.so"
    )
    if target.is_file():
        return target
    with toolchain.locked(target.with_suffix(".lock")):
        if not target.is_file():
            with toolchain.scratch(target) as folder, toolchain.Compilers() as compilers:
                made = folder / target.name
                compilers.run([*compiler.command, *FLAGS, str(source), "-o", str(made)], _WHAT)
                made.replace(target)
    return target


@cache
def _lib() -> ctypes.CDLL:
    return ctypes.CDLL(str(ensure()))


@cache
def function(name: str, argtypes: tuple[Any, ...], restype: Any = ctypes.c_int) -> Any:
    """The C function `name` with its types set."""
    found = getattr(_lib(), name)
    found.argtypes = argtypes
    found.restype = restype
    return found


def plan_function(name: str, kind: type[ctypes.Structure]) -> Any:
    """A function of one pointer to a plan, which it completes."""
    return function(name, (ctypes.POINTER(kind),))


def filled(plan: ctypes.Structure, fields: dict[str, Any]) -> None:
    """Set the fields of a plan.

    Raises:
        InputError: there is no such field, or it can't hold the value (ctypes alone would drop high bits).
    """
    known = {field[0] for field in type(plan)._fields_}
    for name, value in fields.items():
        if name not in known:
            raise InputError(f"{type(plan).__name__} has no field {name!r}", value=name, hint=f"one of {sorted(known)}")
        setattr(plan, name, value)
        if isinstance(value, int) and int(getattr(plan, name)) != value:
            raise InputError(f"{type(plan).__name__}.{name} can't hold {value}", value=value)


def check(status: int, kernel: str, value: Any, shape: str) -> None:
    """Raise what the status of a plan function means; 0 passes. `shape` names dtype and head size or lengths.

    Raises:
        UnsupportedError: the tiles don't fit on a core.
        InputError: the plan refused an argument.
    """
    if status == _CAPACITY:
        raise UnsupportedError(
            f"{kernel}: the tiles of {shape} don't fit on a core", value=value, hint="another dtype or head size"
        )
    if status != 0:
        raise InputError(f"{kernel} has no plan for {shape}: {_REFUSED.get(status, 'unknown reason')}", value=value)
