"""DataCopy and DataCopyPad between GM and UB against copies byte by byte, and what their overloads refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.twin import build
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Argument, Library, Options, Result
from logdiff_kernels.twin.trace import EVENTS, PIPES

from tests.kernels.twin.instructions import BLOCK, TYPES, Array, Plan, narrow, scalar_bits, size_of, storage, widen

OPERATIONS = ("In", "InBlocks", "Out", "OutBlocks", "Within", "WithinBlocks", "PadIn", "PadOut")
DTYPES = ("int8", "int16", "float16", "bfloat16", "int32", "float32")
ARENA, OTHER = 16 * 1024, 24 * 1024
SETTLED = 0xEE


@dataclass(frozen=True)
class Copy:
    """A copy: offsets in bytes, of the arena in UB or of the tensor in GM.

    `count` elements; or `blocks` of `length` with gaps behind each of them: for DataCopyParams all in units of 32
    bytes, for DataCopyExtParams bytes but for the gap in UB. `left` and `right` are elements.
    """

    op: str
    dtype: str = "float32"
    dst: int = 0
    src: int = 0
    count: int = 0
    blocks: int = 1
    length: int = 0
    src_gap: int = 0
    dst_gap: int = 0
    left: int = 0
    right: int = 0
    pad: bool = False
    value: float = 0.0
    atomic: str = ""
    times: int = 1
    settle: bool = False
    hole: int = 0

    @property
    def size(self) -> int:
        return size_of(self.dtype)

    def plan(self) -> Plan:
        plan = Plan(OPERATIONS.index(self.op), TYPES.index(self.dtype), bytes=ARENA, dst=self.dst, src0=self.src)
        plan.form = TYPES.index(self.atomic) + 1 if self.atomic else 0
        plan.count, plan.repeats, plan.mode, plan.hole = self.count, self.times, int(self.pad), self.hole
        plan.extra = self.size if self.settle else 0
        plan.strides[:4] = [self.blocks, self.length, self.src_gap & 2**32 - 1, self.dst_gap & 2**32 - 1]
        plan.mask[:] = [self.left, self.right]
        plan.scalar = scalar_bits(self.value, self.dtype)
        return plan

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Destination, source and length of each block, in bytes."""
        if not self.op.startswith("Pad") and not self.op.endswith("Blocks"):
            yield self.dst, self.src, self.count * self.size
        elif self.op.startswith("Pad"):
            in_ub = -(-(self.left * self.size + self.length + self.right * self.size) // BLOCK) * BLOCK
            row = {True: in_ub, False: self.length}
            to_ub = self.op == "PadIn"
            unit = {True: BLOCK, False: 1}
            for i in range(self.blocks):
                dst = self.dst + i * (row[to_ub] + self.dst_gap * unit[to_ub])
                src = self.src + i * (row[not to_ub] + self.src_gap * unit[not to_ub])
                yield dst + self.left * self.size, src, self.length
        else:
            for i in range(self.blocks):
                steps = [(self.length + gap) * BLOCK for gap in (self.dst_gap, self.src_gap)]
                yield self.dst + i * steps[0], self.src + i * steps[1], self.length * BLOCK

    def expected(self, arena: Array, other: Array) -> tuple[Array, Array]:
        """Arena and tensor after the copy."""
        arena, other = arena.copy(), other.copy()
        into, out = self.op.endswith("In") or self.op == "InBlocks", "Out" in self.op
        target, source = other if out else arena, (other if into else arena).copy()
        for dst, src, length in self.runs():
            if self.op == "PadIn" and (self.left or self.right or length % BLOCK):
                begin = dst - self.left * self.size
                end = begin + -(-(self.left * self.size + length + self.right * self.size) // BLOCK) * BLOCK
                fill = scalar_bits(self.value, self.dtype).to_bytes(self.size, "little")
                filled = self.pad and (self.left or self.right)
                target[begin:end] = np.resize(np.frombuffer(fill, np.uint8), end - begin) if filled else SETTLED
            for _ in range(self.times if self.atomic else 1):
                given = source[src : src + length]
                if self.atomic:
                    given = _sum(target[dst : dst + length], given, self.dtype)
                target[dst : dst + length] = given
        return arena, other


def _sum(a: Array, b: Array, dtype: str) -> Array:
    x, y = (widen(values.view(storage(dtype)), dtype) for values in (a, b))
    with np.errstate(all="ignore"):
        total = x + y
    return narrow(total, dtype).view(np.uint8) if total.dtype == np.float32 else total.view(np.uint8)


@dataclass(frozen=True)
class Copies:
    library: Library
    arch: int

    def launch(self, arena: Array, other: Any, copy: Copy, **options: Any) -> tuple[Array, Array, Result]:
        """Arena and tensor after the copy."""
        after, changed = torch.zeros(ARENA, dtype=torch.uint8), torch.from_numpy(np.array(other))
        arguments = [
            Argument(torch.from_numpy(arena), "before", writable=False),
            Argument(after, "after"),
            Argument(changed, "other", writable="Out" in copy.op),
        ]
        result = self.library.launch("copy_instruction", arguments, copy.plan(), 1, Options(**options))
        return after.numpy(), changed.numpy(), result

    def error(self, copy: Copy, arena: Array | None = None, other: Array | None = None) -> TwinError:
        with pytest.raises(TwinError) as caught:
            self.launch(
                np.ones(ARENA, np.uint8) if arena is None else arena,
                np.ones(OTHER, np.uint8) if other is None else other,
                copy,
            )
        return caught.value

    def holds(self, copy: Copy, seed: int) -> None:
        rng = np.random.default_rng(seed)
        arena, other = (rng.integers(0, 256, size, np.uint8) for size in (ARENA, OTHER))
        found = self.launch(arena, other, copy)[:2]
        for actual, wanted, name in zip(found, copy.expected(arena, other), ("UB", "GM"), strict=True):
            assert np.array_equal(actual, wanted), (name, copy, np.flatnonzero(actual != wanted)[:8])


@pytest.fixture(scope="module", params=[2201, 3510])
def copies(request: pytest.FixtureRequest) -> Copies:
    source = Path(__file__).parent / "copy_kernels.cpp"
    return Copies(Library(build.ensure_library(source, request.param)), request.param)


@pytest.mark.parametrize("op", ["In", "Out", "Within"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_count_of_elements(copies: Copies, op: str, dtype: str) -> None:
    size = size_of(dtype)
    for count in (1, 2, 5, 37):
        copies.holds(Copy(op, dtype, dst=96, src=8 * 1024 + 32, count=count * BLOCK // size), count)
    # GM is aligned to elements alone
    gm = {"src": 5 * size} if op == "In" else {"dst": 5 * size} if op == "Out" else {}
    copies.holds(Copy(op, dtype, **{"dst": 64, "src": 8 * 1024, "count": 4 * BLOCK // size, **gm}), 9)


@pytest.mark.parametrize("op", ["InBlocks", "OutBlocks", "WithinBlocks"])
def test_blocks_with_gaps(copies: Copies, op: str) -> None:
    rng = np.random.default_rng(len(op))
    for case in range(25):
        blocks, length = int(rng.integers(1, 9)), int(rng.integers(1, 9))
        gaps = [int(gap) for gap in rng.integers(0, 12, 2)]
        dtype = DTYPES[case % len(DTYPES)]
        src, dst = 8 * 1024 - 32 * case, 32 * case
        copies.holds(Copy(op, dtype, dst, src, blocks=blocks, length=length, src_gap=gaps[0], dst_gap=gaps[1]), case)


@pytest.mark.parametrize("op", ["PadIn", "PadOut"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_any_length_with_gaps_in_bytes_in_gm_and_data_blocks_in_ub(
    copies: Copies, op: str, dtype: str
) -> None:
    rng = np.random.default_rng([len(op), size_of(dtype)])
    size = size_of(dtype)
    for case in range(12):
        blocks, length = int(rng.integers(1, 9)), int(rng.integers(1, 130)) * size
        gm_gap, ub_gap = int(rng.integers(0, 90)) * size, int(rng.integers(0, 5))
        gm, ub = int(rng.integers(0, 40)) * size, 32 * case
        to_ub = op == "PadIn"
        copies.holds(
            Copy(
                op,
                dtype,
                dst=ub if to_ub else gm,
                src=gm if to_ub else ub,
                blocks=blocks,
                length=length,
                src_gap=gm_gap if to_ub else ub_gap,
                dst_gap=ub_gap if to_ub else gm_gap,
                settle=to_ub,
            ),
            case,
        )


def test_gaps_in_gm_of_no_whole_element(copies: Copies) -> None:
    """The lengths of blocks are elements; where a block starts is a matter of bytes."""
    copies.holds(Copy("PadIn", "int8", dst=64, src=3, blocks=5, length=33, src_gap=7, dst_gap=1, settle=True), 1)
    copies.holds(Copy("PadOut", "int8", dst=5, src=32, blocks=5, length=31, src_gap=2, dst_gap=9), 2)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_is_the_value_on_both_sides_up_to_a_data_block(copies: Copies, dtype: str, pad: bool) -> None:
    rng = np.random.default_rng([size_of(dtype), pad])
    most = BLOCK // size_of(dtype)
    for case in range(10):
        left, right = (0, most) if case == 0 else (most, 0) if case == 1 else map(int, rng.integers(0, most + 1, 2))
        copies.holds(
            Copy(
                "PadIn",
                dtype,
                dst=32 * case,
                src=4 * size_of(dtype),
                blocks=int(rng.integers(1, 6)),
                length=int(rng.integers(1, 80)) * size_of(dtype),
                src_gap=int(rng.integers(0, 60)),
                dst_gap=int(rng.integers(0, 4)),
                left=left,
                right=right,
                pad=pad,
                value=-3.0,
                settle=not (pad and (left or right)),
            ),
            case,
        )


@pytest.mark.parametrize("pad", [False, True])
def test_what_surrounds_a_block_without_padding_may_not_be_read(copies: Copies, pad: bool) -> None:
    error = copies.error(Copy("PadIn", dst=64, length=20, pad=pad))
    assert (error.check, error.op) == ("poison", "DataCopy")
    copies.holds(Copy("PadIn", dst=64, length=64, pad=pad), 1)  # whole data blocks leave nothing


@pytest.mark.parametrize(("left", "right"), [(1, 0), (0, 1), (3, 2)])
def test_padding_without_a_value_may_not_be_read(copies: Copies, left: int, right: int) -> None:
    """The data fill the rest of the block."""
    assert copies.error(Copy("PadIn", dst=64, length=32 - 4 * (left + right), left=left, right=right)).check == "poison"


def test_a_gm_gap_may_be_negative_on_950(copies: Copies) -> None:
    copy = Copy("PadIn", "float32", dst=0, src=400, blocks=4, length=64, src_gap=-32)  # every block but half new
    if copies.arch == 3510:
        copies.holds(copy, 1)
        copies.holds(Copy("PadIn", dst=0, src=400, blocks=4, length=64, src_gap=-64), 2)  # the same block again
        for wrong in (
            Copy("PadIn", src=400, blocks=2, length=64, src_gap=-96),
            Copy("PadOut", dst=400, blocks=2, length=64, dst_gap=-32),
            Copy("PadOut", dst=400, blocks=2, length=64, src_gap=-1),
        ):
            assert copies.error(wrong).check == "stride", wrong
    else:
        assert copies.error(copy).check == "range"  # a field without sign


@pytest.mark.parametrize("op", ["Out", "PadOut"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_atomic_addition_rounds_to_the_type_each_time(copies: Copies, op: str, dtype: str) -> None:
    rng = np.random.default_rng(size_of(dtype))
    arena, other = (rng.integers(0, 256, size, np.uint8) for size in (ARENA, OTHER))
    if dtype.startswith(("float", "bfloat")):
        arena, other = (
            np.ascontiguousarray(narrow(rng.standard_normal(n // size_of(dtype)).astype(np.float32), dtype)).view(
                np.uint8
            )
            for n in (ARENA, OTHER)
        )
    size = size_of(dtype)
    copy = Copy(op, dtype, dst=3 * size, src=64, count=64 * 32 // size, length=37 * size, atomic=dtype, times=3)
    found, wanted = copies.launch(arena, other, copy), copy.expected(arena, other)
    assert np.array_equal(found[1], wanted[1])
    assert not np.array_equal(wanted[1], other)


def test_an_atomic_mode_of_another_type_is_an_error(copies: Copies) -> None:
    error = copies.error(Copy("Out", "float16", count=64, atomic="float32"))
    assert (error.check, error.operand) == ("state", "dst")


@pytest.mark.parametrize(
    ("copy", "pipe"),
    [
        (Copy("In", count=16), "MTE2"),
        (Copy("Out", count=16), "MTE3"),
        (Copy("Within", src=512, count=16), "V"),
        (Copy("PadIn", length=64), "MTE2"),
        (Copy("PadOut", length=64), "MTE3"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.op,
)
def test_each_direction_has_its_pipe(copies: Copies, copy: Copy, pipe: str) -> None:
    _, _, result = copies.launch(np.ones(ARENA, np.uint8), np.ones(OTHER, np.uint8), copy, trace=True)
    assert result.trace is not None
    records = result.trace.records
    ops = records[records["event"] == EVENTS.index("op")]
    assert [PIPES[number] for number in ops["pipe"]] == ["MTE2", pipe, "MTE3"]  # the arena comes and goes


NOTHING = (
    Copy("In", count=0),
    Copy("InBlocks", blocks=0, length=4),
    Copy("OutBlocks", blocks=4, length=0),
    Copy("PadIn", blocks=0, length=4),
    Copy("PadOut", blocks=4, length=0),
)


@pytest.mark.parametrize("copy", NOTHING, ids=lambda x: f"{x.op}{x.blocks}")
def test_a_copy_of_nothing_does_nothing(copies: Copies, copy: Copy) -> None:
    rng = np.random.default_rng(1)
    arena, other = (rng.integers(0, 256, size, np.uint8) for size in (ARENA, OTHER))
    found = copies.launch(arena, other, copy)
    assert np.array_equal(found[0], arena)
    assert np.array_equal(found[1], other)


REFUSED: dict[str, tuple[Copy, str]] = {
    "a rest of less than 32 bytes": (Copy("In", count=9), "alignment: 36 bytes"),
    "a rest on the way out": (Copy("Out", "int8", count=33), "alignment: 33 bytes"),
    "UB start between data blocks": (Copy("In", dst=16, count=8), "alignment: UB address 16"),
    "UB source between data blocks": (Copy("PadOut", src=4, length=8), "alignment: UB address 4"),
    "UB to UB between data blocks": (Copy("Within", dst=8, src=512, count=8), "alignment: UB address 8"),
    "a block of half an element": (Copy("PadIn", length=6), "alignment: blockLen 6"),
    "4096 blocks": (Copy("InBlocks", blocks=4096, length=0), "repeat: blockCount 4096"),
    "4096 padded blocks": (Copy("PadOut", blocks=4096, length=0), "repeat: blockCount 4096"),
    "65536 blocks": (Copy("InBlocks", blocks=65536, length=1), "repeat: 65536 does not fit"),
    "a gap of 65536": (Copy("InBlocks", length=1, src_gap=65536), "stride: 65536 does not fit"),
    "a length of 65536 data blocks": (Copy("InBlocks", length=65536), "stride: 65536 does not fit"),
    "a block of 2 MiB": (Copy("PadIn", length=2097152), "range: blockLen 2097152"),
    "left padding above 32 bytes": (Copy("PadIn", "float16", length=4, left=17), "range: padding of 17 and 0"),
    "right padding above 32 bytes": (Copy("PadIn", length=4, right=9), "range: padding of 0 and 9"),
    "beyond the tensor in UB": (Copy("In", dst=ARENA - 32, count=16), "range: UB tensor"),
    "beyond the argument in GM": (Copy("In", src=OTHER - 32, count=16), "range: GM tensor"),
    "a gap that leads out of GM": (Copy("PadIn", blocks=3, length=32, src_gap=OTHER // 2), "range: GM tensor"),
    "bytes that nothing has written": (Copy("Out", src=ARENA - 64, count=8, hole=64), "poison: nothing has written"),
    "onto itself": (Copy("Within", dst=32, src=0, count=16), "overlap: overlaps src"),
    "blocks onto themselves": (Copy("WithinBlocks", dst=64, blocks=2, length=1, src_gap=2), "overlap: overlaps src"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_copy_refuses(copies: Copies, case: str) -> None:
    copy, fault = REFUSED[case]
    check, _, words = fault.partition(": ")
    error = copies.error(copy)
    assert error.check == check
    assert words in error.reason


@pytest.mark.parametrize("op", ["In", "Out", "PadOut"])
def test_gm_has_the_alignment_of_its_elements(copies: Copies, op: str) -> None:
    """An address of GM that is no element's."""
    whole = torch.ones(OTHER, dtype=torch.uint8)
    copy = Copy(op, "float32", count=8, length=32)
    arguments = [
        Argument(torch.ones(ARENA, dtype=torch.uint8), "before", writable=False),
        Argument(torch.zeros(ARENA, dtype=torch.uint8), "after"),
        Argument(whole[2:-2], "other"),
    ]

    def launch() -> None:
        copies.library.launch("copy_instruction", arguments, copy.plan(), 1, Options())

    if op == "PadOut":
        launch()  # bytes
        return
    with pytest.raises(TwinError) as caught:
        launch()
    assert caught.value.check == "alignment"


def test_an_input_is_not_written(copies: Copies) -> None:
    arena = np.ones(ARENA, np.uint8)
    arguments = [
        Argument(torch.from_numpy(arena), "before", writable=False),
        Argument(torch.zeros(ARENA, dtype=torch.uint8), "after"),
        Argument(torch.ones(OTHER, dtype=torch.uint8), "weights", writable=False),
    ]
    with pytest.raises(TwinError, match="weights") as caught:
        copies.library.launch("copy_instruction", arguments, Copy("Out", count=8).plan(), 1, Options())
    assert caught.value.check == "range"
