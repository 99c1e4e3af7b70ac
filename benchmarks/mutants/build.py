"""Libraries of mutants, compiled fast: without optimisation unless that is asked for, the twin's header compiled once,
its runtime as ever."""

from __future__ import annotations

import shutil
from pathlib import Path

from logdiff_kernels import toolchain
from logdiff_kernels.plan import library as plans
from logdiff_kernels.twin import build as twin

from benchmarks.mutants.ladder import ARCHS
from benchmarks.mutants.sources import KERNELS, PACKAGE, PLANS

_HEADER = "kernel_operator.h"


class Workplace:
    """A folder with a copy of the sources and the libraries of both, originals and the mutant of the moment.

    Args:
        folder: made if it isn't there.
        optimise: libraries as for use, which take three times as long to compile and a third of the time to run.

    Attributes:
        tree: the copy, in which mutants are planted.
        originals: folder of the unchanged sources' libraries; another one for other sources.
        mutants: folder of a mutant's libraries.
    """

    def __init__(self, folder: Path, optimise: bool = False) -> None:
        self.optimise = optimise
        self.tree, self.mutants = folder / "tree", folder / "mutant"
        shutil.rmtree(self.tree, ignore_errors=True)
        for part in (KERNELS, PLANS):
            shutil.copytree(PACKAGE / part, self.tree / part)
        files = sorted(path for path in self.tree.rglob("*") if path.is_file())
        runtime = sorted(path for path in twin.CSRC.rglob("*") if path.is_file())
        self.key = toolchain.content_key([twin.find_compiler().version, *self._flags(ARCHS[0])], [*files, *runtime])
        self.originals = folder / f"original-{self.key}"
        self.originals.mkdir(parents=True, exist_ok=True)
        self._headers = self.originals

    def clear(self) -> None:
        """Remove the libraries of the last mutant."""
        shutil.rmtree(self.mutants, ignore_errors=True)
        self.mutants.mkdir(parents=True)

    def kernel(self, kernel: str, arch: int, exact: bool, folder: Path) -> Path:
        """A kernel's library from the copy of the sources, built into `folder` if it isn't there.

        Raises:
            UnsupportedError: it does not compile.
        """
        target = folder / f"{kernel}-{arch}{'-exact' * exact}.so"
        if not target.is_file():
            made = target.with_suffix(".o")
            header = ["-include", str(self._precompiled(arch))]
            self._compile([*self._flags(arch), *header], kernel, exact, made)
            objects = [str(made), *map(str, twin.runtime_objects(arch))]
            self._run([*self._flags(arch), "-shared", *objects, "-o", str(target), "-pthread"], kernel)
        return target

    def optimised(self, kernel: str, arch: int, exact: bool, folder: Path) -> bytes:
        """The kernel's object as it is compiled for use."""
        made = folder / f"{kernel}-{arch}{'-exact' * exact}-optimised.o"
        if not made.is_file():
            self._compile(twin.flags_of(arch), kernel, exact, made)
        return made.read_bytes()

    def plan(self, folder: Path) -> Path:
        """The plan library from the copy."""
        target = folder / "plan.so"
        if not target.is_file():
            source = self.tree / PLANS / "plan.cpp"
            self._run([*plans.FLAGS, "-O0", str(source), "-o", str(target)], "the plan library")
        return target

    def _compile(self, flags: list[str], kernel: str, exact: bool, made: Path) -> None:
        macros = ["-DLD_EXACT_EXP"] if exact else []
        includes = [f"-I{path}" for path in (twin.CSRC / "include", self.tree / KERNELS, self.tree)]
        unit = ["-x", "c++", "-c", str(self.tree / KERNELS / f"{kernel}.asc"), "-o", str(made)]
        self._run([*flags, *macros, *includes, "-w", *unit], kernel)

    def _precompiled(self, arch: int) -> Path:
        header = self._headers / f"arch-{arch}" / _HEADER
        made = header.with_suffix(".h.gch")
        if not made.is_file():
            header.parent.mkdir(exist_ok=True)
            header.write_text(f'#include "{twin.CSRC / "include" / _HEADER}"\n', encoding="utf-8")
            self._run([*self._flags(arch), "-w", "-x", "c++-header", str(header), "-o", str(made)], "the twin's header")
        return header

    def _flags(self, arch: int) -> list[str]:
        flags = twin.flags_of(arch)
        return flags if self.optimise else ["-O0" if flag == "-O2" else flag for flag in flags]

    @staticmethod
    def _run(arguments: list[str], what: str) -> None:
        with toolchain.Compilers() as compilers:
            compilers.run([*twin.find_compiler().command, *arguments], what)
