"""attention, paged_attention, store_kv: the contract's bits and the laws of a provider."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import attention as exact
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.kernels.ops import attention_oracle as oracle
from tests.kernels.ops.attention_cases import Case, draw, pages_for, starts
from tests.kernels.ops.row_laws import same, threads
from tests.kernels.oracle import array, same_bits

SEEDS = st.integers(0, 10**6)


def check_rows(case: Case, count: int, seed: int) -> None:
    """`count` rows of each sequence against the transcription."""
    out, lse = case.run()
    rng = random.Random(seed)
    for q_rows, k_rows in case.sequences():
        queries, keys = q_rows.stop - q_rows.start, k_rows.stop - k_rows.start
        picked = np.array(sorted(rng.sample(range(queries), min(count, queries))), np.int64)
        if not picked.size:
            continue
        rows = torch.from_numpy(picked) + q_rows.start
        want, want_lse = oracle.attention(
            case.q[rows], picked + keys - queries, case.k[k_rows], case.v[k_rows], case.options, case.sinks
        )
        assert same_bits(array(out[rows]), want)
        assert same_bits(array(lse[rows]), want_lse)


@settings(max_examples=16, deadline=None)
@given(SEEDS, st.booleans())
def test_attention_is_the_contract_to_the_bit(seed: int, chunked: bool) -> None:
    check_rows(draw(seed, sequences=2, chunked=chunked, special=seed % 3 == 0), 4, seed)


@pytest.mark.parametrize("keys", [4095, 4096, 4097])
def test_rows_around_a_chunk_are_the_contract(keys: int) -> None:
    case = draw(keys, lengths=(keys,), sequences=1)
    case.cu_q, case.q = starts([2]), case.q[:2]
    check_rows(case, 2, keys)


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("keys", [8191, 8192, 8193, 12300])
def test_rows_over_several_chunks_are_the_contract(keys: int) -> None:
    for seed in range(4):
        case = draw(keys + seed, lengths=(keys,), sequences=1)
        case.cu_q, case.q = starts([3]), case.q[:3]
        check_rows(case, 3, keys)


@pytest.mark.slow(seconds=120)
def test_many_more_rows_are_the_contract() -> None:
    for seed in range(150):
        check_rows(draw(seed + 10**7, chunked=seed % 2 == 0, special=seed % 3 == 0), 6, seed)


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_prefill_is_any_chunks_is_decode_over_pages(seed: int) -> None:
    """Laws 2 to 4: the rows of a sequence in pieces, each after its keys were stored, over pages of any layout."""
    case, rng = draw(seed, causal=True), random.Random(seed)
    whole, _ = case.run()
    pages = pages_for(case, seed)
    spans = case.sequences()
    done = [0] * len(spans)
    largest = rng.choice([1, 40, 300])
    if largest == 1:  # token by token is slow to drive from Python: the first keys come as one chunk
        done = [max(0, k.stop - k.start - 12) for _, k in spans]
        for b, (_, k) in enumerate(spans):
            rows = slice(k.start, k.start + done[b])
            ops.store_kv(case.k[rows], case.v[rows], pages.k, pages.v, pages.slots(b, 0, done[b]))
    compared = 0
    while any(n < k.stop - k.start for n, (_, k) in zip(done, spans, strict=True)):
        take = [min(rng.randint(0, largest), k.stop - k.start - n) for n, (_, k) in zip(done, spans, strict=True)]
        rows = torch.cat(
            [torch.arange(k.start + n, k.start + n + t) for n, t, (_, k) in zip(done, take, spans, strict=True)]
        )
        slots = torch.cat([pages.slots(b, done[b], done[b] + t) for b, t in enumerate(take)])
        ops.store_kv(case.k[rows], case.v[rows], pages.k, pages.v, slots)
        done = [n + t for n, t in zip(done, take, strict=True)]
        got = ops.paged_attention(
            case.q[rows], pages.k, pages.v, pages.table, starts(take).int(), torch.tensor(done).int(), **case.arguments
        )
        same(got, whole[rows], "paged")
        compared += len(rows)
    assert compared or not case.q.numel() or largest == 1


def test_a_prefix_that_is_already_in_the_cache_gives_the_same_rows() -> None:
    case = draw(3, lengths=(300,), sequences=1, causal=True)
    whole, _ = case.run()
    pages = pages_for(case, 3, block=32)
    ops.store_kv(case.k, case.v, pages.k, pages.v, pages.slots(0, 0, 300))
    got = ops.paged_attention(
        case.q[256:], pages.k, pages.v, pages.table, torch.tensor([0, 44]), torch.tensor([300]), **case.arguments
    )
    same(got, whole[256:])


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.booleans())
def test_a_sequence_does_not_depend_on_its_batch(seed: int, chunked: bool) -> None:
    """Laws 1 and 3: alone, in another order, beside NaN."""
    case = draw(seed, chunked=chunked)
    out, lse = case.run()
    spans = case.sequences()
    for q, k in spans:
        alone = case.run(
            q=case.q[q], k=case.k[k], v=case.v[k], cu_q=starts([q.stop - q.start]), cu_k=starts([k.stop - k.start])
        )
        same(alone, (out[q], lse[q]), "alone")
    order = random.Random(seed).sample(range(len(spans)), len(spans))
    moved_q = torch.cat([torch.arange(spans[b][0].start, spans[b][0].stop) for b in order])
    moved_k = torch.cat([torch.arange(spans[b][1].start, spans[b][1].stop) for b in order])
    moved = case.run(
        q=case.q[moved_q],
        k=case.k[moved_k],
        v=case.v[moved_k],
        cu_q=starts([spans[b][0].stop - spans[b][0].start for b in order]),
        cu_k=starts([spans[b][1].stop - spans[b][1].start for b in order]),
    )
    same(moved, (out[moved_q], lse[moved_q]), "another order")
    nan = float("nan")
    q, k, v = (
        (torch.cat([torch.full_like(x[:1].expand(3, -1, -1), nan), x, x[:1] * nan]) for x in (case.q, case.k, case.v))
        if case.q.numel()
        else (case.q, case.k, case.v)
    )
    if case.q.numel():
        beside = case.run(q=q, k=k, v=v, cu_q=_with_three(case.cu_q), cu_k=_with_three(case.cu_k))
        same(tuple(x[3 : 3 + len(out)] for x in beside), (out, lse), "beside NaN")


def _with_three(cu: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=cu.dtype), cu + 3])


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_the_bits_do_not_depend_on_threads_strides_or_the_run(seed: int) -> None:
    """Laws 5 and 8."""
    case = draw(seed, chunked=seed % 2 == 0)
    want = case.run()
    for count in (1, 3, 7):
        with threads(count):
            same(case.run(), want, f"{count} threads")
    same(case.run(), want, "run to run")
    wide = [torch.zeros(x.shape[0], x.shape[1], x.shape[2] + 3, dtype=x.dtype) for x in (case.q, case.k, case.v)]
    for target, x in zip(wide, (case.q, case.k, case.v), strict=True):
        target[..., 1:-2] = x
    same(case.run(**{n: w[..., 1:-2] for n, w in zip("qkv", wide, strict=True)}), want, "rows apart")
    scattered = {
        n: x.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        for n, x in zip("qkv", (case.q, case.k, case.v), strict=True)
    }
    same(case.run(**scattered), want, "no unit stride")


def test_subnormals_are_kept_when_torch_flushes_them() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(40, 2, 16), torch.randn(40, 2, 16)
    v = torch.randn(40, 2, 16) * 1e-39
    want = ops.attention(q, k, v, starts([40]), scale=0.25)
    assert bool((want != 0).any())
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU can't flush subnormals")
    try:
        got = ops.attention(q, k, v, starts([40]), scale=0.25)
    finally:
        torch.set_flush_denormal(False)
    same(got, want)


def test_long_rows_are_cut_into_chunks_over_threads_without_changing_bits() -> None:
    case = draw(11, lengths=(8200,), sequences=1, causal=True)
    case.cu_q, case.q = starts([1]), case.q[:1]
    want = case.run()
    for count in (1, 2, 5):
        with threads(count):
            same(case.run(), want, f"{count} threads")


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_training_forward_is_inference_forward(seed: int) -> None:
    """Law 9."""
    case = draw(seed)
    want = case.run()
    q, k, v = (x.clone().requires_grad_() for x in (case.q, case.k, case.v))
    same(tuple(x.detach() for x in case.run(q=q, k=k, v=v)), want)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_a_row_depends_on_the_keys_that_it_sees_and_no_others(tensor: str, bad: float) -> None:
    """Non-finite keys and values out of sight (later, out of the window, padding) reach no row; in sight they do."""
    case = draw(21, lengths=(100,), sequences=1, causal=True)
    case.options = oracle.Options(case.options.scale, window=30)
    clean, _ = case.run()
    spoiled = getattr(case, tensor).clone()
    spoiled[50] = bad
    out, _ = case.run(**{tensor: spoiled})
    unseen = [i for i in range(100) if not 50 <= i < 80]
    same(out[unseen], clean[unseen])
    if not (tensor == "k" and bad < 0):
        assert bool((~torch.isfinite(out[50:80].float())).any(dim=(1, 2)).all())


def test_memory_past_the_end_of_a_sequence_is_never_read() -> None:
    case = draw(5, lengths=(37,), sequences=1, causal=False)
    pages = pages_for(case, 5, block=16)
    ops.store_kv(case.k, case.v, pages.k, pages.v, pages.slots(0, 0, 37))
    got = ops.paged_attention(case.q, pages.k, pages.v, pages.table, case.cu_q, torch.tensor([37]), **case.arguments)
    same(got, case.run()[0])
    assert bool(torch.isnan(pages.k.float()).any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_absorbed_mla_shares_one_latent(dtype: torch.dtype) -> None:
    """128 heads would only repeat: 5 query heads over one latent of 512 + 64 dims, values its first 512."""
    torch.manual_seed(0)
    q, latent = torch.randn(20, 5, 576).to(dtype), torch.randn(20, 1, 576).to(dtype)
    out, _ = ops.attention(q, latent, latent[..., :512], starts([20]), scale=192**-0.5, return_lse=True)
    want, _ = oracle.attention(
        q[18:], np.arange(18, 20), latent, latent[..., :512], oracle.Options(scale=192**-0.5), None
    )
    assert same_bits(array(out[18:]), want)


def test_rows_without_keys_are_zero() -> None:
    q, k = torch.randn(3, 2, 8), torch.randn(1, 1, 8)
    sinks = torch.tensor([0.5, 1.0])
    out, lse = ops.attention(q, k, k, starts([3]), starts([1]), scale=1.0, sinks=sinks, return_lse=True)
    assert torch.equal(out[:2], torch.zeros(2, 2, 8))
    assert not torch.signbit(out[:2]).any()
    assert torch.equal(lse[:2], torch.full((2, 2), -torch.inf))
    assert torch.isfinite(lse[2]).all()
    empty = ops.attention(q[:0], k[:0], k[:0], starts([0, 0]), scale=1.0)
    assert empty.shape == (0, 2, 8)


def test_rows_past_the_last_sequence_are_zero() -> None:
    q, k = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    out, lse = ops.attention(q, k, k, starts([3]), scale=1.0, return_lse=True)
    assert torch.equal(out[3:], torch.zeros(2, 2, 8))
    assert torch.equal(lse[3:], torch.full((2, 2), -torch.inf))


def test_a_given_output_is_written_in_place_and_its_tail_is_left() -> None:
    case = draw(8, lengths=(33,), sequences=1, causal=True)
    pages = pages_for(case, 8)
    ops.store_kv(case.k, case.v, pages.k, pages.v, pages.slots(0, 0, 33))
    buffer = torch.full((35, case.q.shape[1], case.v.shape[2] + 1), 7.0, dtype=case.q.dtype)
    target = buffer[..., :-1]
    q = torch.cat([case.q, case.q[:2]])
    got = ops.paged_attention(
        q, pages.k, pages.v, pages.table, case.cu_q, torch.tensor([33]), out=target, **case.arguments
    )
    assert got is target
    same(target[:33], case.run()[0])
    assert bool((buffer[33:] == 7).all())
    assert bool((buffer[..., -1] == 7).all())


def test_store_kv_writes_rows_and_skips_negative_slots() -> None:
    torch.manual_seed(1)
    k, v = torch.randn(6, 2, 4).transpose(0, 1).contiguous().transpose(0, 1), torch.randn(6, 2, 3)
    mine = [torch.zeros(3, 4, 2, 4), torch.zeros(3, 2, 4, 3).transpose(1, 2)]
    want = [x.clone() for x in mine]
    slots = torch.tensor([11, -1, 0, 5, 4], dtype=torch.int32)
    ops.store_kv(k, v, *mine, slots)
    exact.store_kv(k, v, *want, slots)
    assert torch.equal(mine[0], want[0])
    assert torch.equal(mine[1], want[1])
    assert int((mine[0] != 0).any(dim=(2, 3)).sum()) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 64), (8, 2, 128), (9, 3, 64)])
def test_error_against_fp64_is_that_of_stock_attention(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    """Law 10: rms error at most 1.05 times stock's for 16-bit outputs, 2 times or 2^-22 for fp32."""
    torch.manual_seed(dim)
    q, k, v = (torch.randn(700, h, dim).to(dtype) for h in (heads, kv_heads, kv_heads))
    want = exact.attention(q, k, v, starts([700]), scale=dim**-0.5)
    assert isinstance(want, Tensor)
    ours = ops.attention(q, k, v, starts([700]), scale=dim**-0.5)
    stock = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)
    error, stock_error = (float((x.double() - want).pow(2).mean().sqrt()) for x in (ours, stock))
    scale = float(want.pow(2).mean().sqrt())
    assert error <= (1.05 * stock_error if dtype != torch.float32 else max(2 * stock_error, 2**-22 * scale))


@pytest.mark.parametrize("seed", range(4))
def test_the_fp64_reference_is_near(seed: int) -> None:
    case = draw(seed * 7, lengths=(65, 130))
    torch.manual_seed(seed)
    case.q, case.k, case.v = (torch.randn(x.shape) for x in (case.q, case.k, case.v))
    out, lse = case.run()
    want, want_lse = exact.attention(case.q, case.k, case.v, case.cu_q, case.cu_k, return_lse=True, **case.arguments)
    assert isinstance(want, Tensor)
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-4, atol=1e-5)


def test_the_operators_pass_opcheck_and_compile() -> None:
    q, k, v = (torch.randn(9, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    cu, sinks = starts([4, 5]), torch.randn(4, requires_grad=True)
    torch.library.opcheck(torch.ops.logdiff.attention.default, (q, k, v, cu, None, 0.25, True, 3, 2.0, sinks))
    pages = torch.randn(2, 8, 2, 16)
    table, lengths = torch.tensor([[0], [1]], dtype=torch.int32), torch.tensor([4, 5], dtype=torch.int32)
    torch.library.opcheck(
        torch.ops.logdiff.paged_attention.default,
        (q.detach(), pages, pages, table, cu, lengths, 0.25, True, 0, 0.0, None),
    )
    caches = torch.zeros(2, 8, 2, 16), torch.zeros(2, 8, 2, 16)
    torch.library.opcheck(torch.ops.logdiff.store_kv.default, (k.detach(), k.detach(), *caches, torch.arange(9)))

    def call(q: Tensor, k: Tensor) -> Tensor:
        return ops.attention(q * 1.0, k, k, cu, scale=0.25) + 0.0

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    same(compiled(q, k).detach(), call(q, k).detach())


def _paged(**changes: object) -> Tensor:
    arguments: dict[str, object] = {
        "q": torch.zeros(2, 2, 8),
        "k_cache": torch.zeros(3, 4, 1, 8),
        "v_cache": torch.zeros(3, 4, 1, 8),
        "block_table": torch.tensor([[0, 2]], dtype=torch.int32),
        "cu_q": torch.tensor([0, 2]),
        "seq_lens": torch.tensor([7]),
        **changes,
    }
    return ops.paged_attention(**arguments, scale=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"cu_q": torch.tensor([0, 3])},
        {"cu_q": torch.tensor([1, 2])},
        {"cu_q": torch.tensor([0, 2], dtype=torch.int32), "seq_lens": torch.tensor([9], dtype=torch.int32)},
        {"seq_lens": torch.tensor([9])},
        {"seq_lens": torch.tensor([-1])},
        {"block_table": torch.tensor([[0, 3]], dtype=torch.int32)},
        {"block_table": torch.tensor([[0, -1]], dtype=torch.int32)},
        {"block_table": torch.tensor([[0, 2, 0, 0]], dtype=torch.int32)[:, :1]},
        {"seq_lens": torch.tensor([], dtype=torch.int64)},
        {"q": torch.zeros(2, 3, 9)},
        {"v_cache": torch.zeros(2, 4, 1, 8)},
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Tensor]) -> None:
    assert _paged().shape == (2, 2, 8)
    with pytest.raises(InputError):
        _paged(**changes)


def test_what_the_contract_does_not_cover_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        _paged(k_cache=torch.zeros(3, 4, 1, 8).to(torch.float8_e4m3fn))
    with pytest.raises(UnsupportedError):
        _paged(k_cache=torch.zeros(3, 4, 1, 16)[..., ::2])
    with pytest.raises(UnsupportedError):
        ops.attention(*(torch.zeros(2, 1, 8, dtype=torch.float64),) * 3, starts([2]), scale=1.0)
    with pytest.raises(InputError):
        ops.attention(torch.zeros(2, 3, 8), *(torch.zeros(2, 2, 8),) * 2, starts([2]), scale=1.0)
    with pytest.raises(InputError):
        ops.attention(*(torch.zeros(2, 2, 8),) * 3, starts([2]), scale=1.0, sinks=torch.zeros(3))
    with pytest.raises(InputError):
        ops.attention(*(torch.zeros(2, 2, 8),) * 3, starts([2]), scale=1.0, window=-1)
