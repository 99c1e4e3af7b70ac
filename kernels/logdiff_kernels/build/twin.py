"""Kernels in the twin: the same sources compiled by the C++ compiler and run on the CPU with the checks of an NPU.

The table of kernels says which arguments a kernel reads and which it fills, so that the twin can see a write to an
input and a read of what is not there yet.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from logdiff_kernels import toolchain
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.build import compile
from logdiff_kernels.build.arch import arch_name, arch_number
from logdiff_kernels.build.launcher import pointers
from logdiff_kernels.errors import InputError
from logdiff_kernels.twin import build as twin
from logdiff_kernels.twin.library import Argument, Library, Mmad, Options, Result

PROVIDER = "aligned-twin"
VECTORS_PER_CORE = 2


class TwinLauncher:
    """A `Launcher` for tensors of the CPU. A kernel is compiled when it is first launched.

    Args:
        arch: 2201, 3510 or their names.
        cores: cube cores of the chip that is played.
        seed: of everything that a real chip leaves open: order of blocks, switches between cores, left-over modes.
        mmad: what is assumed about the order inside one Mmad.
        exact_exp: exp and ln with the bits of the CPU library; False: the Exp and Ln instructions.
        trace: keep the trace of each launch in `results`.
        sanitize: with AddressSanitizer and UBSan, in a process that `twin.build.sanitizer_environment` has prepared;
            None: as this process was prepared.
        check_races: False for big runs only.
        perturb: Exp and Ln off by up to one ulp, as another chip's may be.

    Attributes:
        results: (kernel, result) of the launches so far where `trace` is set, else of the last one.

    Raises:
        InputError: an unknown architecture or model of Mmad, no core, or a seed that is no integer.
    """

    def __init__(
        self,
        arch: int | str = 2201,
        cores: int = 24,
        seed: int = 0,
        mmad: Mmad = Mmad.ASCENDING,
        exact_exp: bool = True,
        trace: bool = False,
        sanitize: bool | None = None,
        *,
        check_races: bool = True,
        perturb: bool = False,
    ) -> None:
        self.arch = arch_number(arch)
        if not isinstance(cores, int) or cores < 1:
            raise InputError("the twin plays a chip of at least one core", value=cores, hint="cores=24, for example")
        if not isinstance(seed, int):
            raise InputError("a seed is an integer", value=seed, hint="seed=0, for example")
        if not isinstance(mmad, Mmad):
            models = ", ".join(f"Mmad.{known.name}" for known in Mmad)
            raise InputError("no such model of Mmad", value=mmad, hint=f"one of: {models}")
        self.cores = cores
        self.vectors_per_core = VECTORS_PER_CORE
        self.exact_exp = exact_exp
        self.device = torch.device("cpu")
        self.provider = PROVIDER
        self.chip = "twin"
        self.options = Options(cores, seed, mmad, check_races, trace, perturb)
        self.results: list[tuple[str, Result]] = []
        self._sanitize = sanitize

    def launch(self, kernel: str, tensors: Sequence[Tensor | None], plan: ctypes.Structure, blocks: int) -> None:
        """`Launcher.launch`, to its end.

        Raises:
            TwinError: the kernel did what an NPU does not allow, or leaves undefined.
        """
        pointers(self, kernel, tensors, blocks)
        (source,) = compile.chosen([kernel])
        library = _loaded(twin.ensure_library(source, self.arch, exact_exp=self.exact_exp, sanitize=self._sanitize))
        arguments = _arguments(kernel, tensors)
        result = library.launch(kernel, arguments, plan, blocks, self.options)
        if not self.options.trace:
            self.results.clear()
        self.results.append((kernel, result))

    @property
    def binary_hash(self) -> str:
        """`Launcher.binary_hash`: of the sources, since kernels are compiled one by one as they are needed."""
        return source_hash(self.arch, self.exact_exp)

    def workspace(self, size: int) -> Tensor:
        """`Launcher.workspace`."""
        return torch.empty(size, dtype=torch.uint8)


def build_twin(
    arch: str, exact_exp: bool = True, *, kernels: Sequence[str] | None = None, on_done: compile.OnDone | None = None
) -> compile.Build:
    """As `compile.build`, for the twin.

    Raises:
        UnsupportedError: there is no C++ compiler, or sources don't compile.
        InputError: an unknown architecture or kernel.
    """
    number = arch_number(arch)
    compiler = twin.find_compiler()

    def one(source: Path) -> compile.Binary:
        begin, started = time.time(), time.monotonic()
        path = twin.ensure_library(source, number, exact_exp=exact_exp)
        cached = path.stat().st_mtime < begin
        seconds = 0.0 if cached else round(time.monotonic() - started, 3)
        return compile.Binary(source.stem, path, toolchain.sha256(path), None, seconds, cached)

    units = compile.chosen(kernels)
    with toolchain.Compilers() as compilers:
        made = compile.compile_all(compilers, one, units, arch_name(number), "", on_done)
    return compile.Build(arch_name(number), exact_exp, compiler.version, None, made)


@cache
def source_hash(arch: int, exact_exp: bool) -> str:
    """SHA-256 over all that the twin's kernels are made of: their sources, the twin's own, the flags."""
    files = {path for source in compile.sources() for path in toolchain.reached(source, twin.INCLUDES)}
    files |= {path for source in twin.CSRC.glob("*.cpp") for path in toolchain.reached(source, [twin.CSRC])}
    return toolchain.content_hash([str(arch), str(exact_exp), *twin.FLAGS], sorted(files))


@cache
def _loaded(path: Path) -> Library:
    return Library(path)


def _arguments(kernel: str, tensors: Sequence[Tensor | None]) -> list[Argument | None]:
    record = kernels().get(kernel)
    names = record.pointers if record is not None else tuple(f"argument {i}" for i in range(len(tensors)))
    found: list[Argument | None] = []
    for name, x in zip(names, tensors, strict=True):
        if x is None:
            found.append(None)
            continue
        filled = record is not None and name in record.outputs and name not in record.updated
        writable = record is None or name in record.outputs
        found.append(Argument(_memory(x.detach()), name, initialised=not filled, writable=writable))
    return found


def _memory(x: Tensor) -> Tensor:
    """All that lies between the first and the last element of `x`, without gaps."""
    if x.is_contiguous():
        return x
    span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,))
