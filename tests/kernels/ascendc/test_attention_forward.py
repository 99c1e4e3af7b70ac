"""Attention in the twin: the bits of the CPU backend, and the laws by itself, for any cut of the work."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from logdiff_kernels.ascendc import attention as driver
from logdiff_kernels.ascendc import cases
from logdiff_kernels.ascendc.attention_inputs import starts
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.cpu import attention as cpu
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.twin.library import Mmad
from torch import Tensor

ARCHS = (2201, 3510)
CASES = [case for case in cases.CASES if case.function in ("attention", "paged_attention")]
BF16, FP16 = torch.bfloat16, torch.float16


def _equal(got: Tensor, want: Tensor) -> None:
    assert cases.same_bits(got, want), f"{int((got != want).sum())} of {got.numel()} differ"


def _all_equal(got: Any, want: Any) -> None:
    for one, other in zip(got, want, strict=True):
        _equal(one, other)


def _compare(case: cases.Case, launcher: TwinLauncher, length: int, dtype: torch.dtype) -> None:
    arguments = case.arguments(length, dtype, length)
    _all_equal(case.on_launcher(launcher, arguments), case.on_cpu(arguments))


def _pages(k: Tensor, v: Tensor, block: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Caches that hold the keys of one sequence in shuffled pages, and its block table; all else is NaN."""
    count = -(-k.shape[0] // block)
    order = torch.randperm(count + 1, generator=torch.Generator().manual_seed(seed))[:count]
    caches = []
    for x in (k, v):
        cache = torch.full((count + 1, block, *x.shape[1:]), torch.nan, dtype=x.dtype)
        for i, page in enumerate(order.tolist()):
            rows = x[i * block : (i + 1) * block]
            cache[page, : len(rows)] = rows
        caches.append(cache)
    return caches[0], caches[1], order.to(torch.int32)[None]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_the_bits_of_the_cpu(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=3, seed=5)
    for length, dtype in ((1, FP16), (130, BF16), (520, FP16)):
        _compare(case, launcher, length, dtype)


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_around_the_edges_of_tiles_steps_and_chunks(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=7)
    for i, length in enumerate((2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1024, 1025, 4095, 4096, 4097)):
        _compare(case, launcher, length, cases.DTYPES[1 + i % 2])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("options", [(0, 0.0, False), (70, 15.0, True)], ids=["plain", "window, cap and sinks"])
def test_training_prefill_chunks_and_decode_over_any_pages_are_one(arch: int, options: tuple[int, float, bool]) -> None:
    (window, softcap, sinks), tokens, heads = options, 530, 4
    source, launcher = cases.Source(1), TwinLauncher(arch, cores=4)
    q, k, v = (source.floats(tokens, h, 64, dtype=BF16) for h in (heads, 2, 2))
    sink = source.floats(heads) if sinks else None
    tail = (0.125, True, window, softcap, sink)
    whole, lse = driver.attention(launcher, q, k, v, starts([tokens]), None, *tail, True)
    without, none = driver.attention(launcher, q, k, v, starts([tokens]), None, *tail, False)
    assert none is None
    _equal(without, whole)
    _all_equal((whole, lse), cpu.attention(q, k, v, starts([tokens]), None, *tail, True))
    for block, chunk in ((16, 97), (48, 256), (128, 530)):
        k_cache, v_cache, table = _pages(k, v, block)
        for begin in range(0, tokens, chunk):
            rows = q[begin : begin + chunk]
            lengths = torch.tensor([begin + len(rows)])
            got = driver.paged_attention(
                launcher, rows, k_cache, v_cache, table, starts([len(rows)]), lengths, *tail, None
            )
            _equal(got, whole[begin : begin + chunk])
    k_cache, v_cache, table = _pages(k, v, 32)
    for at in (0, 1, 127, 128, 511, 512, 529):
        got = driver.paged_attention(
            launcher, q[at : at + 1], k_cache, v_cache, table, starts([1]), torch.tensor([at + 1]), *tail, None
        )
        _equal(got, whole[at : at + 1])


@pytest.mark.parametrize("sinks", [False, True])
def test_chunks_on_one_core_or_on_many_give_the_same_bits(sinks: bool) -> None:
    source, keys = cases.Source(2), 8300
    q, k, v = (source.floats(n, h, 32, dtype=FP16) for n, h in ((2, 6), (keys, 2), (keys, 2)))
    sink = source.floats(6) if sinks else None
    arguments = (q, k, v, starts([2]), starts([keys]), 0.2, True, 0, 0.0, sink, True)
    want = cpu.attention(*arguments)
    kernels = set()
    for arch in ARCHS:
        for cores in (1, 20, 24, 40):
            launcher = TwinLauncher(arch, cores, seed=cores)
            _all_equal(driver.attention(launcher, *arguments), want)
            kernels.add((cores, launcher.results[-1][0]))
    assert kernels == {(1, "attention"), *((n, "attention_combine") for n in (20, 24, 40))}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (576, 512)], ids=["O in UB", "O in the workspace"])
def test_items_of_other_sizes_share_a_block_s_sums_over_chunks(arch: int, dim: int, dim_v: int) -> None:
    # which rows a vector core has differs between the items, what it keeps in the workspace must not
    source, queries, keys = cases.Source(8), [1, 40, 3], [4200, 4300, 4099]
    q, k = (source.floats(sum(n), h, dim, dtype=BF16) for n, h in ((queries, 3), (keys, 1)))
    v = source.floats(sum(keys), 1, dim_v, dtype=BF16)
    arguments = (q, k, v, starts(queries), starts(keys), 0.1, True, 300, 0.0, None, True)
    _all_equal(driver.attention(TwinLauncher(arch, cores=1, seed=1), *arguments), cpu.attention(*arguments))


def test_a_sequence_does_not_depend_on_its_neighbours_or_their_order() -> None:
    source, launcher, lengths = cases.Source(3), TwinLauncher(cores=2, seed=9), [40, 200, 7, 129]
    parts = [[source.floats(n, h, 64, dtype=BF16) for h in (4, 1, 1)] for n in lengths]
    for x in parts[0]:
        x[5] = torch.nan

    def run(order: list[int]) -> list[Tensor]:
        q, k, v = (torch.cat([parts[i][j] for i in order]) for j in range(3))
        cu = starts([lengths[i] for i in order])
        out, _ = driver.attention(launcher, q, k, v, cu, None, 0.125, True, 0, 0.0, None, False)
        return list(torch.split(out, [lengths[i] for i in order]))

    alone = [run([i])[0] for i in range(4)]
    assert not any(x.isnan().any() for x in alone[1:])
    for order in ([0, 1, 2, 3], [3, 0, 2, 1]):
        for i, got in zip(order, run(order), strict=True):
            _equal(got, alone[i])


def test_a_token_that_is_not_finite_reaches_no_row_of_another_step() -> None:
    source, launcher, n = cases.Source(4), TwinLauncher(cores=1), 600
    q, k, v = (source.floats(n, 1, 64, dtype=BF16) for _ in range(3))
    arguments = (starts([n]), None, 0.125, True, 0, 0.0, None, True)
    clean = driver.attention(launcher, q, k, v, *arguments)
    k[550], v[580] = torch.inf, torch.nan
    for got, want in zip(driver.attention(launcher, q, k, v, *arguments), clean, strict=True):
        assert got is not None
        assert want is not None
        _equal(got[:512], want[:512])


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("mmad", list(Mmad))
@pytest.mark.parametrize("arch", ARCHS)
def test_decode_is_prefill_whatever_mmad_and_exp_do(arch: int, mmad: Mmad) -> None:
    source, tokens = cases.Source(5), 300
    q, k, v = (source.floats(tokens, h, 128, dtype=BF16) for h in (8, 2, 2))
    launcher = TwinLauncher(arch, 4, mmad=mmad, exact_exp=False, perturb=True)
    tail = (0.0883, True, 0, 0.0, None)
    whole, _ = driver.attention(launcher, q, k, v, starts([tokens]), None, *tail, False)
    k_cache, v_cache, table = _pages(k, v, 64)
    for at in (0, 63, 64, 200, 299):
        got = driver.paged_attention(
            launcher, q[at : at + 1], k_cache, v_cache, table, starts([1]), torch.tensor([at + 1]), *tail, None
        )
        _equal(got, whole[at : at + 1])
    heads = (q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))
    wide_q, wide_k, wide_v = (x.transpose(0, 1).double() for x in heads)
    attend = torch.nn.functional.scaled_dot_product_attention
    exact = attend(wide_q, wide_k, wide_v, is_causal=True, scale=0.0883).transpose(0, 1)
    error = (whole.double() - exact).norm() / exact.norm()
    assert error < 2 * (exact.to(BF16).double() - exact).norm() / exact.norm()


def test_results_go_where_they_are_asked_for_and_nowhere_else() -> None:
    source, launcher = cases.Source(6), TwinLauncher(cores=2)
    q, k, v = (source.floats(n, h, 64, dtype=BF16) for n, h in ((9, 4), (30, 2), (30, 2)))
    k_cache, v_cache, table = _pages(k, v, 16)
    arguments = (q, k_cache, v_cache, table, starts([6]), torch.tensor([30]), 0.125, True, 0, 0.0, None)
    wide = torch.full((9, 5, 96), 3.0, dtype=BF16)
    result = driver.paged_attention(launcher, *arguments, wide[:, 1:, 16:80])
    _equal(result[:6], cpu.paged_attention(*arguments, None)[:6])
    result[:6] = 3.0
    assert bool((wide == 3.0).all())
    fresh = driver.paged_attention(launcher, *arguments, None)
    assert bool((fresh[6:] == 0).all())
    out, lse = driver.attention(launcher, q, q, q, starts([4, 0]), None, 0.125, True, 0, 0.0, None, True)
    assert lse is not None
    assert bool((out[4:] == 0).all())
    assert bool((lse[4:] == -torch.inf).all())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_store_kv_writes_the_slots_and_only_them(arch: int, dtype: torch.dtype) -> None:
    source = cases.Source(7)
    for tokens, heads, dim, dim_v, block in ((70, 2, 64, 48, 16), (3, 40, 1024, 72, 4), (1, 3, 5, 7, 16)):
        rows = source.floats(tokens + 2, heads, dim + dim_v, dtype=dtype)
        k, v = rows[..., :dim], rows[..., dim:]
        blocks = tokens // block + 4
        want = source.floats(blocks, 2, block, heads, max(dim, dim_v), dtype=dtype)
        got = want.clone()
        slots = torch.randperm(blocks * block, generator=source.generator)[:tokens]
        slots[: tokens // 10] = -1
        cpu.store_kv(k, v, want[:, 0, ..., :dim], want[:, 1, ..., :dim_v], slots)
        driver.store_kv(TwinLauncher(arch, 2), k, v, got[:, 0, ..., :dim], got[:, 1, ..., :dim_v], slots)
        _equal(got, want)


def test_what_an_npu_has_no_kernel_for_is_refused_and_empty_calls_are_not() -> None:
    launcher = TwinLauncher(cores=1)
    tail = (0.1, True, 0, 0.0, None, True)

    def run(dtype: torch.dtype, dim: int, dim_v: int, tokens: int = 4) -> tuple[Tensor, Tensor | None]:
        q, v = torch.ones(tokens, 2, dim, dtype=dtype), torch.ones(tokens, 2, dim_v, dtype=dtype)
        return driver.attention(launcher, q, q, v, starts([tokens]), None, *tail)

    for dtype, dim, dim_v in ((torch.float32, 64, 64), (BF16, 72, 64), (BF16, 64, 40), (BF16, 2048, 2048)):
        with pytest.raises(UnsupportedError):
            run(dtype, dim, dim_v)
    out, lse = run(BF16, 64, 32, 0)
    assert lse is not None
    assert (tuple(out.shape), tuple(lse.shape)) == ((0, 2, 32), (0, 2))
    q, cache = torch.ones(1, 2, 64, dtype=BF16), torch.ones(2, 16, 2, 64, dtype=BF16)
    for table, length in (([[0, 2]], 20), ([[0, -1]], 17), ([[0, 1]], 33)):
        with pytest.raises(InputError):
            driver.paged_attention(
                launcher, q, cache, cache, torch.tensor(table), starts([1]), torch.tensor([length]), *tail[:-1], None
            )
    with pytest.raises(InputError):
        driver.store_kv(launcher, q, q, cache, cache, torch.tensor([32]))


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("seed", range(8))
def test_random_problems(seed: int, arch: int) -> None:
    sizes = [(32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (64, 128)]
    lengths = (0, 1, 5, 15, 16, 17, 63, 65, 127, 129, 511, 512, 513, 600, 1030)
    for i in range(12):
        rng, source = random.Random(100 * seed + i), cases.Source(100 * seed + i)
        (dim, dim_v), kv_heads, dtype = rng.choice(sizes), rng.choice((1, 2)), rng.choice((BF16, FP16))
        heads = kv_heads * rng.choice((1, 2, 3, 5, 8, 16))
        keys = [rng.choice(lengths) for _ in range(rng.choice((1, 2, 3)))]
        queries = [min(n, rng.choice((1, 2, 40, 130))) if n else rng.choice((0, 2)) for n in keys]
        q = source.floats(sum(queries) + 2, heads + 1, dim, dtype=dtype)[:, 1:]
        rows = source.floats(sum(keys), kv_heads, dim + dim_v, dtype=dtype)
        sinks = source.floats(heads) if rng.random() < 0.4 else None
        options = (dim**-0.5, rng.random() < 0.8, rng.choice((0, 0, 1, 7, 100, 513)), rng.choice((0.0, 15.0)), sinks)
        arguments = (q, rows[..., :dim], rows[..., dim:], starts(queries), starts(keys), *options, True)
        launcher = TwinLauncher(arch, rng.choice((1, 2, 20, 24, 40)), seed=i)
        _all_equal(driver.attention(launcher, *arguments), cpu.attention(*arguments))
