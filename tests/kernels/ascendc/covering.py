"""The covering design of the Ascend C kernels: case, law, architecture, cores, Mmad model, length, dtype.

Cases and kernels come from `ascendc.cases` and `ascendc.kernels`; a new one has its rows here by being there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from logdiff_kernels.ascendc import cases, probes
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.twin.build import ARCHS
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

from tests.kernels.ascendc import pairwise

LAWS = {
    "bits": "the bits of the CPU backend",
    "bounds": "within the fp64 bound of length and dtype",
    "cores": "equal bits on another number of cores, blocks in another order",
    "rows": "equal bits for a row in another place, beside rows of NaN",
    "again": "equal bits from other left-over modes, beside a workspace of NaN",
    "turns": "equal bits, and no race, when cores take turns after every instruction",
}
"""Every run of every law also fails on what the twin reports: races, reads of nothing, ranges, flags, deadlocks."""

CORES = (1, 20, 24, 40)

EDGE = "edge"
LENGTHS = {
    "one": (1,),
    "tail": (2, 17, 33),
    "lanes": (63, 64, 65),
    "tile": (127, 128, 129),
    "step": (511, 512, 513),
    EDGE: (4095, 4096, 4097),
}
"""Classes of the reduced or key dimension, which a case calls its length; rows of a class take its lengths in turn."""

CASES = {case.name: case for case in cases.CASES}

KERNELS = tuple(name for name in kernels() if name not in {probe.name for probe in probes.KERNELS})
"""Those of operators; the self-test's probes of single instructions are tested with the self-test."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "case": tuple(CASES),
    "law": tuple(LAWS),
    "arch": ARCHS,
    "cores": CORES,
    "mmad": tuple(Mmad),
    "length": tuple(LENGTHS),
    "dtype": cases.DTYPES,
}


@dataclass(frozen=True)
class Row:
    """One row. `n` is the length out of its class."""

    case: str
    law: str
    arch: int
    cores: int
    mmad: Mmad
    length: str
    dtype: torch.dtype
    n: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.case}-{self.law}-{self.arch}-{self.cores}-{self.mmad.name.lower()}-{self.n}-{dtype}"


def uses_mmad(case: cases.Case) -> bool:
    """Whether one of the case's kernels has a cube part."""
    return any(kernels()[name].kind != "vector" for name in case.kernels)


def _has_dtype(case: str, dtype: torch.dtype) -> bool:
    return dtype in CASES[case].dtypes


def _has_bounds(case: str, law: str) -> bool:
    return law != "bounds" or uses_mmad(CASES[case])


def _has_bits(case: str, law: str, mmad: Mmad) -> bool:
    return law != "bits" or mmad == Mmad.ASCENDING or not uses_mmad(CASES[case])


RULES = (
    (("case", "dtype"), _has_dtype, "a case has its own dtypes"),
    (("case", "law"), _has_bounds, "without Mmad the bits of the CPU are due, and no bound is needed"),
    (("case", "law", "mmad"), _has_bits, "with Mmad the bits of the CPU are due in ascending order only"),
)
"""What no row may break: factors, whether their values go together, and why not."""


def allowed(row: Mapping[str, Any]) -> bool:
    """Whether a row, or a part of one, breaks no rule."""
    return all(rule(*(row[name] for name in names)) for names, rule, _ in RULES if all(name in row for name in names))


@cache
def _size(case: str) -> int:
    """Elements of a case's inputs at a length of 16."""
    made = CASES[case].arguments(16, CASES[case].dtypes[0], 0)
    return sum(x.numel() for x in made if isinstance(x, Tensor))


OTHER_EDGE = {"rms_norm_backward": "rms_norm_backward", "logprob_merge": "logprob_merge"}
"""Cases for kernels whose smallest case has its length in a dimension that they don't reduce, or share out."""


def edge_case(kernel: str) -> cases.Case:
    """The case that takes a kernel to the edge: of those that launch it the one with the smallest inputs."""
    if kernel in OTHER_EDGE:
        return CASES[OTHER_EDGE[kernel]]
    return min((case for case in cases.CASES if kernel in case.kernels), key=lambda case: _size(case.name))


@cache
def edge_rows() -> tuple[Row, ...]:
    """Every kernel at 4095, 4096 and 4097, architecture and cores in turn: what the default suite runs.

    One of the three runs on many cores, where chunks are taken apart and `attention_combine` has work.
    """
    cores = {4095: (1, 20), 4096: (24, 1), 4097: (40, 20)}
    found = []
    for i, kernel in enumerate(KERNELS):
        case = edge_case(kernel)
        for j, n in enumerate(LENGTHS[EDGE]):
            dtype = case.dtypes[(i + j) % len(case.dtypes)]
            found.append(
                Row(case.name, "bits", ARCHS[(i + j) % 2], cores[n][i // 2 % 2], Mmad.ASCENDING, EDGE, dtype, n)
            )
    return tuple(dict.fromkeys(found))


@cache
def design() -> tuple[Row, ...]:
    """The pairwise design: `edge_rows`, then what they lack."""
    begun = edge_rows()
    rows = pairwise.design(FACTORS, allowed, [{name: getattr(row, name) for name in FACTORS} for row in begun])
    turns: Counter[str] = Counter()
    found = list(begun)
    for values in rows[len(begun) :]:
        length = str(values["length"])
        found.append(Row(**values, n=LENGTHS[length][turns[length] % len(LENGTHS[length])]))  # type: ignore[arg-type]
        turns[length] += 1
    return tuple(found)


@cache
def quadratic(case: str) -> bool:
    """Whether work grows with the square of the length: attention with as many queries as keys."""
    q = {"attention": 0, "attention_backward": 1}.get(CASES[case].function)
    if q is None:
        return False
    made = CASES[case].arguments(16, CASES[case].dtypes[0], 0)
    return len(made[q]) == len(made[q + 1])


def full(case: cases.Case, arch: int, mmad: Mmad) -> Iterator[Row]:
    """The product of everything else for a case, an architecture and a Mmad model, laws innermost.

    The lengths of a class and the dtypes of a case take turns over architectures, Mmad models and classes; so do the
    numbers of cores at the edge where work is quadratic.
    """
    turn = ARCHS.index(arch) * len(Mmad) + int(mmad)
    for i, (length, values) in enumerate(LENGTHS.items()):
        n, dtype = values[(turn + i) % len(values)], case.dtypes[(turn // len(values) + turn + i) % len(case.dtypes)]
        one = length == EDGE and quadratic(case.name)
        for cores, law in product(CORES[turn % len(CORES) :][:1] if one else CORES, LAWS):
            if allowed({"case": case.name, "law": law, "mmad": mmad}):
                yield Row(case.name, law, arch, cores, mmad, length, dtype, n)
