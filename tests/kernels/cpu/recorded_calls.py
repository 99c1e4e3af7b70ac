"""Calls of the C library with everything that they read and wrote, recorded while the operators run.

`python -m tests.kernels.cpu.recorded_calls FILE` runs every public operator, forward and backward, on small hard data
and writes each call of an `ld_` function to FILE, for `replay.cpp` to repeat with another build of the library.

A call is: name, integer arguments (plain, or a pointer as buffer and offset), float arguments, return value, and every
buffer with its dtype, its bytes before and after, and the pointers that lie inside it. Little endian throughout.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from logdiff_kernels.cpu import library

_INTEGERS = (ctypes.c_int32, ctypes.c_int64)
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_BYTES, _RECORD = 3, 4
_data_ptr = torch.Tensor.data_ptr
_addressof = ctypes.addressof
_function = library.function


def _pointers(kind: Any) -> Iterator[int]:
    """Places of the pointers in a ctypes type, those in nested records and arrays included."""
    if kind is ctypes.c_void_p:
        yield 0
    elif issubclass(kind, ctypes.Array):
        for i in range(kind._length_):
            yield from (i * ctypes.sizeof(kind._type_) + place for place in _pointers(kind._type_))
    elif issubclass(kind, ctypes.Structure):
        for name, field, *_ in kind._fields_:
            yield from (getattr(kind, name).offset + place for place in _pointers(field))


class Recorder:
    """Stands between the wrappers and the library: `start` before the wrappers' modules are imported."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.names: set[str] = set()
        self._storages: dict[int, tuple[int, int]] = {}  # begin -> bytes, dtype code; the latest owner of an address
        self._records: dict[int, ctypes.Structure] = {}

    def start(self) -> None:
        def data_ptr(tensor: torch.Tensor) -> int:
            storage = tensor.untyped_storage()
            # An address that a freed storage had belongs to the newest one that covers it.
            begin, size = storage.data_ptr(), storage.nbytes()
            for old, (length, _) in list(self._storages.items()):
                if old < begin + size and begin < old + length:
                    del self._storages[old]
            self._storages[begin] = (size, _DTYPES.get(tensor.dtype, _BYTES))
            return int(_data_ptr(tensor))

        def addressof(record: Any) -> int:
            address = _addressof(record)
            self._records[address] = record
            return address

        torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign]
        ctypes.addressof = addressof  # type: ignore[assignment]
        library.function = library.packed = self.function

    def function(
        self, name: str, argtypes: Sequence[Any], restype: Any = ctypes.c_int, isa: str | None = None
    ) -> Callable[..., Any]:
        found = _function(name, argtypes, restype, isa)

        def call(*arguments: Any) -> Any:
            return self._record(name, found, list(argtypes), arguments)

        return call

    def _locate(self, address: int) -> tuple[int, int]:
        """Begin of the buffer that holds the address, and the offset in it."""
        if address in self._records:
            return address, 0
        for begin, (size, _) in self._storages.items():
            if begin <= address < begin + size or begin == address:
                return begin, address - begin
        raise AssertionError(f"a kernel was given {address:#x}, which no tensor's data_ptr() returned")

    def _size(self, begin: int) -> tuple[int, int]:
        record = self._records.get(begin)
        return (ctypes.sizeof(record), _RECORD) if record is not None else self._storages[begin]

    def _record(self, name: str, found: Any, argtypes: list[Any], arguments: Sequence[Any]) -> Any:
        assert len(argtypes) == len(arguments), name
        buffers: dict[int, list[tuple[int, int, int]]] = {}  # begin -> (place of a pointer in it, begin, offset)

        def reach(address: int) -> tuple[int, int]:
            begin, offset = self._locate(address)
            if begin not in buffers:
                buffers[begin] = []
                record = self._records.get(begin)
                for place in _pointers(type(record)) if record is not None else ():
                    if value := ctypes.c_void_p.from_address(begin + place).value:
                        buffers[begin].append((place, *reach(value)))
            return begin, offset

        integers: list[tuple[int, int, int]] = []
        floats: list[float] = []
        for kind, value in zip(argtypes, arguments, strict=True):
            if kind is ctypes.c_float:
                floats.append(value)
            elif kind is ctypes.c_void_p and value:
                integers.append((1, *reach(value)))
            else:
                assert kind is ctypes.c_void_p or kind in _INTEGERS, (name, kind)
                integers.append((0, int(value or 0), 0))
        before = {begin: ctypes.string_at(begin, self._size(begin)[0]) for begin in buffers}
        result = found(*arguments)
        self.names.add(name)
        index = {begin: i for i, begin in enumerate(buffers)}
        put = self.file.write
        put(struct.pack("<I", len(name)) + name.encode())
        put(struct.pack("<I", len(integers)))
        for is_pointer, value, offset in integers:
            put(struct.pack("<Bqq", is_pointer, index[value] if is_pointer else value, offset))
        put(struct.pack("<I", len(floats)) + struct.pack(f"<{len(floats)}f", *floats))
        put(struct.pack("<iI", result, len(buffers)))
        for begin, pointers in buffers.items():
            size, code = self._size(begin)
            put(struct.pack("<BQ", code, size) + before[begin] + ctypes.string_at(begin, size))
            put(struct.pack("<I", len(pointers)))
            for place, target, offset in pointers:
                put(struct.pack("<QIq", place, index[target], offset))
        return result


def main(path: str) -> None:
    """Record every operator's calls to `path` and print the names of the functions called."""
    with Path(path).open("wb") as file:
        recorder = Recorder(file)
        recorder.start()
        from tests.kernels.cpu.operator_calls import run_every_operator

        run_every_operator()
    print("\n".join(sorted(recorder.names)))


if __name__ == "__main__":
    main(sys.argv[1])
