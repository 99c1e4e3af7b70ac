"""`logdiff kernels selftest` of the Ascend C kernels: laws tried with a launcher, on a user's NPU or in the twin.

The report is plain JSON without paths or times, so that those of two hosts can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels import laws
from logdiff_kernels.ascendc import cases
from logdiff_kernels.build.arch import arch_name
from logdiff_kernels.build.launcher import Launcher

LENGTHS = (64, 577)
"""Of rows or sums: one chunk of R64, and nine with a short last one."""

SEED = 20


def run(launcher: Launcher, progress: laws.OnProgress | None = None) -> dict[str, Any]:
    """Try every check with `launcher`: `laws.report`, with `chip`, `exact_exp`, `binary` and `contract`."""
    from logdiff_kernels.contract import CONTRACT

    found = laws.report(launcher.provider, arch_name(launcher.arch), list(checks(launcher)), progress)
    facts = {"chip": launcher.chip, "exact_exp": launcher.exact_exp, "binary": launcher.binary_hash}
    return {**found, **facts, "contract": CONTRACT}


def checks(launcher: Launcher) -> Iterator[laws.Check]:
    """Everything that is tried with a launcher, kernel by kernel."""
    for case in cases.CASES:
        for dtype in case.dtypes:
            name = f"{case.name}/{str(dtype).removeprefix('torch.')}"
            for length in LENGTHS:
                yield laws.Check(name, f"run to run, length {length}", partial(_again, launcher, case, length, dtype))
                if launcher.device.type == "cpu" and launcher.exact_exp:
                    law = f"bits of the CPU library, length {length}"
                    yield laws.Check(name, law, partial(_as_cpu, launcher, case, length, dtype))


def _again(launcher: Launcher, case: cases.Case, length: int, dtype: torch.dtype) -> str:
    inputs = _moved(case.arguments(length, dtype, SEED), launcher.device)
    return _difference(case.on_launcher(launcher, inputs), case.on_launcher(launcher, inputs))


def _as_cpu(launcher: Launcher, case: cases.Case, length: int, dtype: torch.dtype) -> str:
    inputs = case.arguments(length, dtype, SEED)
    return _difference(case.on_launcher(launcher, inputs), case.on_cpu(inputs))


def _moved(arguments: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(x.to(device) if isinstance(x, Tensor) else x for x in arguments)


def _difference(found: list[Tensor], expected: list[Tensor]) -> str:
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        if not cases.same_bits(x.cpu(), y.cpu()):
            return f"result {i} differs"
    return ""
