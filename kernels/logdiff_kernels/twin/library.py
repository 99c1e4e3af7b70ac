"""Loading a kernel's library and launching it in the twin."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.trace import CORE, EDGE, RECORD, Trace

FAILED = -100
"""Status of a launch that a check has ended."""


class Mmad(enum.IntEnum):
    """What is assumed about the order inside one Mmad, which is not documented."""

    ASCENDING = 0
    PAIRWISE16 = 1
    FP64 = 2


@dataclass(frozen=True, slots=True)
class Options:
    """How a launch runs.

    Attributes:
        cores: cube cores of the chip; each comes with two vector cores. More blocks than that run one after another.
        seed: of the order of blocks, the switches between cores and the modes that an earlier kernel left.
        mmad: order inside one Mmad.
        check_races: off for big runs only; the result then says so.
        trace: keep a record of each instruction.
        perturb: Exp and Ln off by up to one ulp, as another chip's may be.
        switch_every: mean number of instructions between random switches to another core; 0: only where cores wait.
        instruction_limit: ends a launch that has issued more than that, as a runaway loop would; 0: no limit.
    """

    cores: int = 24
    seed: int = 0
    mmad: Mmad = Mmad.ASCENDING
    check_races: bool = True
    trace: bool = False
    perturb: bool = False
    switch_every: int = 64
    instruction_limit: int = 0


@dataclass(frozen=True, slots=True)
class Argument:
    """A GM argument of a kernel.

    Attributes:
        tensor: contiguous, on the CPU.
        name: for messages.
        initialised: False: reading what the kernel has not written is an error (outputs, workspaces).
        writable: False: writing it is an error (inputs). Inputs are also checked faster.
    """

    tensor: Tensor
    name: str = ""
    initialised: bool = True
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """What a launch did: instructions issued, whether races were looked for, and the trace if one was wanted."""

    instructions: int
    races_checked: bool
    trace: Trace | None = None


class _Region(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("initialised", ctypes.c_uint32),
        ("read_only", ctypes.c_uint32),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("cores", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("mmad", ctypes.c_uint32),
        ("check_races", ctypes.c_uint32),
        ("trace", ctypes.c_uint32),
        ("perturb", ctypes.c_uint32),
        ("switch_every", ctypes.c_uint32),
        ("instruction_limit", ctypes.c_uint64),
        ("region_count", ctypes.c_uint32),
        ("regions", ctypes.POINTER(_Region)),
    ]


@dataclass(slots=True)
class Library:
    """A kernel's library, loaded.

    Args:
        path: as `build.ensure_library` gives it.

    Raises:
        UnsupportedError: it can't be loaded, or its twin is of another version than this module.
    """

    path: Path
    _handle: ctypes.CDLL = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self._handle = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise UnsupportedError(f"a twin library can't be loaded: {error}", value=str(self.path)) from error
        sizes = (ctypes.sizeof(_Launch), ctypes.sizeof(_Region), RECORD.itemsize)
        found = tuple(self._handle.twin_size(i) for i in range(3))
        if found != sizes:
            raise UnsupportedError("a twin library of another version", value=[found, sizes], hint="clear the cache")
        self._handle.twin_failure.restype = ctypes.c_char_p
        self._handle.twin_instructions.restype = ctypes.c_uint64
        self._handle.twin_trace_name.restype = ctypes.c_char_p
        self._handle.twin_trace_name.argtypes = [ctypes.c_uint64]

    def has(self, kernel: str) -> bool:
        """Whether the library has a launcher of that name."""
        return hasattr(self._handle, f"ld_launch_{kernel}")

    def launch(
        self,
        kernel: str,
        arguments: Sequence[Argument | Tensor | None],
        plan: ctypes.Structure,
        blocks: int,
        options: Options | None = None,
    ) -> Result:
        """Run one kernel to its end.

        Args:
            kernel: name in `ld_launch_<kernel>`.
            arguments: GM pointers in order; None is a null pointer.
            plan: passed by value.
            blocks: as on an NPU: vector cores of a vector kernel, cube cores of a cube kernel, groups of a mixed one.
            options: how it runs; None: `Options()`.

        Raises:
            TwinError: a check has fired; outputs are then incomplete.
            InputError: the launcher refused its arguments, or a tensor isn't contiguous on the CPU.
            UnsupportedError: no such launcher.
        """
        if not self.has(kernel):
            raise UnsupportedError(f"the library has no launcher of {kernel!r}", value=str(self.path))
        options = options or Options()
        given = [Argument(a, f"argument {i}") if isinstance(a, Tensor) else a for i, a in enumerate(arguments)]
        regions = _regions([a for a in given if a is not None])
        record = _Launch(
            ctypes.sizeof(_Launch), options.cores, options.seed, options.mmad, options.check_races, options.trace,
            options.perturb, options.switch_every, options.instruction_limit, len(regions), regions,
        )  # fmt: skip
        pointers = (ctypes.c_void_p * max(1, len(given)))(*(None if a is None else a.tensor.data_ptr() for a in given))
        entry = getattr(self._handle, f"ld_launch_{kernel}")
        status = int(
            entry(
                ctypes.c_uint32(blocks),
                ctypes.byref(record),
                pointers,
                len(given),
                ctypes.byref(plan),
                ctypes.sizeof(plan),
            )
        )
        if status == FAILED:
            raise self._error()
        if status != 0:
            words = {-1: "a dtype that it doesn't know", -2: "a shape that it doesn't take", -3: "its arguments"}
            raise InputError(f"{kernel} refused {words.get(status, 'the launch')}", value=status)
        trace = self._trace() if options.trace else None
        return Result(int(self._handle.twin_instructions()), options.check_races, trace)

    def _error(self) -> TwinError:
        words = [(self._handle.twin_failure(i) or b"").decode(errors="replace") for i in range(7)]
        check, kernel, core, pipe, op, operand, reason = words
        return TwinError(check, reason, kernel=kernel, core=core, pipe=pipe, op=op, operand=operand)

    def _trace(self) -> Trace:
        records = self._array("twin_trace_records", RECORD)
        names: list[str] = []
        while (name := self._handle.twin_trace_name(len(names))) is not None:
            names.append(name.decode())
        return Trace(
            records, self._array("twin_trace_edges", EDGE), self._array("twin_trace_cores", CORE), tuple(names)
        )

    def _array(self, name: str, dtype: np.dtype[np.void]) -> np.ndarray[Any, np.dtype[np.void]]:
        read = getattr(self._handle, name)
        read.restype = ctypes.c_void_p
        count = ctypes.c_uint64()
        address = read(ctypes.byref(count))
        if not count.value:
            return np.empty(0, dtype)
        return np.frombuffer(ctypes.string_at(address, count.value * dtype.itemsize), dtype)


def _regions(arguments: Sequence[Argument]) -> ctypes.Array[_Region]:
    """One region per allocation: tensors that share bytes are one, with the union of their rights."""
    spans: list[list[Any]] = []
    for argument in sorted(arguments, key=lambda a: a.tensor.data_ptr()):
        tensor = argument.tensor
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise InputError("the twin takes contiguous CPU tensors", value=argument.name, hint="call .contiguous()")
        begin, size = tensor.data_ptr(), tensor.nbytes
        if not size:
            continue
        if spans and begin < spans[-1][0] + spans[-1][1]:
            last = spans[-1]
            last[1] = max(last[1], begin + size - last[0])
            last[2] = f"{last[2]} and {argument.name}"
            last[3] = last[3] or argument.initialised
            last[4] = last[4] and not argument.writable
        else:
            spans.append([begin, size, argument.name, argument.initialised, not argument.writable])
    regions = (_Region * max(1, len(spans)))()
    for region, (begin, size, name, initialised, read_only) in zip(regions, spans, strict=False):
        region.address, region.bytes, region.name = begin, size, name.encode()
        region.initialised, region.read_only = initialised, read_only
    return regions
