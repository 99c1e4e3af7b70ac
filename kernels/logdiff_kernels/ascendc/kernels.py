"""The table of all kernels, by name."""

from __future__ import annotations

import importlib
from functools import cache

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.errors import UnsupportedError

DRIVERS = ("norm", "linear", "rope", "activation", "logprob", "router", "embedding", "moe", "attention", "probes")
"""Modules of this package with a tuple `KERNELS`."""


@cache
def kernels() -> dict[str, Kernel]:
    """Every kernel, in the order of the driver modules."""
    found: dict[str, Kernel] = {}
    for driver in DRIVERS:
        module = importlib.import_module(f"{__package__}.{driver}")
        found.update((kernel.name, kernel) for kernel in module.KERNELS)
    return found


def kernel(name: str) -> Kernel:
    """One kernel. Raises `UnsupportedError` if there is none of that name."""
    try:
        return kernels()[name]
    except KeyError:
        raise UnsupportedError(
            f"no Ascend C kernel {name!r}", value=name, hint=f"one of: {', '.join(kernels())}"
        ) from None
