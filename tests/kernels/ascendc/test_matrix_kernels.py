"""Matrix kernels in the twin: the bits of the CPU backend, for every form of operand and any number of cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from logdiff_kernels.ascendc import cases, linear
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.contract import STEP
from logdiff_kernels.contract.linear import row_leaves
from logdiff_kernels.cpu import linear as cpu
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan import plans
from logdiff_kernels.twin.library import Mmad

ARCHS = (2201, 3510)
CASES = [case for case in cases.CASES if case.part == "linear"]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def _floats(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return cases.Source(seed).floats(*shape, dtype=dtype)


def _equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert cases.same_bits(got, want), f"{int((got != want).sum())} of {got.numel()} differ"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_the_bits_of_the_cpu(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=3, seed=7)
    for length, dtype in zip((1, 77, 513), (*case.dtypes, *case.dtypes, *case.dtypes), strict=False):
        got = case.on_launcher(launcher, case.arguments(length, dtype, length))
        for result, want in zip(got, case.on_cpu(case.arguments(length, dtype, length)), strict=True):
            _equal(result, want)


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_in_every_dtype_around_the_tiles_edges(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=5)
    for length in (
        2,
        15,
        16,
        17,
        63,
        64,
        65,
        127,
        128,
        129,
        255,
        256,
        257,
        511,
        512,
        1023,
        1024,
        1025,
        4095,
        4096,
        4097,
    ):
        for dtype in case.dtypes:
            got = case.on_launcher(launcher, case.arguments(length, dtype, length))
            for result, want in zip(got, case.on_cpu(case.arguments(length, dtype, length)), strict=True):
                _equal(result, want)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 127, 128), (128, 128, 256), (129, 257, 385)])
@pytest.mark.parametrize("arch", ARCHS)
def test_tiles_of_any_shape(m: int, n: int, k: int, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=2)
    a, b = _floats(m, k), _floats(n, k, seed=1)
    _equal(linear.matmul(launcher, a, b, None, BF16), cpu.matmul(a, b, None, BF16))
    _equal(linear.matmul(launcher, a, b, b[:, 0], FP16), cpu.matmul(a, b, b[:, 0], FP16))


def _forms(dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    a, b = _floats(150, 300, dtype=dtype), _floats(140, 300, dtype=dtype, seed=1)
    wide = _floats(3, 70000, dtype=dtype)
    return {
        "rows": (a, b),
        "left transposed": (a.t().contiguous().t(), b),
        "right transposed": (a, b.t().contiguous().t()),
        "both transposed": (a.t().contiguous().t(), b.t().contiguous().t()),
        "slices": (_floats(300, 700, dtype=dtype)[::2, 33:333], b),
        "no unit stride": (_floats(150, 600, dtype=dtype)[:, ::2], b),
        "rows further apart than Nd2Nz can step": (wide[:, 5:305], b),
        "one row, repeated": (a[:1].expand(20, 300), b),
        "k of 1": (a[:, 7:8], b[:, 9:10]),
        "one row": (a[:1], b[:1]),
    }


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_operands_of_any_strides(arch: int, dtype: torch.dtype) -> None:
    launcher = TwinLauncher(arch, cores=4)
    for name, (a, b) in _forms(dtype).items():
        got = linear.matmul(launcher, a, b, None, dtype)
        assert cases.same_bits(got, cpu.matmul(a, b, None, dtype)), name


def test_operands_of_two_dtypes() -> None:
    launcher = TwinLauncher(cores=2)
    for left, right in ((BF16, FP16), (FP32, BF16)):
        a, b = _floats(20, 70, dtype=left), _floats(30, 70, dtype=right, seed=1)
        _equal(linear.matmul(launcher, a, b, None, FP32), cpu.matmul(a, b, None, FP32))


@pytest.mark.parametrize("arch", ARCHS)
def test_cores_and_order_of_blocks_do_not_change_bits(arch: int) -> None:
    a, b, bias = _floats(300, 256), _floats(400, 256, seed=1), _floats(400, dtype=FP32, seed=2)
    want = cpu.matmul(a, b, bias, BF16, cpu.TREE, 8)
    for cores in (1, 20, 24, 40):
        launcher = TwinLauncher(arch, cores=cores, seed=cores)
        _equal(linear.matmul(launcher, a, b, bias, BF16, cpu.TREE, 8), want)


@pytest.mark.parametrize(("n", "tile"), [(128, 128), (3072, 128), (4096, 256), (3073, 256)])
def test_tiles_are_wide_where_the_busiest_core_then_fetches_less(n: int, tile: int) -> None:
    # on 24 cores 24 narrow tiles are one round of 2 operands, 25 to 32 are two; wide tiles are one round of 3
    assert plans.linear(dtype=1, out_dtype=1, m=1, n=n, k=512, cores=24).tile_n == tile


class _Widths(TwinLauncher):
    """Notes the widths of the tiles that it launches."""

    def __init__(self, arch: int, cores: int) -> None:
        super().__init__(arch, cores)
        self.widths: set[int] = set()

    def launch(self, kernel: str, tensors: Sequence[torch.Tensor | None], plan: Any, blocks: int) -> None:
        self.widths.add(plan.tile_n)
        super().launch(kernel, tensors, plan, blocks)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_the_width_of_tiles_changes_no_bit(arch: int, dtype: torch.dtype) -> None:
    # 300 columns: on 1 core 2 wide tiles fetch 6 operands, as 3 narrow ones do; on many a wide one 3, a narrow one 2
    a, b, bias = _floats(20, 640, dtype=dtype), _floats(300, 640, dtype=dtype, seed=1), _floats(300, seed=2)
    stacked = torch.stack([b, b.flip(0)])
    offsets, parts = torch.tensor([0, 7, 20]), torch.tensor([0, 300, 640])

    def products(launcher: TwinLauncher) -> list[torch.Tensor]:
        return [
            linear.matmul(launcher, a, b, None, dtype),
            linear.matmul(launcher, a, b, bias, dtype),
            linear.matmul(launcher, a, b, bias, dtype, cpu.TREE, row_leaves(640)),
            linear.matmul(launcher, a, b, None, dtype, cpu.BLOCKS, STEP),
            linear.grouped_matmul(launcher, a, offsets, stacked, None, dtype),
            linear.grouped_outer(launcher, a.t(), b.t(), parts, dtype),
        ]

    wide, narrow = _Widths(arch, 1), _Widths(arch, 24)
    for got, want in zip(products(narrow), products(wide), strict=True):
        _equal(got, want)
    assert (narrow.widths, wide.widths) == ({128}, {256})


@pytest.mark.parametrize("arch", ARCHS)
def test_a_row_does_not_depend_on_its_neighbours(arch: int) -> None:
    launcher = TwinLauncher(arch, cores=2)
    a, b = _floats(140, 200), _floats(40, 200, seed=1)
    alone = linear.matmul(launcher, a[130:131], b, None, BF16)
    a[129], a[131, 3], a[5, 0] = float("nan"), float("inf"), float("-inf")
    among = linear.matmul(launcher, a, b, None, BF16)
    _equal(among[130:131], alone)
    _equal(among, cpu.matmul(a, b, None, BF16))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_share_the_leaves_get_the_bits_of_one(ranks: int) -> None:
    launcher = TwinLauncher(cores=3)
    k = 512
    a, b, bias = _floats(37, k), _floats(130, k, seed=1), _floats(130, seed=2)
    leaves = row_leaves(k) // ranks
    parts = [
        linear.matmul(launcher, x, w, None, FP32, cpu.TREE, leaves)
        for x, w in zip(a.chunk(ranks, 1), b.chunk(ranks, 1), strict=True)
    ]
    whole = linear.matmul(launcher, a, b, bias, BF16, cpu.TREE, row_leaves(k))
    _equal(linear.tree_combine(launcher, torch.stack(parts), bias, BF16), whole)


@pytest.mark.parametrize("mmad", [Mmad.PAIRWISE16, Mmad.FP64])
def test_other_orders_inside_mmad_stay_within_the_bound(mmad: Mmad) -> None:
    launcher = TwinLauncher(cores=2, mmad=mmad)
    k = 400
    a, b = torch.randn(50, k).to(BF16), torch.randn(60, k).to(BF16)
    got = linear.matmul(launcher, a, b, None, FP32).double()
    exact, size = a.double() @ b.double().t(), a.double().abs() @ b.double().abs().t()
    assert bool(((got - exact).abs() <= k * 2**-24 * size).all())
    assert not torch.equal(got, cpu.matmul(a, b, None, FP32).double())


def test_empty_shapes() -> None:
    launcher = TwinLauncher(cores=2)
    bias = torch.tensor([-0.0, 2.5, float("nan")], dtype=BF16)
    empty = torch.empty(0, 4, dtype=BF16)
    for a, b in ((empty, _floats(3, 4)), (_floats(2, 4), empty), (_floats(2, 0), _floats(3, 0))):
        _equal(linear.matmul(launcher, a, b, None, BF16), cpu.matmul(a, b, None, BF16))
    a, b = _floats(2, 0), _floats(3, 0)
    _equal(linear.matmul(launcher, a, b, bias, BF16), cpu.matmul(a, b, bias, BF16))
    none = torch.zeros(4, dtype=torch.int64)
    _equal(
        linear.grouped_matmul(launcher, empty, none, _floats(3, 5, 4), None, BF16),
        cpu.grouped_matmul(empty, none, _floats(3, 5, 4), None, BF16),
    )
    _equal(linear.grouped_outer(launcher, empty, empty, none, BF16), cpu.grouped_outer(empty, empty, none, BF16))
    _equal(linear.grouped_row_sum(launcher, empty, none, BF16), cpu.grouped_row_sum(empty, none, BF16))


@pytest.mark.parametrize(
    "plan",
    [{"plan": cpu.TREE, "count": 16}, {"plan": cpu.TREE, "count": 3}, {"plan": cpu.BLOCKS, "count": STEP + 1}],
    ids=str,
)
def test_plans_that_no_kernel_has_are_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        linear.matmul(TwinLauncher(cores=1), _floats(2, 48), _floats(2, 48), None, BF16, **plan)
    with pytest.raises(UnsupportedError):
        linear.tree_combine(TwinLauncher(cores=1), torch.zeros(16, 1, 1), None, BF16)
