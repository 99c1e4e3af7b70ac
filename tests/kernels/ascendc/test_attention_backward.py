"""Gradients of attention in the twin: the bits of the CPU backend for any cut of the work, and bounds against fp64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.ascendc import attention as driver
from logdiff_kernels.ascendc import cases
from logdiff_kernels.ascendc.attention_inputs import starts
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.cpu import attention as cpu
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.devices import rehearse
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

ARCHS = (2201, 3510)
CASES = [case for case in cases.CASES if case.function == "attention_backward"]
BF16, FP16 = torch.bfloat16, torch.float16

Rule = tuple[float, bool, int, float, Tensor | None]


def _same(got: Any, want: Any) -> None:
    names = ("dq", "dk", "dv", "dsinks")
    for name, one, other in zip(names, got, want, strict=False):
        assert (one is None) == (other is None), name
        if one is not None:
            assert cases.same_bits(one, other), f"{name}: {int((one != other).sum())} of {one.numel()} differ"


def _problem(
    source: cases.Source,
    queries: list[int],
    keys: list[int],
    heads: tuple[int, int],
    dims: tuple[int, int],
    rule: Rule,
    dtype: torch.dtype,
) -> tuple[Any, ...]:
    """Arguments of attention_backward, its out and lse those of the CPU."""
    (many, few), (dim, dim_v) = heads, dims
    q = source.floats(sum(queries), many, dim, dtype=dtype)
    k, v = (source.floats(sum(keys), few, width, dtype=dtype) for width in dims)
    tail = (starts(queries), starts(keys), *rule)
    out, lse = cpu.attention(q, k, v, *tail, True)
    return source.floats(sum(queries), many, dim_v, dtype=dtype), q, k, v, out, lse, *tail


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_the_bits_of_the_cpu(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=3, seed=5)
    for length, dtype in ((1, FP16), (130, BF16), (520, FP16)):
        arguments = case.arguments(length, dtype, length)
        _same(case.on_launcher(launcher, arguments), case.on_cpu(arguments))


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_around_the_edges_of_tiles_and_blocks(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=7)
    for i, length in enumerate((2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1024, 1025, 4097)):
        arguments = case.arguments(length, cases.DTYPES[1 + i % 2], length)
        _same(case.on_launcher(launcher, arguments), case.on_cpu(arguments))


@pytest.mark.parametrize(
    "dims",
    [
        (64, 64),
        *(pytest.param(dims, marks=pytest.mark.slow(seconds=10)) for dims in ((128, 128), (192, 128))),
        (256, 256),
    ],
    ids=lambda x: f"{x[0]}-{x[1]}",
)
def test_any_number_of_cores_gives_the_same_bits(dims: tuple[int, int]) -> None:
    source = cases.Source(1)
    queries, keys = [37, 129, 0, 1, 9], [37, 129, 4, 301, 5]
    rule = (dims[0] ** -0.5, True, 0, 0.0, source.floats(4))
    arguments = _problem(source, queries, keys, (4, 2), dims, rule, BF16)
    want = cpu.attention_backward(*arguments)
    for arch in ARCHS:
        for cores in (1, 20, 24, 40):
            _same(driver.attention_backward(TwinLauncher(arch, cores, seed=cores), *arguments), want)


def test_a_sequence_does_not_depend_on_its_neighbours_or_their_order() -> None:
    source, lengths = cases.Source(2), [40, 200, 7, 129]
    launcher = TwinLauncher(cores=2, seed=9)
    parts: list[Any] = []
    for i, n in enumerate(lengths):
        dout, q, k, v = (source.floats(n, heads, 64, dtype=BF16) for heads in (4, 4, 2, 2))
        if i == 0:
            dout[3], q[4], k[5], v[6] = torch.nan, torch.inf, torch.nan, torch.inf
        out, lse = cpu.attention(q, k, v, starts([n]), None, 0.125, True, 0, 0.0, None, True)
        parts.append((dout, q, k, v, out, lse))

    def run(order: list[int]) -> list[list[Tensor]]:
        whole = [torch.cat([parts[i][j] for i in order]) for j in range(6)]
        cut = [lengths[i] for i in order]
        arguments: Any = (*whole, starts(cut), None, 0.125, True, 0, 0.0, None)
        dq, dk, dv, _ = driver.attention_backward(launcher, *arguments)
        return [list(x) for x in zip(*(torch.split(x, cut) for x in (dq, dk, dv)), strict=True)]

    alone = [run([i])[0] for i in range(4)]
    assert all(x.isfinite().all() for part in alone[1:] for x in part)
    for order in ([0, 1, 2, 3], [3, 0, 2, 1]):
        for i, got in zip(order, run(order), strict=True):
            _same(got, alone[i])


def test_strided_inputs_have_the_gradients_of_dense_ones_and_rows_of_nobody_are_zero() -> None:
    source, launcher, n = cases.Source(3), TwinLauncher(cores=2), 70
    rule = (0.1, True, 33, 12.0, None)
    dout, q, k, v, out, lse, *tail = _problem(source, [n - 6, 3], [n - 4, 4], (6, 2), (48, 80), rule, FP16)
    want = cpu.attention_backward(dout, q, k, v, out, lse, *tail)

    def spread(x: Tensor) -> Tensor:
        wide = torch.full((x.shape[0] + 3, x.shape[1] + 1, x.shape[2] + 16), 7.0, dtype=x.dtype)
        wide[: x.shape[0], 1:, 16:] = x
        return wide[:, 1:, 16:]

    lse = torch.cat([lse, torch.full((3, 6), 5.0)])
    arguments: Any = (*(spread(x) for x in (dout, q, k, v, out)), lse, *tail)
    got = driver.attention_backward(launcher, *arguments)
    for one, other in zip(got[:3], want[:3], strict=True):
        assert one is not None
        assert other is not None
        assert cases.same_bits(one[:-3], other)
        assert bool((one[-3:] == 0).all())


@pytest.mark.parametrize("arch", ARCHS)
def test_a_product_that_vanishes_below_zero_is_added_to_a_sum_that_begins_at_zero(arch: int) -> None:
    # The query has the last position of its sub-tile, so that nothing is added behind it.
    q, k, v = torch.zeros(1, 1, 16), torch.zeros(128, 1, 16), torch.ones(128, 1, 16)
    q[..., 0], k[0, :, 0], dout = 1.0, 70.0, torch.full((1, 1, 16), -1e-30)
    q, k, v, dout = (x.to(BF16) for x in (q, k, v, dout))
    tail = (starts([1]), starts([128]), 1.0, True, 0, 0.0, None)
    out, lse = cpu.attention(q, k, v, *tail, True)
    assert lse is not None
    # p of every key but the first is exp(-70), so that p * dout is -4e-61
    _, _, dv, _ = driver.attention_backward(TwinLauncher(arch, 1), dout, q, k, v, out, lse, *tail)
    assert cases.same_bits(dv[1:], torch.zeros(127, 1, 16, dtype=BF16))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_row_whose_scores_are_all_minus_infinity_adds_nothing(arch: int) -> None:
    source, n = cases.Source(6), 5
    q = torch.ones(n, 1, 32, dtype=BF16)
    k, v, dout = (source.floats(n, 1, 32, dtype=BF16) for _ in range(3))
    k[0] = -torch.inf
    sinks = torch.full((1,), -torch.inf)
    tail = (starts([n]), starts([n]), 1.0, True, 0, 0.0, sinks)
    out, lse = cpu.attention(q, k, v, *tail, True)
    assert lse is not None
    assert lse[0] == -torch.inf
    got = driver.attention_backward(TwinLauncher(arch, 1), dout, q, k, v, out, lse, *tail)
    _same(got, cpu.attention_backward(dout, q, k, v, out, lse, *tail))
    assert bool((got[1][0] == 0).all())
    assert bool((got[2][0] == 0).all())


def _exact(arguments: tuple[Any, ...]) -> list[Tensor]:
    """Gradients by fp64 autograd of the definition: one sequence."""
    dout, q, k, v, _, _, _, _, scale, causal, window, softcap, sinks = arguments
    group = q.shape[1] // k.shape[1]
    leaves = [x.double().requires_grad_() for x in (q, k, v, *([] if sinks is None else [sinks]))]
    keys, values = (x.repeat_interleave(group, 1) for x in leaves[1:3])
    s = torch.einsum("qhd,khd->hqk", leaves[0], keys) * scale
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    at = torch.arange(k.shape[0]) - (k.shape[0] - q.shape[0])
    distance = torch.arange(q.shape[0])[:, None] - at[None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window:
        seen &= distance < window
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, leaves[3][:, None, None].expand(-1, q.shape[0], 1)], 2)
    p = s.softmax(2)[..., : k.shape[0]]
    out = torch.einsum("hqk,khd->qhd", p, values)
    return list(torch.autograd.grad(out, leaves, dout.double()))


@pytest.mark.parametrize("exact_exp", [True, pytest.param(False, marks=pytest.mark.slow(seconds=10))])
@pytest.mark.parametrize("mmad", list(Mmad))
@pytest.mark.parametrize("arch", ARCHS)
def test_gradients_are_near_fp64_and_equal_on_any_cores_for_any_mmad_and_exp(
    arch: int, mmad: Mmad, exact_exp: bool
) -> None:
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(BF16)

    tokens, keys, sinks = 150, 210, torch.randn(4, generator=generator)
    q, dout, k, v = normal(tokens, 4, 64), normal(tokens, 4, 64), normal(keys, 2, 64), normal(keys, 2, 64)
    tail = (starts([tokens]), starts([keys]), 0.125, True, 90, 8.0, sinks)
    launchers = [TwinLauncher(arch, n, seed=n, mmad=mmad, exact_exp=exact_exp, perturb=True) for n in (1, 5)]
    out, lse = driver.attention(launchers[0], q, k, v, *tail, True)
    arguments: Any = (dout, q, k, v, out, lse, *tail)
    got, again = (driver.attention_backward(launcher, *arguments) for launcher in launchers)
    _same(again, got)
    for one, exact in zip(got, _exact(arguments), strict=True):
        assert one is not None
        # P and dS in bf16, and the result's own rounding: each at most 2^-9 of its value
        assert (one.double() - exact).norm() < 3 * 2**-9 * exact.norm()


def test_autograd_of_the_operator_runs_on_the_drivers() -> None:
    source, n = cases.Source(5), 33
    q, k, v, dout = (source.floats(n, heads, 32, dtype=BF16) for heads in (4, 2, 2, 4))
    sinks, launcher = source.floats(4), TwinLauncher(cores=2, trace=True)

    def gradients() -> tuple[Tensor, ...]:
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, sinks)]
        a, b, c, d = leaves
        return torch.autograd.grad(ops.attention(a, b, c, starts([n - 9, 9]), scale=0.2, sinks=d), leaves, dout)

    want = gradients()
    with rehearse(launcher):
        got = gradients()
    assert [name for name, _ in launcher.results][-3:] == list(cases._ATTENTION_BACKWARD)
    _same(got, want)


def test_what_an_npu_has_no_kernel_for_is_refused_and_empty_calls_are_not() -> None:
    launcher = TwinLauncher(cores=1)
    tail = (0.1, True, 0, 0.0, None)

    def run(dtype: torch.dtype, dim: int, dim_v: int, queries: int = 4, keys: int = 4, rule: Rule = tail) -> Any:
        q, k, v = torch.ones(queries, 2, dim), torch.ones(keys, 1, dim), torch.ones(keys, 1, dim_v)
        out, lse = torch.ones(queries, 2, dim_v), torch.ones(queries, 2)
        tensors = [x.to(dtype) for x in (out, q, k, v, out)]
        arguments: Any = (*tensors, lse, starts([queries]), starts([keys]), *rule)
        return driver.attention_backward(launcher, *arguments)

    for dtype, dim, dim_v in ((torch.float32, 64, 64), (BF16, 72, 64), (BF16, 64, 40), (BF16, 2048, 2048)):
        with pytest.raises(UnsupportedError):
            run(dtype, dim, dim_v)
    with pytest.raises(UnsupportedError, match="as many keys as queries"):
        run(BF16, 64, 64, 5, 4, (0.1, False, 0, 0.0, None))
    dq, dk, dv, none = run(BF16, 64, 32, 0, 0)
    assert none is None
    assert [tuple(x.shape) for x in (dq, dk, dv)] == [(0, 2, 64), (0, 1, 64), (0, 1, 32)]
    dq, dk, dv, dsinks = run(BF16, 64, 32, 0, 3, (0.1, True, 0, 0.0, torch.ones(2)))
    assert all(bool((x == 0).all()) for x in (dk, dv, dsinks))
    x, lse = torch.ones(3, 2, 64, dtype=BF16), torch.ones(3, 2)
    for dout, wrong in ((x[:2], lse), (x, lse[:2]), (x, lse.double())):
        with pytest.raises(InputError, match="lse is fp32"):
            driver.attention_backward(launcher, dout, x, x, x, x, wrong, starts([3]), None, *tail)


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("seed", range(8))
def test_random_problems(seed: int, arch: int) -> None:
    sizes = [
        (32, 32),
        (64, 64),
        (80, 80),
        (96, 96),
        (128, 128),
        (192, 128),
        (192, 192),
        (256, 256),
        (64, 128),
        (576, 512),
    ]
    lengths = (0, 1, 5, 15, 16, 17, 63, 65, 127, 129, 511, 512, 513, 600, 1030)
    for i in range(12):
        rng, source = random.Random(100 * seed + i), cases.Source(100 * seed + i)
        dims, few, dtype = rng.choice(sizes), rng.choice((1, 2)), rng.choice((BF16, FP16))
        heads = (few * rng.choice((1, 2, 3, 5, 8)), few)
        keys = [rng.choice(lengths) for _ in range(rng.choice((1, 2, 3)))]
        causal = rng.random() < 0.8
        queries = [rng.choice((n, min(n, 40), n // 2, n + 3 if causal else n)) for n in keys]
        sinks = source.floats(heads[0]) if rng.random() < 0.4 else None
        rule = (dims[0] ** -0.5, causal, rng.choice((0, 0, 1, 7, 100, 513)), rng.choice((0.0, 15.0)), sinks)
        arguments = _problem(source, queries, keys, heads, dims, rule, dtype)
        launcher = TwinLauncher(arch, rng.choice((1, 2, 20, 24, 40)), seed=i)
        _same(driver.attention_backward(launcher, *arguments), cpu.attention_backward(*arguments))
