"""The checks that a mutant meets, cheapest first, and one of them performed.

A check runs a case of `logdiff_kernels.ascendc.cases` in the twin. Its results have the bits of the CPU backend, or,
where Mmad's order or Exp are another chip's, are near them and equal for every number of cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from logdiff_kernels.ascendc import cases
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

ARCHS = (2201, 3510)
LENGTHS = (1, 65, 130, 520, 1025, 4097, 9000)
EDGES = (2, 15, 16, 17, 63, 64, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 2050, 4100)
RUNGS = ("bits", "bits, 950", "cores", "order and start", "edges", "other chip")
LONG = 140_000, 130_560
"""Of vocabularies: a leaf has several tiles, or 255 repeats."""


@dataclass(frozen=True, slots=True)
class Check:
    """One run of a case.

    Attributes:
        rung: of the ladder.
        case: name of the case.
        length: of its inputs.
        dtype: of its inputs.
        arch: 2201 or 3510.
        cores: of the chip.
        seed: of block order, switches and left-over modes; also of the inputs.
        switch_every: instructions between switches of cores.
        mmad: order inside Mmad.
        exact: exp and ln with the CPU's bits.
    """

    rung: str
    case: str
    length: int
    dtype: torch.dtype
    arch: int = 2201
    cores: int = 3
    seed: int = 5
    switch_every: int = 64
    mmad: Mmad = Mmad.ASCENDING
    exact: bool = True

    @property
    def name(self) -> str:
        """Short, different for different checks."""
        words = (self.rung, self.case, self.length, str(self.dtype)[6:], self.arch, f"{self.cores} cores", self.seed)
        return " ".join(map(str, words)) + ("" if self.mmad is Mmad.ASCENDING else f" {self.mmad.name}")

    @property
    def data(self) -> tuple[str, int, torch.dtype]:
        """What the inputs, and so the expected results, depend on."""
        return self.case, self.length, self.dtype


class CaughtError(Exception):
    """A check has found the fault.

    Args:
        check: one of the twin's, or `bits`, `bound`, `cores`, `refused`.
        detail: where.
    """

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(detail)
        self.check = check


def case_of(name: str) -> cases.Case:
    """A case by its name."""
    return next(case for case in cases.CASES if case.name == name)


def kernels() -> set[str]:
    """Kernels that some case launches."""
    return {kernel for case in cases.CASES for kernel in case.kernels}


def checks(kernel: str) -> dict[str, list[Check]]:
    """The ladder of a kernel: the checks of each of `RUNGS`."""
    chosen = [case for case in cases.CASES if kernel in case.kernels]
    bits = [[Check("bits", c.name, n, _dtype(c, i)) for i, n in enumerate(_lengths(c))] for c in chosen]
    rungs = {"bits": [check for row in bits for check in row]}
    rungs["bits, 950"] = [dataclasses.replace(check, rung="bits, 950", arch=3510) for check in rungs["bits"]]
    rungs["cores"] = [
        Check("cores", c.name, n, _dtype(c, -1 - i), arch, cores, cores)
        for arch, cores in ((2201, 1), (3510, 20), (2201, 24))
        for c in chosen
        for i, n in enumerate(_some(c))
    ]
    rungs["order and start"] = [
        Check("order and start", c.name, n, c.dtypes[0], arch, 2, seed, 1)
        for arch, seed in ((2201, 101), (3510, 102), (2201, 103))
        for c in chosen
        for n in _some(c)[:2]
    ]
    rungs["edges"] = [
        Check("edges", c.name, n, _dtype(c, i), arch)
        for c in chosen
        for i, n in enumerate(_edges(c))
        for arch in (ARCHS if n in LONG else ARCHS[i // 2 % 2 :][:1])
    ]
    rungs["other chip"] = [
        Check("other chip", c.name, n, c.dtypes[0], arch, 4, 7, 64, mmad, exact)
        for arch, mmad, exact in ((2201, Mmad.FP64, False), (3510, Mmad.PAIRWISE16, False), (2201, Mmad.FP64, True))
        for c in chosen
        for n in _some(c)[:2]
    ]
    return rungs


def _dtype(case: cases.Case, index: int) -> torch.dtype:
    return case.dtypes[index % len(case.dtypes)]


def _slow(case: cases.Case) -> bool:
    """Whether a case has as many queries as keys: its time grows with the square of the length."""
    return case.function.startswith("attention") and case.name != "attention_chunked"


def _lengths(case: cases.Case) -> tuple[int, ...]:
    if _slow(case):
        return 1, 65, 130, 520
    return LENGTHS


def _edges(case: cases.Case) -> tuple[int, ...]:
    if case.part == "logprob" and case.name not in ("logprob_merge", "logprob_tokens"):
        return *EDGES, *LONG
    return (2, 17, 127, 129, 511, 513, 1025) if _slow(case) else EDGES


def _some(case: cases.Case) -> tuple[int, ...]:
    if _slow(case):
        return 130, 520, 1025
    return (130, 1025, 8300) if case.part == "attention" else (130, 1025, 9000, 520, 60)


def expected(check: Check) -> list[Tensor]:
    """The CPU backend's results."""
    return case_of(check.case).on_cpu(_arguments(check))


def perform(check: Check, want: Sequence[Tensor], limit: int = 0) -> tuple[set[str], int]:
    """Run a check; which kernels it has launched, and the most instructions of a launch.

    Raises:
        CaughtError: it has found something.
        UnsupportedError: a kernel does not compile.
    """
    launcher = _Recorder(check, limit)
    got = _results(check, launcher)
    if check.exact and check.mmad is Mmad.ASCENDING:
        _compare(check, got, want, "bits")
    else:
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            if not _near(x, y):
                raise CaughtError("bound", f"{check.name}: result {i}")
        _compare(check, _results(dataclasses.replace(check, cores=1), _Recorder(check, limit, 1)), got, "cores")
    return launcher.launched, launcher.most


class _Recorder(TwinLauncher):
    """A launcher that remembers."""

    def __init__(self, check: Check, limit: int, cores: int | None = None) -> None:
        cores = cores or check.cores
        super().__init__(check.arch, cores, check.seed, check.mmad, check.exact, perturb=not check.exact)
        self.options = dataclasses.replace(
            self.options, switch_every=check.switch_every, instruction_limit=limit, perturb=not check.exact
        )
        self.launched: set[str] = set()
        self.most = 0

    def launch(self, kernel: str, *arguments: Any) -> None:
        super().launch(kernel, *arguments)
        self.launched.add(kernel)
        self.most = max(self.most, self.results[-1][1].instructions)


def _arguments(check: Check) -> tuple[Any, ...]:
    return case_of(check.case).arguments(check.length, check.dtype, check.length)


def _results(check: Check, launcher: TwinLauncher) -> list[Tensor]:
    try:
        return case_of(check.case).on_launcher(launcher, _arguments(check))
    except TwinError as error:
        raise CaughtError(error.check, f"{check.name}: {error}") from error
    except RunnerError as error:
        if "could not be compiled" in str(error):
            raise
        raise CaughtError("refused", f"{check.name}: {error}") from error


def _compare(check: Check, got: Sequence[Tensor], want: Sequence[Tensor], word: str) -> None:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        if not cases.same_bits(x, y):
            count = int((x != y).sum()) if x.shape == y.shape else -1
            raise CaughtError(word, f"{check.name}: result {i}, {count} of {x.numel()} differ")


def _near(got: Tensor, want: Tensor) -> bool:
    """The same special values, and the root mean square of the difference within 2^-6 (16-bit) or 2^-12 of that."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not got.is_floating_point():
        return bool((got == want).double().mean() > 0.9) if got.numel() else True
    x, y = got.double(), want.double()
    if not torch.equal(x.isfinite(), y.isfinite()):
        return False
    finite = x.isfinite()
    scale = y[finite].norm()
    bound = 2.0**-12 if got.dtype == torch.float32 else 2.0**-6
    return bool((x[finite] - y[finite]).norm() <= bound * scale)
