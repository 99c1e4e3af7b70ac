"""The two NPU architectures: bisheng's name, the number that kernels know as `__NPU_ARCH__`, and the chips of each."""

from __future__ import annotations

import re

from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.plan.plans import ARCHES

_CHIPS = (
    (re.compile(r"Ascend910B[1-9]|Ascend910_93"), 2201),
    (re.compile(r"Ascend950|Ascend910_95"), 3510),
)


def arch_number(arch: str | int) -> int:
    """2201 or 3510, of a name or a number. Raises `InputError` for any other."""
    number = ARCHES.get(arch, 0) if isinstance(arch, str) else arch
    if number not in ARCHES.values():
        raise InputError(f"no kernels for architecture {arch!r}", value=arch, hint=f"one of: {', '.join(ARCHES)}")
    return number


def arch_name(number: int) -> str:
    """`dav-2201` or `dav-3510`."""
    return next(name for name, known in ARCHES.items() if known == arch_number(number))


def arch_of_chip(chip: str) -> int:
    """The architecture of a chip as torch_npu names it, for example `Ascend910B2` or `Ascend910_9391`.

    Raises:
        UnsupportedError: a chip of another architecture.
    """
    for pattern, number in _CHIPS:
        if pattern.match(chip):
            return number
    raise UnsupportedError(
        f"no kernels for the chip {chip}", value=chip, hint="910B1 to 910B4 (A2), 910_93 (A3) and 950 are covered"
    )
