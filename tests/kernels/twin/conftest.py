"""One compiled source per test file; each source has many small kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from logdiff_kernels.twin import build
from logdiff_kernels.twin.library import Library

from tests.kernels.twin.instructions import Instructions
from tests.kernels.twin.kernels_of import Kernels

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Kernels]:
    """`compiled("core_kernels.cpp", 2201)`: the kernels of a source in this folder, built once."""
    made: dict[tuple[str, int], Kernels] = {}

    def get(source: str, arch: int) -> Kernels:
        if (source, arch) not in made:
            made[source, arch] = Kernels(Library(build.ensure_library(HERE / source, arch)), arch)
        return made[source, arch]

    return get


@pytest.fixture(scope="session", params=[2201, 3510])
def core(request: pytest.FixtureRequest, compiled: Callable[..., Kernels]) -> Kernels:
    """The kernels of core_kernels.cpp, on both architectures."""
    return compiled("core_kernels.cpp", request.param)


@pytest.fixture(scope="session", params=[2201, 3510])
def vector(request: pytest.FixtureRequest) -> Instructions:
    """The vector instructions of vector_kernels.cpp, on both architectures."""
    library = Library(build.ensure_library(HERE / "vector_kernels.cpp", request.param))
    return Instructions(library, request.param)
