"""What is mutated: the kernels' headers and what of the plans runs on the device; and in which order."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from logdiff_kernels import toolchain
from logdiff_kernels.twin import build as twin

from benchmarks.mutants.operators import OPERATORS
from benchmarks.mutants.text import Edit, blanked, closing, line_of

PACKAGE = twin.PACKAGE
KERNELS = Path("ascendc/csrc")
PLANS = Path("plan/csrc")
HOST = {KERNELS / "launch.h"}
"""Headers without device code."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault.

    Attributes:
        name: a hash of all of it, and of the file.
        file: in the package.
        operator: its name.
        edit: the rewriting.
        line: where it starts.
        before: what stood there.
    """

    name: str
    file: Path
    operator: str
    edit: Edit
    line: int
    before: str


def reaching() -> dict[Path, list[str]]:
    """Headers of the package that kernels reach, and which kernels do."""
    found: dict[Path, list[str]] = defaultdict(list)
    for source in sorted((PACKAGE / KERNELS).glob("*.asc")):
        for path in toolchain.reached(source, twin.INCLUDES):
            if path.suffix == ".h" and path.is_relative_to(PACKAGE):
                file = path.relative_to(PACKAGE)
                if file.parts[0] != "twin" and file not in HOST:
                    found[file].append(source.stem)
    return dict(found)


def mutants(file: Path, device: frozenset[str]) -> Iterator[Mutant]:
    """Every mutant of a header. `device`: names of plan functions that kernels call."""
    source = (PACKAGE / file).read_text(encoding="utf-8")
    code = blanked(source)
    places = _device_places(code, device) if file.is_relative_to(PLANS) else [(0, len(code))]
    digest, seen = hashlib.sha256(source.encode()).hexdigest(), set()
    for operator in OPERATORS.values():
        for edit in operator.find(code):
            if not any(start <= edit.start and edit.end <= end for start, end in places):
                continue
            words = "\0".join((str(file), digest, operator.name, str(edit)))
            result = edit.applied(source)
            if result != source and result not in seen:
                seen.add(result)
                name = hashlib.sha256(words.encode()).hexdigest()[:12]
                before = source[edit.start : edit.end]
                yield Mutant(name, file, operator.name, edit, line_of(source, edit.start), before)


def device_functions() -> frozenset[str]:
    """Plan functions that the kernels' headers call, directly or through another one."""
    texts = [blanked(path.read_text(encoding="utf-8")) for path in (PACKAGE / KERNELS).rglob("*.h")]
    called = {name for text in texts for name in re.findall(r"\bplan::(\w+)", text)}
    plans = "\n".join(blanked(path.read_text(encoding="utf-8")) for path in (PACKAGE / PLANS).glob("*.h"))
    bodies = {match: plans[start:end] for match, start, end in _functions(plans)}
    while True:
        more = {name for known in called if known in bodies for name in re.findall(r"\b\w+\b", bodies[known])}
        more = (more & bodies.keys()) - called
        if not more:
            return frozenset(called & bodies.keys())
        called |= more


def users(mutant: Mutant, kernels: list[str]) -> list[str]:
    """The kernels, those first whose other headers name the mutated function; each part in an order of chance."""
    kernels = random.Random(mutant.name).sample(kernels, len(kernels))
    code = blanked((PACKAGE / mutant.file).read_text(encoding="utf-8"))[: mutant.edit.end]
    names = re.findall(r"\bLD_(?:PLAN_)?FN\b[^;{}]*?\b(\w+)\(", code)
    if not names:
        return kernels
    return sorted(kernels, key=lambda kernel: names[-1] not in _words_beside(kernel, mutant.file))


@cache
def _words_beside(kernel: str, file: Path) -> frozenset[str]:
    paths = toolchain.reached(PACKAGE / KERNELS / f"{kernel}.asc", twin.INCLUDES)
    texts = (
        path.read_text(encoding="utf-8")
        for path in paths
        if path != PACKAGE / file and PACKAGE / "twin" not in path.parents
    )
    return frozenset(word for text in texts for word in re.findall(r"\w+", blanked(text)))


def in_order(pool: list[Mutant], seed: int) -> list[Mutant]:
    """All of them, stratified: operators take turns, each time with the file that has had the smallest share so far."""
    rng = random.Random(seed)
    cells: dict[str, dict[Path, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in sorted(pool, key=lambda m: m.name):
        cells[mutant.operator][mutant.file].append(mutant)
    for files in cells.values():
        for cell in files.values():
            rng.shuffle(cell)
    weight = {file: count**0.5 for file, count in Counter(mutant.file for mutant in pool).items()}
    taken: Counter[Path] = Counter()
    found: list[Mutant] = []
    while cells:
        for operator in rng.sample(sorted(cells), len(cells)):
            files = cells[operator]
            file = min(sorted(files), key=lambda f: taken[f] / weight[f])
            found.append(files[file].pop())
            taken[file] += 1
            if not files[file]:
                del files[file]
            if not files:
                del cells[operator]
    return found


def _functions(code: str) -> Iterator[tuple[str, int, int]]:
    for match in re.finditer(r"LD_PLAN_FN constexpr [\w:]+ (\w+)\(", code):
        opening = code.find("{", closing(code, match.end() - 1))
        yield match.group(1), match.start(), closing(code, opening) + 1


def _device_places(code: str, device: frozenset[str]) -> list[tuple[int, int]]:
    constants = [match.span() for match in re.finditer(r"(?m)^constexpr uint32_t [^;]+;", code)]
    return [(start, end) for name, start, end in _functions(code) if name in device] + constants
