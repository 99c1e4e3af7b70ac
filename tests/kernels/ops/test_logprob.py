"""logprob and log_softmax: the contract's bits, tensor-parallel splits, the laws of rows, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import logprob as exact
from torch import Tensor

from tests.kernels.ops import row_oracle
from tests.kernels.ops.row_laws import check_accuracy, check_rows, same, strided, threads
from tests.kernels.oracle import hard_values, same_bits

INF, NAN = float("inf"), float("nan")
VOCABULARIES = st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 100, 511, 512, 513, 1000, 4099])
HEATS = st.sampled_from([1.0, 0.7, 2.0, 0.0, "rows"])


def _logits(rows: int, columns: int, seed: int, kind: str) -> Tensor:
    x = hard_values((rows, columns), torch.float32, seed)
    generator = torch.Generator().manual_seed(seed)
    if kind == "masked":
        x = torch.where(torch.rand(x.shape, generator=generator) < 0.7, torch.tensor(-INF), x)
    if kind == "special":
        pick = torch.randint(0, 3 * columns, x.shape, generator=generator)
        for code, value in ((0, NAN), (1, INF)):
            x = torch.where(pick == code, torch.tensor(value), x)
        x[0] = -INF
    return x


def _heat(heat: Any, rows: int) -> Any:
    return torch.linspace(0.0, 1.5, rows) if heat == "rows" else heat


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 5),
    vocabulary=VOCABULARIES,
    more=st.sampled_from([0, 1, 63, 200]),
    heat=HEATS,
    kind=st.sampled_from(["plain", "masked", "special"]),
    seed=st.integers(0, 10**6),
)
def test_logprob_is_the_contract_to_the_bit(
    rows: int, vocabulary: int, more: int, heat: Any, kind: str, seed: int
) -> None:
    logits = _logits(rows, vocabulary + more, seed, kind)
    ids = torch.randint(0, vocabulary + more, (rows,), generator=torch.Generator().manual_seed(seed))
    t = _heat(heat, rows)
    expected, entropies = (torch.from_numpy(a) for a in row_oracle.log_softmax(logits, t, vocabulary))
    logp, entropy = ops.logprob(logits, ids, t, vocabulary, entropy=True)
    assert same_bits(logp, expected.gather(1, ids[:, None])[:, 0])
    assert same_bits(entropy, entropies)
    assert same_bits(ops.logprob(logits, ids, t, vocabulary), logp)
    assert same_bits(ops.log_softmax(logits, t, vocabulary), expected)
    assert not (logp > 0).any()


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=VOCABULARIES,
    ranks=st.sampled_from([1, 2, 4, 8]),
    heat=HEATS,
    kind=st.sampled_from(["plain", "masked", "special"]),
    padded=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_tensor_parallel_split_gives_the_bits_of_one(
    vocabulary: int, ranks: int, heat: Any, kind: str, padded: bool, seed: int
) -> None:
    logits = _logits(4, vocabulary, seed, kind)
    ids = torch.randint(0, vocabulary, (4,), generator=torch.Generator().manual_seed(seed))
    t = _heat(heat, 4)
    width = (vocabulary + 63) // 64 * 64 // ranks
    whole = torch.cat([logits, torch.full((4, width * ranks - vocabulary), NAN)], dim=1) if padded else logits
    parts = [
        ops.logprob_partial(whole[:, rank * width : (rank + 1) * width], ids, rank, ranks, vocabulary, t, entropy=True)
        for rank in range(ranks)
    ]
    same(ops.logprob_merge(torch.stack(parts), entropy=True), ops.logprob(logits, ids, t, entropy=True))
    same(ops.logprob_merge(torch.stack(parts)), ops.logprob(logits, ids, t))


def test_certain_tokens_are_exactly_zero_and_rows_without_a_token_nan() -> None:
    certain = torch.tensor([[5.0, -INF, -INF]])
    logp, entropy = ops.logprob(certain, torch.tensor([0]), entropy=True)
    assert logp.view(torch.int32).item() == 0
    assert entropy.item() == 0
    assert ops.logprob(torch.full((1, 70), -INF), torch.tensor([3])).isnan().all()
    assert ops.logprob(certain, torch.tensor([2])).item() == -INF


def test_a_width_that_another_engine_pads_to_changes_nothing() -> None:
    logits, ids = torch.randn(3, 1000), torch.tensor([0, 5, 999])
    expected = ops.logprob(logits, ids, 0.7, entropy=True)
    for width in (1024, 1152, 2048):
        wide = torch.full((3, width), 50.0)
        wide[:, :1000] = logits
        same(ops.logprob(wide, ids, 0.7, 1000, entropy=True), expected)


@pytest.mark.parametrize("rows", [3, 64])
def test_rows_are_independent_of_batch_threads_and_strides(rows: int) -> None:
    logits, ids = _logits(rows, 5000, 1, "plain"), torch.randint(0, 5000, (rows,))
    heat = torch.rand(rows) + 0.5
    check_rows(lambda x, i, t: ops.logprob(x, i, t, entropy=True), logits, ids, heat)
    check_rows(lambda x, t: ops.log_softmax(x, t), logits, heat)


def test_a_changed_last_bit_of_one_logit_is_seen() -> None:
    logits, token = torch.zeros(1, 512), torch.tensor([77])
    logits[0, 77] = -20.0
    before = ops.logprob(logits, token)
    logits.view(torch.int32)[0, 77] ^= 1
    assert not same_bits(ops.logprob(logits, token), before)


@pytest.mark.parametrize("heat", [1.0, 0.7, "rows"])
@pytest.mark.parametrize("vocabulary", [5, 100, 1000])
def test_gradients_are_those_of_fp64(vocabulary: int, heat: Any) -> None:
    logits = (torch.randn(6, vocabulary + 7) * 3).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    ids = torch.randint(0, vocabulary, (6,))
    t = torch.linspace(0.5, 1.5, 6) if heat == "rows" else heat
    d, e, g = torch.randn(6), torch.randn(6), torch.randn(6, vocabulary)

    def gradients(module: Any, x: Tensor) -> list[Tensor]:
        logp, entropy = module.logprob(x, ids, t, vocabulary, entropy=True)
        logs = module.log_softmax(x, t, vocabulary)[:, :vocabulary]
        heads = [(logp, d), (entropy, e), (module.logprob(x, ids, t, vocabulary), d), (logs, g)]
        return [torch.autograd.grad(y, x, dy.to(y.dtype), retain_graph=True)[0] for y, dy in heads]

    for ours, theirs in zip(gradients(ops, logits), gradients(exact, wide), strict=True):
        assert (ours - theirs).abs().max() <= 4e-6 * theirs.abs().max()
        assert not ours[:, vocabulary:].any()


def test_gradients_of_masked_columns_are_zero_and_of_threads_independent() -> None:
    logits = _logits(5, 20000, 2, "masked")
    logits[:, 0] = 1.0
    ids = torch.zeros(5, dtype=torch.int64)
    found = []
    for count in (1, 3):
        with threads(count):
            x = logits.clone().requires_grad_()
            logp, entropy = ops.logprob(x, ids, 0.9, entropy=True)
            (logp + entropy).sum().backward()
            found.append(x.grad)
    same(*found)
    assert torch.isfinite(found[0]).all()
    assert not found[0][logits == -INF].any()


def test_training_and_compiled_give_the_bits_of_inference() -> None:
    logits, ids = _logits(4, 1000, 3, "plain"), torch.tensor([1, 2, 3, 999])
    expected = (*ops.logprob(logits, ids, 0.7, entropy=True), ops.log_softmax(logits, 0.7))

    def both(x: Tensor) -> tuple[Tensor, ...]:
        return (*ops.logprob(x, ids, 0.7, entropy=True), ops.log_softmax(x, 0.7))

    same(both(logits.clone().requires_grad_()), expected)
    same(torch.compile(both, backend="aot_eager")(logits), expected)


def test_operators_pass_opcheck() -> None:
    logits, ids = strided(torch.randn(3, 70)).requires_grad_(), torch.tensor([0, 5, 69])
    torch.library.opcheck(torch.ops.logdiff.logprob.default, (logits, ids, torch.rand(3) + 0.5, 70, True))
    torch.library.opcheck(torch.ops.logdiff.logprob.default, (logits, ids, None, 65, False))
    torch.library.opcheck(torch.ops.logdiff.log_softmax.default, (logits, None, 70))


def test_error_is_no_larger_than_that_of_torch() -> None:
    logits, ids = torch.randn(64, 49152) * 4, torch.randint(0, 49152, (64,))
    stock = torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0]
    check_accuracy(ops.logprob(logits, ids), stock, exact.logprob(logits, ids))


def test_what_is_not_covered_raises() -> None:
    logits, ids = torch.zeros(2, 100), torch.tensor([0, 1])
    with pytest.raises(UnsupportedError, match="bfloat16"):
        ops.logprob(logits.bfloat16(), ids)
    with pytest.raises(InputError, match="outside"):
        ops.logprob(logits, torch.tensor([0, 100]))
    with pytest.raises(InputError, match="outside"):
        ops.logprob(logits, torch.tensor([0, -100]))
    with pytest.raises(InputError, match="shapes"):
        ops.logprob(logits, torch.tensor([0, 1, 2]))
    with pytest.raises(UnsupportedError, match="divide"):
        ops.logprob_partial(logits, ids, 0, 3, 300)
    with pytest.raises(UnsupportedError, match="leaves"):
        ops.logprob_partial(torch.zeros(2, 100), ids, 0, 2, 200)
    two = torch.stack([ops.logprob_partial(logits[:, :64], torch.tensor([0, 99]), 0, 2, 100)] * 2)
    with pytest.raises(InputError, match="no rank"):
        ops.logprob_merge(two)
