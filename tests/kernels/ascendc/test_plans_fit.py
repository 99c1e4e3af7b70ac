"""What has a plan fits on a core: kernels allocate no more than there is, whatever head size or length of a row."""

from __future__ import annotations

import pytest
import torch
from logdiff_kernels.ascendc import attention as driver
from logdiff_kernels.ascendc import cases
from logdiff_kernels.ascendc.attention_inputs import starts
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.cpu import attention as cpu
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan.budget import ROW_LENGTHS
from logdiff_kernels.twin.build import ARCHS

HEADS = [(dim, dim) for dim in (16, 48, 80, 112, 144, 176, 208, 240, 256)]
HEADS += [(272, 16), (416, 128), (576, 512), (592, 512), (608, 64), (624, 512), (640, 512)]
WHOLE_ROWS = [case for case in cases.CASES if case.part in ("norm", "activation", "moe", "embedding", "logprob")]


@pytest.mark.parametrize("arch", ARCHS)
def test_attention_with_any_head_size_that_has_tiles(arch: int) -> None:
    source, fitting, refused = cases.Source(1), set(), set()
    for dim, dim_v in HEADS:
        tokens = 20 if dim <= 576 else 150  # the widest have one buffer of P: several sub-tiles take turns in it
        q, k, v, dout = (source.floats(tokens, 1, size, dtype=torch.bfloat16) for size in (dim, dim, dim_v, dim_v))
        tail = (starts([tokens]), None, 0.1, True, 0, 0.0, None)
        out, lse = cpu.attention(q, k, v, *tail, True)
        launcher = TwinLauncher(arch, 2)
        try:
            results = driver.attention(launcher, q, k, v, *tail, True)
            gradients = driver.attention_backward(launcher, dout, q, k, v, out, lse, *tail)
        except UnsupportedError:
            refused.add((dim, dim_v))
            continue
        fitting.add((dim, dim_v))
        for got, want in zip(
            (*results, *gradients), (out, lse, *cpu.attention_backward(dout, q, k, v, out, lse, *tail)), strict=True
        ):
            assert got is None or cases.same_bits(got, want), (dim, dim_v)
    assert fitting >= {(dim, dim) for dim, _ in HEADS if dim <= 256} | {(576, 512), (624, 512)}
    assert refused == {(640, 512)}


@pytest.mark.parametrize("case", WHOLE_ROWS, ids=lambda case: case.name)
def test_rows_of_any_length(case: cases.Case) -> None:
    launcher = TwinLauncher(2201, 2)  # the smaller UB
    for i, length in enumerate(ROW_LENGTHS):
        dtype = case.dtypes[i % len(case.dtypes)]
        arguments = case.arguments(length, dtype, 3), case.arguments(length, dtype, 3)
        for got, want in zip(case.on_launcher(launcher, arguments[0]), case.on_cpu(arguments[1]), strict=True):
            assert cases.same_bits(got, want), (length, dtype)
