"""Matrix products equal the contract's definition bit for bit, and keep its laws."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.contract.linear import rank_leaves, row_leaves
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import linear as reference
from torch import Tensor

from tests.kernels import oracle
from tests.kernels.ops import row_laws

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# k around a vector, a packed panel (256) and a leaf; n around vectors and panels; m around the register tile.
K_EDGES = (0, 1, 2, 7, 8, 15, 16, 17, 33, 64, 100, 128, 255, 256, 257, 272, 320, 576)
N_EDGES = (0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 65)
M_EDGES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 19)


def definition(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, row: bool) -> np.ndarray:
    """The contract in numpy: fused, k ascending, leaves and tree for `linear_row`, bias in fp32, one cast."""
    product = oracle.matmul_row if row else oracle.matmul
    total = product(oracle.array(x), oracle.array(weight))
    if bias is not None:
        with np.errstate(all="ignore"):
            total = total + oracle.array(bias)
    return oracle.cast(total, dtype)


def relaid(x: Tensor, how: int) -> Tensor:
    """The same values: as they are, transposed in memory, with gaps, or without any unit stride."""
    if how == 1:
        return x.mT.contiguous().mT
    if how == 2:
        return row_laws.strided(x)
    if how == 3:
        return row_laws.strided(x.mT.contiguous()).mT
    if how == 4:
        return torch.stack([x, x], -1)[..., 0]
    return x


@settings(max_examples=100, deadline=None)
@given(
    m=st.sampled_from(M_EDGES),
    n=st.sampled_from(N_EDGES),
    k=st.sampled_from(K_EDGES),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 4),
    mixed=st.booleans(),
    bias=st.booleans(),
    row=st.booleans(),
    layout=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    special=st.booleans(),
    plain=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_products_are_the_definition(
    m: int,
    n: int,
    k: int,
    dtypes: tuple[torch.dtype, ...],
    mixed: bool,
    bias: bool,
    row: bool,
    layout: tuple[int, int],
    special: bool,
    plain: bool,
    seed: int,
) -> None:
    x_type, w_type, b_type, out_type = dtypes if mixed else (dtypes[0],) * 4
    x = oracle.hard_values((m, k), x_type, seed, special=special)
    w = oracle.hard_values((n, k), w_type, seed + 1, special=special)
    b = oracle.hard_values((n,), b_type, seed + 2, special=special) if bias else None
    if plain:  # nothing tiny: where faster instructions may serve
        x, w = (torch.where(t.abs() < 1e-3, 1, t).to(t.dtype) for t in (x, w))
    if row:
        out_type = x_type
        got = ops.linear_row(relaid(x, layout[0]), relaid(w, layout[1]), b)
    else:
        got = ops.linear(relaid(x, layout[0]), relaid(w, layout[1]), b, out_type)
    assert got.dtype == out_type
    assert oracle.differing(got, definition(x, w, b, out_type, row)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(40, 72, 300), (3, 150, 1552), (97, 33, 64)])
def test_larger_products_are_the_definition(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, w = (oracle.hard_values((rows, k), dtype, rows) for rows in (m, n))
    assert oracle.differing(ops.linear(x, w), definition(x, w, None, dtype, False)) == 0
    assert oracle.differing(ops.linear_row(x, w), definition(x, w, None, dtype, True)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("product", [ops.linear, ops.linear_row, ops.lm_head])
def test_rows_are_independent(product: row_laws.Rows, dtype: torch.dtype) -> None:
    w, b = oracle.hard_values((75, 192), dtype, 1), oracle.hard_values((75,), dtype, 2)
    for count in (1, 2, 5, 23):
        row_laws.check_rows(lambda x: product(x, w, b), oracle.hard_values((count, 192), dtype, count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_blocks_do_not_depend_on_the_number_of_rows_or_threads(dtype: torch.dtype) -> None:
    x, w = oracle.hard_values((1300, 96), dtype, 3), oracle.hard_values((50, 96), dtype, 4)
    whole = ops.linear_row(x, w)
    parts = [ops.linear_row(part, w) for part in x.split([1, 2, 3, 4, 5, 6, 7, 48, 500, 724])]
    row_laws.same(torch.cat(parts), whole, "rows in blocks of any size")
    for count in (1, 2, 3, 7):
        with row_laws.threads(count):
            row_laws.same(ops.linear_row(x, w), whole, f"{count} threads")


@settings(max_examples=40, deadline=None)
@given(
    k=st.sampled_from((16, 32, 48, 64, 96, 128, 192, 256, 384, 640, 1152)),
    n=st.sampled_from((1, 9, 40)),
    m=st.sampled_from((1, 3, 8)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**20),
)
def test_tensor_parallel_ranks_give_the_bits_of_one(k: int, n: int, m: int, dtype: torch.dtype, seed: int) -> None:
    x, w = oracle.hard_values((m, k), dtype, seed), oracle.hard_values((n, k), dtype, seed + 1)
    b = oracle.hard_values((n,), dtype, seed + 2)
    whole = ops.linear_row(x, w, b)
    ranks = 1
    while ranks <= row_leaves(k):
        leaves = rank_leaves(k, ranks)
        parts = [
            ops.linear_row_partial(xs, ws, leaves) for xs, ws in zip(x.chunk(ranks, 1), w.chunk(ranks, 1), strict=True)
        ]
        assert all(part.dtype == torch.float32 for part in parts)
        row_laws.same(ops.tree_combine(torch.stack(parts), b, dtype), whole, f"{ranks} ranks")
        ranks *= 2


@pytest.mark.parametrize("exponents", [(0, 0), (-56, -55), (-56, -56), (-56, -57), (-57, -57), (-40, -80), (-70, -70)])
@pytest.mark.parametrize("k", [63, 96, 288, 515])
@pytest.mark.parametrize("m", [6, 11, 23])
def test_bf16_products_near_the_subnormal_range(m: int, k: int, exponents: tuple[int, int]) -> None:
    """Dot-product instructions flush subnormals: they may serve only where none can arise, which ends about here."""
    generator = torch.Generator().manual_seed(k)
    x, w = (
        (torch.randint(128, 256, (rows, k), generator=generator).float() * 2.0 ** (exponent - 7))
        * (torch.randint(0, 2, (rows, k), generator=generator) * 2 - 1)
        for rows, exponent in zip((m, 37), exponents, strict=True)
    )
    x[::2, 2:] = 0  # sums that stay as small as they can be: 254 * 254 - 255 * 253 is 1 unit of the last place
    x[:, 0], x[:, 1] = 254 * 2.0 ** (exponents[0] - 7), 255 * 2.0 ** (exponents[0] - 7)
    w[:, 0], w[:, 1] = 254 * 2.0 ** (exponents[1] - 7), -253 * 2.0 ** (exponents[1] - 7)
    x, w = x.bfloat16(), w.bfloat16()
    assert oracle.differing(ops.linear(x, w, None, torch.float32), definition(x, w, None, torch.float32, False)) == 0
    row = ops.linear_row_partial(x, w, row_leaves(k))
    assert oracle.differing(row, definition(x, w, None, torch.float32, True)) == 0
    out = ops.linear(w.mT[:, :m], x.mT)  # unit stride along the output
    assert oracle.differing(out, definition(w.mT[:, :m], x.mT, None, torch.bfloat16, False)) == 0


@pytest.mark.parametrize("k", [72, 1024, 1096])
@pytest.mark.parametrize("m", [*range(1, 18), 31])
def test_few_rows_at_every_stride_of_the_weights(m: int, k: int) -> None:
    """Lines of weights that share places of the cache, leaves that end inside a vector, zeros and small weights."""
    generator = torch.Generator().manual_seed(100 * k + m)
    x, w = torch.randn(m, k, generator=generator).bfloat16(), torch.randn(83, k, generator=generator).bfloat16()
    w[torch.rand(83, k, generator=generator) < 0.05] = 0
    w[40:60] *= 2.0**-90
    for row in (False, True):
        product = ops.linear_row if row else ops.linear
        assert oracle.differing(product(x, w), definition(x, w, None, torch.bfloat16, row)) == 0


def test_leaves_matter() -> None:
    """`linear` and `linear_row` are different sums: else the tests of the tree would prove nothing."""
    x, w = torch.randn(4, 512), torch.randn(64, 512)
    assert oracle.differing(ops.linear(x, w), ops.linear_row(x, w)) > 50


def test_a_planted_ulp_is_seen() -> None:
    x, w = oracle.hard_values((5, 64), torch.float32, 1), oracle.hard_values((9, 64), torch.float32, 2)
    got = ops.linear(x, w)
    got[3, 4] = torch.nextafter(got[3, 4], torch.tensor(torch.inf))
    assert oracle.differing(got, definition(x, w, None, torch.float32, False)) == 1


def test_subnormal_products_are_kept_on_every_thread() -> None:
    x, w = torch.full((64, 64), 1e-25), torch.full((512, 64), 1e-18)
    torch.set_flush_denormal(True)
    try:
        got = ops.linear(x, w)
    finally:
        torch.set_flush_denormal(False)
    assert float(got.min()) > 0
    assert oracle.differing(got[:2, :2], definition(x[:2], w[:2], None, torch.float32, False)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, 0.0), (0.0625, 0.0), (1.0, 30.0), (0.5, 5.0)])
def test_logits_are_scaled_then_capped_in_fp32(dtype: torch.dtype, scale: float, softcap: float) -> None:
    x, w = torch.randn(6, 64).to(dtype), torch.randn(130, 64).to(dtype)
    got = ops.lm_head(x, w, None, scale, softcap)
    assert got.dtype == torch.float32
    exact = reference.lm_head(x, w, None, scale, softcap)
    assert float((got - exact).abs().max()) <= 2.0**-20 * float(exact.abs().max())
    plain = definition(x, w, None, torch.float32, False)
    if not softcap:
        assert oracle.differing(got, plain * np.float32(scale)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_accuracy(dtype: torch.dtype) -> None:
    """Law 10: 1.05 times the stock error, fp32 within sqrt(K) 2^-24 of |x||w|."""
    x, w = torch.randn(64, 1024).to(dtype), torch.randn(256, 1024).to(dtype)
    exact = reference.linear(x, w)
    for product in (ops.linear, ops.linear_row):
        got = product(x, w)
        if dtype == torch.float32:
            size = x.double().norm(dim=1)[:, None] * w.double().norm(dim=1)
            assert row_laws.rms((got - exact) / size) <= 1024**0.5 * 2.0**-24
        else:
            row_laws.check_accuracy(got, torch.nn.functional.linear(x, w), exact)


def test_leading_dimensions_and_vectors() -> None:
    x, w = torch.randn(2, 3, 5, 32), torch.randn(7, 32)
    got = ops.linear(x, w)
    assert got.shape == (2, 3, 5, 7)
    row_laws.same(got.reshape(30, 7), ops.linear(x.reshape(30, 32), w))
    row_laws.same(ops.linear(x[0, 0, 0], w), got[0, 0, 0])
    row_laws.same(ops.linear(x.expand(2, 3, 5, 32)[:, :, :1].expand(2, 3, 4, 32), w), got[:, :, :1].expand(2, 3, 4, 7))


def test_tree_over_partials() -> None:
    parts = torch.randn(8, 3, 5)
    expected = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]))
    row_laws.same(ops.tree_combine(parts, None, torch.float32), expected)
    row_laws.same(ops.tree_combine(parts[:2], torch.ones(5), torch.float16), (parts[0] + parts[1] + 1.0).half())
    row_laws.same(ops.tree_combine(parts.mT.contiguous().mT, None, torch.float32), expected)


def test_what_is_not_covered_is_refused() -> None:
    x, w = torch.randn(2, 8), torch.randn(4, 8)
    with pytest.raises(UnsupportedError, match=r"weight is torch\.int8"):
        ops.linear(x, w.to(torch.int8))
    with pytest.raises(UnsupportedError, match=r"x is torch\.float64"):
        ops.linear(x.double(), w)
    with pytest.raises(UnsupportedError, match="meta"):
        ops.linear(x, w.to("meta"))
    with pytest.raises(InputError, match="shapes"):
        ops.linear(x, w[:, :7])
    with pytest.raises(InputError, match="shapes"):
        ops.linear(x, w, torch.zeros(3))
    with pytest.raises(UnsupportedError, match="leaves"):
        ops.linear_row_partial(x, w, 3)
    with pytest.raises(UnsupportedError, match="power of two"):
        ops.tree_combine(torch.zeros(3, 2, 2), None, torch.float32)


def test_wrapped_tensors_never_reach_the_kernel() -> None:
    """A subclass with its own dispatch (sharded, quantised) has no memory of its own to read: torch decides."""

    class Wrapped(torch.Tensor):
        seen: ClassVar[list[str]] = []

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.seen.append(str(func))
            raise NotImplementedError("wrapped")

    weight = torch.Tensor._make_wrapper_subclass(Wrapped, (4, 8))  # type: ignore[attr-defined]
    with pytest.raises((NotImplementedError, TypeError)):
        ops.linear(torch.randn(2, 8), weight)
    assert Wrapped.seen == ["logdiff.linear.default"]
