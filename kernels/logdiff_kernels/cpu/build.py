"""Compiling the kernels: on first use into a cache, or ahead of time into a wheel.

One source, one library per instruction set. Only the standard library is needed here, so that a wheel build can use
this module before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from logdiff_kernels import toolchain
from logdiff_kernels.errors import UnsupportedError

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"
MANIFEST = "manifest.json"

COMMON_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-pthread",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-uninitialized",
    "-Wno-maybe-uninitialized", "-Wno-psabi",
)  # fmt: skip
"""No -ffast-math and no contraction: the order and the number of roundings are the contract."""


OnDone = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: compiler flags, the architecture, and the CPU features (Linux names) that it needs."""

    name: str
    machine: str
    flags: tuple[str, ...]
    features: frozenset[str]


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
_AVX2_FEATURES = frozenset({"avx2", "fma", "f16c"})
_AVX512_FEATURES = _AVX2_FEATURES | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}

ISAS: tuple[Isa, ...] = (
    Isa(
        "avx512_bf16",
        "x86_64",
        (*_AVX512, "-mavx512bf16", "-DLD_ISA_AVX512", "-DLD_HAS_BF16DOT"),
        _AVX512_FEATURES | {"avx512_bf16"},
    ),
    Isa("avx512", "x86_64", (*_AVX512, "-DLD_ISA_AVX512"), _AVX512_FEATURES),
    Isa("avx2", "x86_64", (*_AVX2, "-DLD_ISA_AVX2"), _AVX2_FEATURES),
    Isa("neon", "aarch64", ("-DLD_ISA_NEON",), frozenset()),
    # -O3 makes this one take four times as long to compile, and it is the last resort.
    Isa("generic", "", ("-DLD_ISA_GENERIC", "-O2"), frozenset()),
)
"""Best first."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the command and the first line of its `--version`."""

    command: tuple[str, ...]
    version: str


def isa_named(name: str) -> Isa:
    """The instruction set of that name.

    Raises:
        UnsupportedError: there is none.
    """
    for isa in ISAS:
        if isa.name == name:
            return isa
    raise UnsupportedError(f"unknown instruction set {name!r}", value=name, hint=f"one of {[i.name for i in ISAS]}")


def machine() -> str:
    """`x86_64`, `aarch64`, or what the platform calls itself."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


@cache
def cpu_features() -> frozenset[str]:
    """CPU feature flags in Linux's spelling; empty where /proc/cpuinfo has none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def usable(isa: Isa) -> bool:
    """Whether this CPU runs that instruction set."""
    return isa.machine in ("", machine()) and isa.features <= cpu_features()


@cache
def find_compiler() -> Compiler | None:
    """$CXX, else g++, c++ or clang++ on PATH; None if there is none that starts."""
    wanted = os.environ.get("CXX")
    for command in [wanted.split()] if wanted else [["g++"], ["c++"], ["clang++"]]:
        if not shutil.which(command[0]):
            continue
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout:
            return Compiler(tuple(command), done.stdout.splitlines()[0])
    return None


def source_files() -> list[Path]:
    """The translation units, sorted by name."""
    return sorted(SOURCES.glob("*.cpp"))


def source_hash() -> str:
    """SHA-256 over every source and header and the flags: what a prebuilt library has to match."""
    digest = hashlib.sha256(json.dumps([COMMON_FLAGS, [(i.name, i.flags) for i in ISAS]]).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where built libraries are kept: `cpu/` under `$LOGDIFF_CACHE`, else under the user's cache folder."""
    return toolchain.cache_folder("cpu")


def library_name(isa: Isa) -> str:
    """File name of one instruction set's library."""
    return f"liblogdiff_cpu_{isa.name}.so"


def prebuilt_library(isa: Isa) -> Path | None:
    """The library that came with the package, if it was built from exactly these sources."""
    try:
        manifest = json.loads((PREBUILT / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    path = PREBUILT / library_name(isa)
    if manifest.get("source") != source_hash() or manifest.get("machine") != machine() or not path.is_file():
        return None
    return path


def built_library(isa: Isa) -> Path | None:
    """Path of the library for `isa` if it is prebuilt or cached; None: it has to be compiled.

    Raises:
        UnsupportedError: nothing is built and no compiler is found.
    """
    found = prebuilt_library(isa) or _target(isa, _required_compiler())
    return found if found.is_file() else None


def ensure_library(isa: Isa, on_done: OnDone | None = None) -> Path:
    """Path of the library for `isa`: prebuilt, cached, or built now.

    Args:
        isa: instruction set.
        on_done: as in `compile_library`; not called when nothing is compiled.

    Raises:
        UnsupportedError: nothing is built and no compiler is found, the compiler lacks the instruction set, or
            compiling fails.
    """
    found = built_library(isa)
    if found:
        return found
    compiler = _required_compiler()
    target = _target(isa, compiler)
    with toolchain.locked(target.with_name(f"{isa.name}.lock")):
        if not target.is_file():
            compile_library(isa, target, compiler, objects=cache_folder() / "objects", on_done=on_done)
    return target


def _required_compiler() -> Compiler:
    compiler = find_compiler()
    if compiler is None:
        raise UnsupportedError(
            "the CPU kernels are not built and no C++ compiler was found",
            value=os.environ.get("CXX", "g++"),
            hint="install g++ or clang++ (or set CXX), or use a wheel that carries the libraries",
        )
    return compiler


def _target(isa: Isa, compiler: Compiler) -> Path:
    key = toolchain.content_key([source_hash(), *compiler.command, compiler.version])
    return cache_folder() / key / library_name(isa)


def supports(compiler: Compiler, isa: Isa) -> bool:
    """Whether the compiler knows the flags of `isa`."""
    argv = [*compiler.command, *isa.flags, "-x", "c++", "-E", os.devnull, "-o", os.devnull]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def compile_library(
    isa: Isa,
    target: Path,
    compiler: Compiler,
    *,
    objects: Path | None = None,
    extra: Sequence[str] = (),
    link: Sequence[str] = (),
    on_done: OnDone | None = None,
) -> None:
    """Compile every source for `isa` and link `target`; it appears whole or not at all.

    Args:
        isa: instruction set.
        target: path of the shared library to write.
        compiler: compiler to use.
        objects: folder of object files kept by content, so that a changed source recompiles alone; None keeps none.
        extra: further compiler flags.
        link: further linker flags.
        on_done: called as (done, total, source) before the first source and after each, one call at a time, from the
            compiling threads.

    Raises:
        UnsupportedError: the compiler doesn't know the instruction set, or reports an error; its words are in the hint.
    """
    if not supports(compiler, isa):
        raise UnsupportedError(
            f"{compiler.version} can't compile for {isa.name}", value=isa.name, hint="a newer compiler"
        )
    what = "the CPU kernels"
    flags = [*COMMON_FLAGS, *isa.flags, *extra]
    with toolchain.scratch(target) as temporary, toolchain.Compilers() as compilers:
        store = objects or temporary
        store.mkdir(parents=True, exist_ok=True)

        def one(source: Path) -> Path:
            words = [*compiler.command, compiler.version, *flags]
            made = store / f"{source.stem}-{toolchain.content_key(words, toolchain.reached(source))}.o"
            if not made.is_file():
                part = temporary / f"{source.stem}.part.o"
                compilers.run([*compiler.command, *flags, "-c", str(source), "-o", str(part)], what)
                part.replace(made)
            return made

        sources = source_files()
        ended: list[Path] = []
        telling = threading.Lock()

        def told(source: Path) -> Path:
            made = one(source)
            with telling:
                ended.append(source)
                if on_done is not None:
                    on_done(len(ended), len(sources), source.stem)
            return made

        if on_done is not None:
            on_done(0, len(sources), "")
        made = [str(path) for path in toolchain.all_made(compilers.each(told, sources))]
        linked = temporary / target.name
        compilers.run([*compiler.command, *flags, "-shared", *made, "-o", str(linked), *link, "-ldl"], what)
        linked.replace(target)


def build_prebuilt(folder: Path, compiler: Compiler, only: Sequence[str] | None = None) -> list[str]:
    """Build every instruction set of this architecture (or those in `only`) into `folder`, with a manifest.

    Returns:
        The names of those built. One that the compiler doesn't know is left out unless `only` names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for isa in ISAS if only is None else [isa_named(name) for name in only]:
        if isa.machine in ("", machine()) and (only is not None or supports(compiler, isa)):
            # The C++ runtime is linked in: the wheel may run where that library is older.
            portable = ["-static-libgcc", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,-s"]
            compile_library(isa, folder / library_name(isa), compiler, link=portable)
            built.append(isa.name)
    manifest = {"source": source_hash(), "machine": machine(), "compiler": compiler.version, "isas": built}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return built
