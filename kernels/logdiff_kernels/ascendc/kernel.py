"""What is known of a kernel besides its source: the record that every driver module fills for its kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

ALL_DTYPES = ("float32", "bfloat16", "float16")
FP32 = ("float32",)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel.

    Attributes:
        name: of its source `csrc/<name>.asc` and its launcher `ld_launch_<name>`.
        what: what it computes, in a line.
        plan: the struct that it is passed.
        inputs: GM arguments that it reads, in order. A null pointer stands for one that isn't given.
        outputs: GM arguments behind these that it writes; their contents before don't matter.
        updated: names among `outputs` that it also reads, or writes in part.
        dtypes: of the tensor that `plan.dtype` describes.
        kind: `vector`, `cube` or `mix` (one cube and two vector cores per block).
    """

    name: str
    what: str
    plan: type[ctypes.Structure]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    updated: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ALL_DTYPES
    kind: str = "vector"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Names of all GM arguments, in the launcher's order."""
        return self.inputs + self.outputs
