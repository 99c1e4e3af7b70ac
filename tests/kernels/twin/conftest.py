"""One compiled source per test file; each source has many small kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from logdiff_kernels.twin import build
from logdiff_kernels.twin.library import Library

HERE = Path(__file__).parent


class Plan(ctypes.Structure):
    """The plan of the small kernels."""

    _fields_ = [
        ("variant", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Library]:
    """`compiled("core_kernels.cpp", 2201)`: the library of a source in this folder, built once."""
    made: dict[tuple[str, int], Library] = {}

    def get(source: str, arch: int) -> Library:
        if (source, arch) not in made:
            made[source, arch] = Library(build.ensure_library(HERE / source, arch))
        return made[source, arch]

    return get
