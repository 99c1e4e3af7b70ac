"""Running the small kernels that small_kernels.h and the sources in this folder define."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Argument, Library, Options, Result
from torch import Tensor


class Plan(ctypes.Structure):
    """The plan of the small kernels, as small_kernels.h has it."""

    _fields_ = [
        ("variant", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Kernels:
    """The small kernels of one source, built for one architecture."""

    library: Library
    arch: int

    def run(
        self,
        kernel: str,
        variant: int,
        arguments: Sequence[Argument | Tensor | None],
        *,
        count: int = 1,
        blocks: int = 1,
        options: Options | None = None,
    ) -> Result:
        return self.library.launch(kernel, arguments, Plan(variant, count), blocks, options)

    def failure(
        self,
        kernel: str,
        variant: int,
        arguments: Sequence[Argument | Tensor | None],
        *,
        count: int = 1,
        blocks: int = 1,
        options: Options | None = None,
    ) -> TwinError:
        with pytest.raises(TwinError) as caught:
            self.run(kernel, variant, arguments, count=count, blocks=blocks, options=options)
        return caught.value
