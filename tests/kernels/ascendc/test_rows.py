"""Vector kernels in the twin: the bits of the CPU backend, row by row, on any cores and from any state of a core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from logdiff_kernels.ascendc import activation, cases, embedding, logprob, moe, norm, rope, router
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.cpu import activation as cpu_activation
from logdiff_kernels.cpu import embedding as cpu_embedding
from logdiff_kernels.cpu import logprob as cpu_logprob
from logdiff_kernels.cpu import moe as cpu_moe
from logdiff_kernels.cpu import norm as cpu_norm
from logdiff_kernels.cpu import rope as cpu_rope
from logdiff_kernels.cpu import router as cpu_router
from logdiff_kernels.errors import InputError, UnsupportedError
from torch import Tensor

ARCHS = (2201, 3510)
PARTS = ("norm", "rope", "activation", "logprob", "router", "embedding", "moe")
CASES = [case for case in cases.CASES if case.part in PARTS]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def _floats(*shape: int, dtype: torch.dtype = BF16, seed: int = 0, scale: float = 1.0) -> Tensor:
    return cases.Source(seed).floats(*shape, dtype=dtype, scale=scale)


def _equal(got: Tensor | None, want: Tensor | None) -> None:
    assert (got is None) == (want is None)
    if got is not None and want is not None:
        assert cases.same_bits(got, want), f"{int((got != want).sum())} of {got.numel()} differ"


def _all_equal(got: Any, want: Any) -> None:
    for one, other in zip(got, want, strict=True):
        _equal(one, other)


def _compare(case: cases.Case, launcher: TwinLauncher, length: int, dtype: torch.dtype) -> None:
    got = case.on_launcher(launcher, case.arguments(length, dtype, length))
    _all_equal(got, case.on_cpu(case.arguments(length, dtype, length)))


@contextmanager
def _outputs_full_of_nan() -> Iterator[None]:
    """Every `torch.empty` is filled with NaN, or with the largest integer."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_the_bits_of_the_cpu(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=3, seed=7)
    for i, length in enumerate((1, 77, 513, 4097)):
        if length < 4097 or case.part != "rope":
            _compare(case, launcher, length, case.dtypes[-i % len(case.dtypes)])


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_in_every_dtype_around_the_tiles_edges(case: cases.Case, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=5)
    around = [n + i for n in (16, 64, 128, 512, 1024, 2048, 4096, 8192) for i in (-1, 0, 1)]
    for length in (2, 3, *around, 20001):
        for dtype in case.dtypes:
            _compare(case, launcher, length, dtype)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cores_order_and_what_lies_on_a_core_do_not_change_bits(case: cases.Case, arch: int) -> None:
    """A seed is an order of blocks, of switches between cores, and the modes that an earlier kernel has left."""
    length, dtype = 91, case.dtypes[min(1, len(case.dtypes) - 1)]
    want = case.on_cpu(case.arguments(length, dtype, 3))
    with _outputs_full_of_nan():
        for cores in (1, 20, 24, 40):
            launcher = TwinLauncher(arch, cores=cores, seed=cores)
            _all_equal(case.on_launcher(launcher, case.arguments(length, dtype, 3)), want)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tiles_of_more_than_32_rows(case: cases.Case, arch: int) -> None:
    """Short rows on one core: more than half of the lanes that hold one value per row are used."""
    for dtype in case.dtypes:
        _compare(case, TwinLauncher(arch, cores=1), 60, dtype)


def _only(arguments: tuple[Any, ...], rows: int, row: int) -> tuple[Any, ...]:
    """Arguments with one of their rows."""
    return tuple(x[row : row + 1] if isinstance(x, Tensor) and x.shape[0] == rows else x for x in arguments)


def _spoilt(arguments: tuple[Any, ...], rows: int, row: int) -> tuple[Any, ...]:
    """Arguments whose other rows are NaN and infinities; strides stay as they are."""
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf])
    for x in arguments:
        if isinstance(x, Tensor) and x.is_floating_point() and x.shape[0] == rows:
            for other in range(rows):
                if other != row:
                    x[other] = bad[other % 3]
    return arguments


INDEXED = ("moe_gather", "moe_combine", "moe_combine_plain", "moe_combine_backward", "embedding_backward")
ROW_CASES = [c for c in CASES if c.name not in (*INDEXED, "rope_in_place") and not c.name.startswith("embedding")]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", ROW_CASES, ids=lambda case: case.name)
def test_a_row_does_not_depend_on_its_neighbours(case: cases.Case, arch: int) -> None:
    launcher, dtype = TwinLauncher(arch, cores=1, seed=2), case.dtypes[0]
    for length in (130, 300):
        rows = case.arguments(length, dtype, 5)[0].shape[0]
        assert rows > 4
        for row in (1, rows - 1):
            alone = case.on_launcher(launcher, _only(case.arguments(length, dtype, 5), rows, row))
            among = case.on_launcher(launcher, _spoilt(case.arguments(length, dtype, 5), rows, row))
            kept = [x[row : row + 1] if x.shape[0] == rows else None for x in among]
            assert kept[0] is not None
            for one, here in zip(alone, kept, strict=True):
                if here is not None:  # a weight's gradient has no rows
                    _equal(here, one)
            want = case.on_cpu(_spoilt(case.arguments(length, dtype, 5), rows, row))
            for got, other in zip(among, want, strict=True):
                if not (case.part == "logprob" and got.shape[-1] == 3):  # a maximum may or may not keep NaN
                    _equal(got, other)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_token_does_not_depend_on_other_tokens_experts(arch: int) -> None:
    launcher, width = TwinLauncher(arch, cores=2, seed=4), 200
    ids = torch.tensor([[3, 0, 5], [5, 2, 0], [1, 3, 4], [-1, -1, -1], [0, -1, 1]])
    _, order, position = cpu_moe.sort(ids, 6, None)
    rows = int((ids >= 0).sum())
    x, weights, shared = _floats(5, width), _floats(5, 3, dtype=FP32), _floats(5, width, seed=1)
    gathered = moe.gather(launcher, x, order[:rows], 3)
    combined = moe.combine(launcher, gathered, weights, ids, position, None, shared)
    dy, dweights = moe.combine_backward(launcher, x, gathered, weights, position)
    for token in range(5):
        bad_x, bad_weights, bad_shared = x.clone(), weights.clone(), shared.clone()
        for y in (bad_x, bad_weights, bad_shared):
            y[:token] = torch.nan
            y[token + 1 :] = torch.inf
        spoilt = moe.gather(launcher, bad_x, order[:rows], 3)
        own = position.view(5, 3)[token]
        own = own[own >= 0]
        _equal(spoilt[own], gathered[own])
        assert not spoilt[0].isfinite().all() or not spoilt[-1].isfinite().all()
        got = moe.combine(launcher, spoilt, bad_weights, ids, position, None, bad_shared)
        _equal(got[token], combined[token])
        got_dy, got_dweights = moe.combine_backward(launcher, bad_x, spoilt, bad_weights, position)
        _equal(got_dy[own], dy[own])
        _equal(got_dweights[token], dweights[token])


@pytest.mark.parametrize("arch", ARCHS)
def test_an_embedding_does_not_depend_on_other_tokens(arch: int) -> None:
    launcher, ids = TwinLauncher(arch, cores=2, seed=1), torch.tensor([4, 0, 4, 2, 0, 4])
    weight, grad = _floats(5, 100), _floats(6, 100, seed=1)
    whole = embedding.embedding(launcher, ids, weight, 2.5)
    sums = embedding.embedding_backward(launcher, grad, ids, 5, 2.5, FP32)
    for token in range(5):
        others, bad, bad_grad = torch.arange(5) != token, weight.clone(), grad.clone()
        bad[others], bad_grad[ids != token] = torch.nan, torch.inf
        got = embedding.embedding(launcher, ids, bad, 2.5)
        _equal(got[ids == token], whole[ids == token])
        _equal(embedding.embedding_backward(launcher, bad_grad, ids, 5, 2.5, FP32)[token], sums[token])
    assert not sums[1].any()
    assert not sums[3].any()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_what_overflows_is_infinite_whatever_an_earlier_kernel_chose(dtype: torch.dtype, arch: int) -> None:
    top = torch.finfo(dtype).max
    x, ones = torch.full((3, 70), top / 4, dtype=dtype), torch.ones(3, 70, dtype=dtype)
    for seed in range(4):
        launcher = TwinLauncher(arch, cores=2, seed=seed)
        assert embedding.embedding(launcher, torch.tensor([1, 2]), x, 8.0).isposinf().all()
        assert norm.rms_norm(launcher, ones, torch.full((70,), -3.4e38), 0.0, 0.0, False)[0].isneginf().all()
        assert activation.glu(launcher, x, x, 0).isposinf().all()
        both = moe.combine(launcher, x, torch.full((1, 3), -2.0), torch.arange(3)[None], torch.arange(3), None, None)
        assert both.isneginf().all()


@pytest.mark.parametrize("arch", ARCHS)
def test_roots_of_every_size(arch: int) -> None:
    """Mean squares from subnormals (whose rstd is large) over 2^126 to infinity, zero and NaN."""
    exponents = torch.arange(-75, 70)
    x = _floats(len(exponents), 64, dtype=FP32).nan_to_num().clamp(-4, 4) * torch.exp2(exponents.float())[:, None]
    x[3], x[5], x[-2, 7] = 0.0, -0.0, torch.nan
    want = cpu_norm.rms_norm(x, None, 0.0, 0.0, True)
    assert want[1] is not None
    assert {bool(r) for r in want[1].isfinite()} == {True, False}
    assert bool((want[1] == 0).any())
    _all_equal(norm.rms_norm(TwinLauncher(arch, cores=1), x, None, 0.0, 0.0, True), want)


def _wide(rows: int, n: int, seed: int = 0) -> Tensor:
    return _floats(rows, n + 9, seed=seed)[:, 3 : 3 + n]


FORMS: dict[str, Callable[[int], Tensor]] = {
    "further apart": lambda n: _wide(20, n),
    "every second row": lambda n: _floats(40, n)[::2],
    "transposed": lambda n: _floats(n, 20).t(),
    "every second element": lambda n: _floats(20, 2 * n)[:, ::2],
    "one row, repeated": lambda n: _floats(1, n).expand(20, n),
    "rows that overlap": lambda n: _floats(1, n + 19).as_strided((20, n), (1, 1)),
    "one row": lambda n: _floats(1, n),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_strides(form: str, arch: int) -> None:
    launcher = TwinLauncher(arch, cores=3)
    for n in (1, 30, 65):
        x = FORMS[form](n)
        weight, other = _floats(n, seed=2), _floats(*x.shape, seed=3)
        _all_equal(norm.rms_norm(launcher, x, weight, 1e-5, 0.0, True), cpu_norm.rms_norm(x, weight, 1e-5, 0.0, True))
        for first, second in ((x, other), (other, x)):
            sums = norm.add_rms_norm(launcher, first, second, None, 1e-5, 0.0, True)
            _all_equal(sums, cpu_norm.add_rms_norm(first, second, None, 1e-5, 0.0, True))
            _equal(activation.glu(launcher, first, second, 0), cpu_activation.glu(first, second, 0))
            got = activation.glu_backward(launcher, first, first, second, 1, 1.0, 0.0)
            _all_equal(got, cpu_activation.glu_backward(first, first, second, 1, 1.0, 0.0))
        ids = torch.arange(x.shape[0]).flip(0)
        _equal(embedding.embedding(launcher, ids, x, None), cpu_embedding.embedding(ids, x, None))
        _equal(moe.gather(launcher, x, ids, 1), cpu_moe.gather(x, ids, 1))
        _equal(
            embedding.embedding_backward(launcher, x, ids // 2, 20, None, FP32),
            cpu_embedding.embedding_backward(x, ids // 2, 20, None, FP32),
        )
        logits = FORMS[form](n).float() if form != "one row, repeated" else FORMS[form](n)[:1].float().expand(20, n)
        tokens = torch.zeros(logits.shape[0], dtype=torch.int64)
        _all_equal(
            logprob.logprob(launcher, logits, None, tokens, n, True), cpu_logprob.logprob(logits, None, tokens, n, True)
        )
        got_weights, got_ids = router.router(launcher, logits, None, 1, 1, 1, 0, 0.0, 1.0)
        _all_equal((got_weights, got_ids), cpu_router.router(logits, None, 1, 1, 1, 0, 0.0, 1.0))


@pytest.mark.parametrize("arch", ARCHS)
def test_heads_of_any_strides(arch: int) -> None:
    launcher, angle = TwinLauncher(arch, cores=2), _floats(7, 16, dtype=FP32)
    whole = _floats(9, 6, 80)
    for x in (
        whole[1:8, 2:5, 16:48],
        whole.transpose(0, 1)[:7, :6, :32].transpose(0, 1)[:6].transpose(0, 1)[:, :6, :32].transpose(0, 1),
        whole[:7, :, ::2],
        whole[:1, :, :32].expand(7, 6, 32),
        whole[:7, :1, :40].expand(7, 6, 40),
    ):
        for interleaved in (False, True):
            cos, sin = angle[: x.shape[0]].cos(), angle[: x.shape[0]].sin()
            got = rope.rope(launcher, x, cos, sin, interleaved, False)
            _equal(got, cpu_rope.rope(x, cos, sin, interleaved, False))


@pytest.mark.parametrize("arch", ARCHS)
def test_whole_vocabularies(arch: int) -> None:
    """Tiny ones, whose leaves are padding; one that is cut into several tiles of a leaf; leaves of 255 repeats."""
    launcher = TwinLauncher(arch, cores=3)
    for columns in (1, 2, 7, 9, 65, 70001, 8 * 255 * 64):
        logits = _floats(3, columns, dtype=FP32, scale=5.0)
        ids = torch.tensor([0, columns - 1, columns // 2])
        temperature = torch.tensor([0.7, 1.0, 1.3]) if columns > 100_000 else None
        want = cpu_logprob.logprob(logits, temperature, ids, columns, True)
        _all_equal(logprob.logprob(launcher, logits, temperature, ids, columns, True), want)
        assert bool((want[0] <= 0).all())


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_shards_of_a_vocabulary_give_the_bits_of_one(ranks: int) -> None:
    launcher, vocabulary, leaf = TwinLauncher(cores=2), 1000, 128
    logits = torch.full((5, 8 * leaf), -torch.inf)
    logits[:, :vocabulary] = _floats(5, vocabulary, dtype=FP32)
    leaves, width = 8 // ranks, 8 // ranks * leaf
    parts = [
        logprob.stats(launcher, logits[:, r * width : (r + 1) * width], None, vocabulary, True, r * leaves, leaves)
        for r in range(ranks)
    ]
    _equal(
        logprob.merge(launcher, torch.stack(parts, 1)),
        cpu_logprob.stats(logits[:, :vocabulary], None, vocabulary, True),
    )


@pytest.mark.parametrize("logical", [None, [2, 0, 1, 5, 4, 3]], ids=["experts", "replicas"])
def test_sorted_rows_are_those_of_the_cpu(logical: list[int] | None) -> None:
    launcher = TwinLauncher(cores=1)
    ids = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i))[:3] for i in range(40)])
    ids[ids == 4] = -1
    table = None if logical is None else torch.tensor(logical)
    offsets, order, position = cpu_moe.sort(ids, 6, table)
    got = moe.sort(launcher, ids, 6, table)
    rows = int(offsets[-1])
    _all_equal((got[0], got[1][:rows], got[2]), (offsets, order[:rows], position))
    empty = torch.empty(0, 3, dtype=torch.int64)
    _all_equal(moe.sort(launcher, empty, 6, table), cpu_moe.sort(empty, 6, table))


def test_what_the_cpu_refuses_is_refused() -> None:
    launcher = TwinLauncher(cores=1)
    twice, beyond = torch.tensor([[1, 2, 1]]), torch.tensor([[1, 2, 6]])
    y, position = _floats(3, 8), torch.tensor([0, 1, 2])
    weights = torch.ones(1, 3)
    for part in (moe, None):
        on: tuple[Any, ...] = (launcher,) if part else ()
        functions: Any = part or cpu_moe
        with pytest.raises(InputError, match="twice"):
            functions.sort(*on, twice, 6, None)
        with pytest.raises(InputError, match="twice"):
            functions.sort(*on, torch.tensor([[0, 1]]), 6, torch.tensor([3, 3, 0, 1, 2, 4]))
        with pytest.raises(InputError, match="beyond the 6 experts"):
            functions.sort(*on, beyond, 6, None)
        with pytest.raises(InputError, match="beyond the 3 rows"):
            functions.combine(*on, y, weights, beyond, position + 1, None, None)
        with pytest.raises(InputError, match="no logical expert"):
            functions.combine(*on, y, weights, beyond, position, torch.arange(6), None)
        with pytest.raises(InputError, match="beyond the 3 rows"):
            functions.combine_backward(*on, y[:1], y, weights, position + 1)
    for call, ids in ((embedding.embedding, [0, 3]), (embedding.embedding, [-1])):
        with pytest.raises(IndexError, match=r"outside \[0, 3\)"):
            call(launcher, torch.tensor(ids), y, None)
        with pytest.raises(IndexError, match=r"outside \[0, 3\)"):
            cpu_embedding.embedding(torch.tensor(ids), y, None)
    logits = torch.zeros(2, 5)
    for ids in ([5, 0], [0, -1]):
        with pytest.raises(InputError, match="outside of the 5 columns"):
            logprob.logprob(launcher, logits, None, torch.tensor(ids), 5, False)


def test_more_than_a_kernel_holds_is_refused() -> None:
    launcher = TwinLauncher(cores=1)
    with pytest.raises(UnsupportedError, match="513 experts"):
        router.router(launcher, torch.zeros(1, 513), None, 2, 1, 1, 0, 0.0, 1.0)
    with pytest.raises(UnsupportedError, match="17 chosen"):
        router.router_backward(launcher, torch.zeros(1, 17), torch.zeros(1, 64), torch.zeros(1, 17), 0, 0.0, 1.0)
    with pytest.raises(UnsupportedError, match="too many slots"):
        moe.combine(launcher, _floats(65, 4), None, torch.arange(65)[None], torch.arange(65), None, None)


def test_the_largest_router_and_combine() -> None:
    launcher = TwinLauncher(cores=1)
    logits = _floats(5, 512, dtype=FP32)
    _all_equal(
        router.router(launcher, logits, None, 16, 64, 8, 1 | 8, 0.0, 1.0),
        cpu_router.router(logits, None, 16, 64, 8, 1 | 8, 0.0, 1.0),
    )
    y, ids = _floats(128, 40), _floats(2, 100, dtype=FP32).argsort(1)[:, :64]
    weights, position = _floats(2, 64, dtype=FP32), torch.randperm(128)
    _equal(
        moe.combine(launcher, y, weights, ids, position, None, None),
        cpu_moe.combine(y, weights, ids, position, None, None),
    )


def test_empty_shapes() -> None:
    launcher = TwinLauncher(cores=2)
    no_ids = torch.empty(0, dtype=torch.int64)
    for shape in ((0, 5), (3, 0)):
        x = torch.empty(shape, dtype=BF16)
        weight = torch.ones(shape[1])
        _all_equal(norm.rms_norm(launcher, x, weight, 1e-5, 0.0, False), cpu_norm.rms_norm(x, weight, 1e-5, 0.0, False))
        got = norm.add_rms_norm(launcher, x, x, weight, 1e-5, 0.0, False)
        _all_equal(got, cpu_norm.add_rms_norm(x, x, weight, 1e-5, 0.0, False))
        backward = (x, x, weight, torch.ones(shape[0]), None, 0.0, True, True)
        _all_equal(norm.rms_norm_backward(launcher, *backward), cpu_norm.rms_norm_backward(*backward))
        _equal(activation.glu(launcher, x, x, 0), cpu_activation.glu(x, x, 0))
        _equal(moe.gather(launcher, x, no_ids, 1), cpu_moe.gather(x, no_ids, 1))
        _equal(embedding.embedding(launcher, no_ids, x, None), cpu_embedding.embedding(no_ids, x, None))
        ids = torch.zeros(shape[0], dtype=torch.int64)
        _equal(
            embedding.embedding_backward(launcher, x, ids, 4, 2.0, BF16),
            cpu_embedding.embedding_backward(x, ids, 4, 2.0, BF16),
        )
    logits, slots = torch.empty(0, 9), torch.empty(0, 2, dtype=torch.int64)
    _all_equal(
        logprob.logprob(launcher, logits, None, no_ids, 9, True), cpu_logprob.logprob(logits, None, no_ids, 9, True)
    )
    _all_equal(
        router.router(launcher, logits, None, 2, 1, 1, 0, 0.0, 1.0),
        cpu_router.router(logits, None, 2, 1, 1, 0, 0.0, 1.0),
    )
    y, weights = torch.empty(0, 8), torch.empty(0, 2)
    _equal(
        moe.combine(launcher, y, weights, slots, no_ids, None, None),
        cpu_moe.combine(y, weights, slots, no_ids, None, None),
    )
    _all_equal(moe.combine_backward(launcher, y, y, weights, no_ids), cpu_moe.combine_backward(y, y, weights, no_ids))
    cos = torch.empty(0, 4)
    _equal(
        rope.rope(launcher, torch.empty(0, 2, 8), cos, cos, False, False),
        cpu_rope.rope(torch.empty(0, 2, 8), cos, cos, False, False),
    )
