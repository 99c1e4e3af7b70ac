"""The Ascend C kernels compiled by bisheng: one shared library per source, in parallel, cached by content.

A library's key covers its source with every header of this package that it reaches, the flags, the compiler and CANN's
version. Its folder `$LOGDIFF_CACHE/ascendc/<key>/` holds the library, `build.json` and `build.log` (the command and all
that bisheng said); after a failure the log alone.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from logdiff_kernels import toolchain
from logdiff_kernels.build.arch import arch_number
from logdiff_kernels.build.cann import INSTEAD, Cann, find_cann
from logdiff_kernels.errors import InputError, UnsupportedError

PACKAGE = Path(__file__).parents[1]
SOURCES = PACKAGE / "ascendc" / "csrc"
INCLUDES = (".", "ascendc/csrc")
"""Folders of our own headers, from the package's folder, in which bisheng is started: commands name no machine path."""

FLAGS = ("-O2", "-std=c++17", "-fPIC", "-ffp-contract=off")
EXACT_EXP = "-DLD_EXACT_EXP"
TIMEOUT = 3600.0
"""Seconds for one source."""

_SHOWN = 3
"""How many failures are shown with the compiler's words."""

OnDone = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled source.

    Attributes:
        kernel: name of the source without its suffix; its launcher is `ld_launch_<kernel>`.
        path: the shared library.
        sha256: of that file.
        log: the command and what bisheng said; None for the twin, which keeps none.
        seconds: how long the compiler took when it was compiled.
        cached: whether it was there already.
    """

    kernel: str
    path: Path
    sha256: str
    log: Path | None
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True)
class Build:
    """The compiled kernels of one architecture and one variant of exp.

    Attributes:
        arch: `dav-2201` or `dav-3510`.
        exact_exp: whether exp and ln have the bits of the CPU library.
        compiler: what the compiler calls itself.
        cann: CANN's version; None for the twin.
        binaries: the libraries, by name.
    """

    arch: str
    exact_exp: bool
    compiler: str
    cann: str | None
    binaries: tuple[Binary, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 over the kernels' names and the hashes of their libraries: what both sides of a run compare."""
        lines = "".join(f"{binary.kernel} {binary.sha256}\n" for binary in self.binaries)
        return hashlib.sha256(lines.encode()).hexdigest()

    def of(self, kernel: str) -> Binary:
        """The library of a kernel.

        Raises:
            UnsupportedError: the build has none.
        """
        for binary in self.binaries:
            if binary.kernel == kernel:
                return binary
        raise UnsupportedError(
            f"no Ascend C kernel {kernel!r}", value=kernel, hint=f"built: {', '.join(b.kernel for b in self.binaries)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: `arch`, `exact_exp`, `sha256`, `cann`, `compiler`, `kernels` with a row per library."""
        return {
            "arch": self.arch,
            "exact_exp": self.exact_exp,
            "sha256": self.sha256,
            "cann": self.cann,
            "compiler": self.compiler,
            "kernels": [
                {**asdict(binary), "path": str(binary.path), "log": None if binary.log is None else str(binary.log)}
                for binary in self.binaries
            ],
        }


def sources() -> list[Path]:
    """The launchers, one translation unit each, sorted by name."""
    return sorted(SOURCES.glob("*.asc"))


def command(cann: Cann, arch: str, exact_exp: bool, source: Path, output: str) -> list[str]:
    """The command that makes the library of one source, to be run in the package's folder."""
    headers = [f"-I{folder}" for folder in cann.includes]
    unit = source.relative_to(PACKAGE).as_posix()
    return [str(cann.bisheng), *flags(arch, exact_exp), *headers, "-shared", unit, "-o", output]


def flags(arch: str, exact_exp: bool) -> list[str]:
    """What bisheng is told about every source, CANN's own folders apart.

    Some projects add `--cce-auto-infer-kernel-type=false` from CANN 9.0 on. Not here: KERNEL_TASK_TYPE_DEFAULT, by
    which our kernels say which cores they run on, is reported not to compile with it.
    """
    words = ["-x", "asc", f"--npu-arch={arch}", *FLAGS]
    if exact_exp:
        words.append(EXACT_EXP)
    return [*words, *(f"-I{folder}" for folder in INCLUDES)]


def build(
    arch: str,
    exact_exp: bool = False,
    *,
    kernels: Sequence[str] | None = None,
    cann: Cann | None = None,
    jobs: int | None = None,
    timeout: float = TIMEOUT,
    on_done: OnDone | None = None,
) -> Build:
    """Every kernel for `arch`, or the named ones: from the cache, or compiled now.

    Args:
        arch: `dav-2201` or `dav-3510`.
        exact_exp: exp and ln from Mul and Add (the bits of the CPU and the twin) instead of the hardware's.
        kernels: names of sources; None: all.
        cann: the compiler; None: `find_cann()`.
        jobs: compilers at a time; None: one for each processor.
        timeout: seconds for one source.
        on_done: called as (done, total, kernel) after each, one call at a time, from the compiling threads.

    Raises:
        UnsupportedError: CANN is missing, or sources don't compile. All that can be compiled are; the error names every
            one that can't, with its log.
        InputError: an unknown architecture or kernel.
    """
    arch_number(arch)
    cann = cann or find_cann()
    with toolchain.Compilers(jobs) as compilers:

        def one(source: Path) -> Binary:
            return _ensure(compilers, cann, arch, exact_exp, source, timeout)

        made = compile_all(compilers, one, chosen(kernels), arch, INSTEAD, on_done)
    return Build(arch, exact_exp, cann.compiler, cann.version, made)


def built(arch: str, exact_exp: bool = False) -> Build | None:
    """The kernels for `arch` if every one is in the cache; None where one is missing, or CANN is."""
    try:
        cann = find_cann()
    except UnsupportedError:
        return None
    found = [_cached(*_place(cann, arch, exact_exp, source)) for source in sources()]
    whole = tuple(binary for binary in found if binary is not None)
    return Build(arch, exact_exp, cann.compiler, cann.version, whole) if whole and len(whole) == len(found) else None


def compile_all(
    compilers: toolchain.Compilers,
    one: Callable[[Path], Binary],
    units: Sequence[Path],
    arch: str,
    instead: str,
    on_done: OnDone | None,
) -> tuple[Binary, ...]:
    """`one` of every source, side by side.

    Raises:
        UnsupportedError: with all that could not be compiled; `instead` ends its hint. What stops every source in the
            same way is raised as it is.
    """
    ended: list[str] = []
    telling = threading.Lock()

    def told(source: Path) -> Binary:
        try:
            return one(source)
        finally:
            with telling:
                ended.append(source.stem)
                if on_done is not None:
                    on_done(len(ended), len(units), source.stem)

    results = compilers.each(told, units)
    failed = [error for error in results if isinstance(error, UnsupportedError)]
    if failed and len({(error.message, error.hint) for error in failed}) == 1 < len(units) == len(failed):
        raise failed[0]  # nothing of the sources': a cache that can't be written
    if failed:
        names = [unit.stem for unit, result in zip(units, results, strict=True) if result in failed]
        words = [f"{error.message}\n{error.hint}" for error in failed[:_SHOWN]]
        more = f"and {len(failed) - _SHOWN} more, in their logs" if len(failed) > _SHOWN else ""
        raise UnsupportedError(
            f"{len(failed)} of {len(units)} Ascend C kernels could not be compiled for {arch}: {', '.join(names)}",
            value=[error.value for error in failed],
            hint="\n\n".join(part for part in [*words, more, instead] if part),
        )
    return tuple(result for result in results if isinstance(result, Binary))


def key(cann: Cann, arch: str, exact_exp: bool, source: Path) -> str:
    """Name of the cache folder of one source's library."""
    words = [cann.version, cann.compiler, *flags(arch, exact_exp)]
    headers = toolchain.reached(source, [PACKAGE / folder for folder in INCLUDES])
    return toolchain.content_key(words, headers)


def chosen(kernels: Sequence[str] | None) -> list[Path]:
    """The sources of the named kernels, or all.

    Raises:
        InputError: no such kernel.
        UnsupportedError: there are no sources.
    """
    known = {source.stem: source for source in sources()}
    if not known:
        raise UnsupportedError("this installation has no Ascend C sources", value=str(SOURCES), hint="install it again")
    if kernels is None:
        return list(known.values())
    for name in kernels:
        if name not in known:
            raise InputError(f"no Ascend C kernel {name!r}", value=name, hint=f"one of: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(kernels)]


def _place(cann: Cann, arch: str, exact_exp: bool, source: Path) -> tuple[Path, Path]:
    """Where the library and the log of a source are kept."""
    folder = toolchain.cache_folder("ascendc") / key(cann, arch, exact_exp, source)
    return folder / f"{source.stem}.so", folder / "build.log"


def _ensure(
    compilers: toolchain.Compilers, cann: Cann, arch: str, exact_exp: bool, source: Path, timeout: float
) -> Binary:
    target, log = _place(cann, arch, exact_exp, source)
    folder = target.parent
    found = _cached(target, log)
    if found is not None:
        return found
    with toolchain.locked(folder / "lock"):
        found = _cached(target, log)
        if found is not None:  # another process has built it in the meantime
            return found
        with toolchain.scratch(target) as parts:
            made, begin = parts / target.name, time.monotonic()
            argv = command(cann, arch, exact_exp, source, str(made))
            compilers.run(argv, f"{source.name} for {arch}", log=log, folder=PACKAGE, timeout=timeout)
            if not made.is_file():
                raise UnsupportedError(f"bisheng made no library of {source.name}", value=str(log), hint=str(argv))
            record = {
                "kernel": source.stem,
                "arch": arch,
                "exact_exp": exact_exp,
                "cann": cann.version,
                "compiler": cann.compiler,
                "command": argv,
                "sha256": toolchain.sha256(made),
                "seconds": round(time.monotonic() - begin, 3),
            }
            written = parts / "build.json"
            written.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            written.replace(folder / "build.json")
            made.replace(target)  # last: a library that is there is whole and has its record
    return Binary(source.stem, target, str(record["sha256"]), log, float(str(record["seconds"])), False)


def _cached(target: Path, log: Path) -> Binary | None:
    """The library if it is there and is what was built; a damaged one is built again."""
    try:
        record = json.loads((target.parent / "build.json").read_bytes())
        if record["sha256"] == toolchain.sha256(target):
            return Binary(target.stem, target, record["sha256"], log, float(record["seconds"]), True)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None
