"""Compiling a kernel's source for the twin: the launcher's `.asc` by the C++ compiler, linked with the twin's runtime.

The runtime's objects are built once per architecture and kept by content; a kernel's library is one more translation
unit. `sanitize` builds belong into a process that `sanitizer_environment` has prepared.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from logdiff_kernels import toolchain
from logdiff_kernels.cpu import build as cpu
from logdiff_kernels.errors import InputError, UnsupportedError

CSRC = Path(__file__).parent / "csrc"
KERNELS = Path(__file__).parents[1] / "ascendc" / "csrc"
PACKAGE = Path(__file__).parents[1]

ARCHS = (2201, 3510)
"""Values of `__NPU_ARCH__`: 910B and A3, and 950."""

INCLUDES = (CSRC / "include", KERNELS, PACKAGE)
"""Where a kernel's includes are looked for, after its own folder."""

FLAGS: tuple[str, ...] = (
    "-std=c++17", "-O2", "-ftree-vectorize", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-ffp-contract=off",
    "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas",
)  # fmt: skip
"""No contraction: the number of roundings is the contract."""

FAST = {"avx2", "fma", "f16c"}
FAST_FLAGS = ("-mavx2", "-mfma", "-mf16c")
"""Features of the CPU, and the flags that use them: Mmad's fma in the twin is 20 times slower without."""

SANITIZE_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1")
SANITIZE = "LOGDIFF_TWIN_SANITIZE"
"""Environment variable, set to 1 by `sanitizer_environment`: libraries are then built with the sanitizers."""


def sanitizing() -> bool:
    """Whether this process was started to run sanitized libraries."""
    return os.environ.get(SANITIZE) == "1"


def ensure_library(
    source: Path, arch: int, *, exact_exp: bool = False, sanitize: bool | None = None, defines: Sequence[str] = ()
) -> Path:
    """The shared library of one launcher source: cached, or built now. A process looks at a source's text once.

    Args:
        source: a `.asc` or `.cpp` file that defines `ld_launch_<kernel>`.
        arch: 2201 or 3510.
        exact_exp: build with `LD_EXACT_EXP`: exp1 and ln1 from Mul and Add instead of the Exp and Ln instructions.
        sanitize: with AddressSanitizer and UBSan; None: `sanitizing()`.
        defines: further macros, `NAME` or `NAME=VALUE`.

    Raises:
        InputError: no such source or architecture.
        UnsupportedError: there is no compiler, or it reports an error; its words are in the hint.
    """
    return _ensure(source, arch, exact_exp, sanitizing() if sanitize is None else sanitize, tuple(defines))


@cache
def _ensure(source: Path, arch: int, exact_exp: bool, sanitize: bool, defines: tuple[str, ...]) -> Path:
    if arch not in ARCHS:
        raise InputError("unknown architecture", value=arch, hint=f"one of {ARCHS}")
    if not source.is_file():
        raise InputError("no such kernel source", value=str(source))
    compiler = find_compiler()
    flags = flags_of(arch, sanitize)
    macros = [f"-D{name}" for name in ([*defines, "LD_EXACT_EXP"] if exact_exp else defines)]
    words = [*compiler.command, compiler.version, *flags, *macros]
    folder = toolchain.cache_folder("twin")
    key = toolchain.content_key([*words, _runtime_key(tuple(flags))], toolchain.reached(source, INCLUDES))
    target = folder / f"{source.stem}-{arch}-{key}.so"
    if target.is_file():
        return target
    with toolchain.locked(folder / f"{target.name}.lock"), toolchain.Compilers() as compilers:
        if not target.is_file():
            objects = _runtime(compilers, compiler, flags, folder / "objects")
            with toolchain.scratch(target) as parts:
                made, linked = parts / f"{source.stem}.o", parts / target.name
                includes = [f"-I{path}" for path in INCLUDES]
                unit = ["-x", "c++", "-c", str(source), "-o", str(made)]
                compilers.run([*compiler.command, *flags, *macros, *includes, *unit], f"the kernel {source.name}")
                link = ["-shared", str(made), *map(str, objects), "-o", str(linked), "-pthread"]
                compilers.run([*compiler.command, *flags, *link], f"the kernel {source.name}")
                linked.replace(target)
    return target


def find_compiler() -> cpu.Compiler:
    """The C++ compiler of the CPU kernels. Raises `UnsupportedError` if there is none."""
    compiler = cpu.find_compiler()
    if compiler is None:
        raise UnsupportedError(
            "no C++ compiler was found, and the twin compiles kernels",
            value=os.environ.get("CXX", "g++"),
            hint="install g++ (or set CXX)",
        )
    return compiler


def sanitizer_environment() -> dict[str, str]:
    """Environment of a child process that runs sanitized libraries: libasan is loaded before everything else.

    Raises:
        UnsupportedError: there is no compiler, or it has no libasan.
    """
    command = find_compiler().command
    preloaded = []
    for name in ("libasan.so", "libstdc++.so"):  # the C++ runtime too: libasan wraps its throw when it starts
        argv = [*command, f"-print-file-name={name}"]
        path = Path(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip())
        if not path.is_absolute():
            raise UnsupportedError(f"the compiler has no {name}", value=command[0], hint="install its package")
        preloaded.append(str(path.resolve()))
    return {
        **os.environ,
        SANITIZE: "1",
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def flags_of(arch: int, sanitize: bool = False) -> list[str]:
    """What every translation unit of an architecture is compiled with."""
    flags = [*FLAGS, f"-D__NPU_ARCH__={arch}"]
    if cpu.cpu_features() >= FAST:
        flags += FAST_FLAGS
    return [*flags, *SANITIZE_FLAGS] if sanitize else flags


def runtime_objects(arch: int) -> list[Path]:
    """Objects of the twin's own sources, for libraries without sanitizers: cached, or built now."""
    with toolchain.Compilers() as compilers:
        return _runtime(compilers, find_compiler(), flags_of(arch), toolchain.cache_folder("twin") / "objects")


def _sources() -> list[Path]:
    return sorted(CSRC.glob("*.cpp"))


@cache
def _runtime_key(flags: tuple[str, ...]) -> str:
    files = {path for source in _sources() for path in toolchain.reached(source, [CSRC])}
    return toolchain.content_key(flags, sorted(files))


def _runtime(compilers: toolchain.Compilers, compiler: cpu.Compiler, flags: Sequence[str], store: Path) -> list[Path]:
    """Objects of the twin's own sources, kept by content."""

    def one(source: Path) -> Path:
        words = [*compiler.command, compiler.version, *flags]
        key = toolchain.content_key(words, toolchain.reached(source, [CSRC]))
        made = store / f"{source.stem}-{key}.o"
        if not made.is_file():
            with toolchain.locked(store / f"{made.name}.lock"), toolchain.scratch(made) as parts:
                if not made.is_file():
                    part = parts / made.name
                    unit = ["-c", str(source), "-o", str(part)]
                    compilers.run([*compiler.command, *flags, *unit], f"the twin's {source.name}")
                    part.replace(made)
        return made

    store.mkdir(parents=True, exist_ok=True)
    return toolchain.all_made(compilers.each(one, _sources()))
