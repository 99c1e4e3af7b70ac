"""Arguments that would make a kernel read elsewhere, or a result mean something else, raise before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError, UnsupportedError
from torch import Tensor
from torch.autograd import forward_ad

from tests.kernels.ops.row_laws import same

Y, W = torch.randn(4, 8), torch.ones(2, 2)
IDS, AT = torch.tensor([[0, 1], [2, 3]]), torch.arange(4)
HUGE = 10**7
EXPERTS = (torch.randn(4, 8, 8), torch.randn(4, 8, 4))
HEADS = torch.randn(4, 2, 32)


def _pages(block: int, table: Tensor, lengths: Tensor) -> Tensor:
    cache = torch.randn(3, block, 2, 32)
    return ops.paged_attention(HEADS, cache, cache, table, torch.tensor([0, 4]), lengths, scale=1.0)


TABLE, LENGTHS = torch.zeros(1, 2, dtype=torch.int32), torch.tensor([4])

REFUSED: dict[str, Callable[[], object]] = {
    "a position beyond the rows": lambda: ops.moe_combine(Y, W, IDS, torch.tensor([0, 1, 2, HUGE])),
    "positions of 32 bits": lambda: ops.moe_combine(Y, W, IDS.int(), AT.int()),
    "an id without a logical expert": lambda: ops.moe_combine(Y, W, IDS * HUGE, AT, torch.tensor([0, 1])),
    "another number of positions": lambda: ops.moe_combine(Y, W, IDS, AT[:3]),
    "a shared expert of fewer rows": lambda: ops.moe_combine(Y, W, IDS, AT, None, Y[:1]),
    "weights of fewer tokens": lambda: ops.moe_combine_slots(Y.view(2, 2, 8), W[:1], IDS),
    "ids of more tokens than rows": lambda: ops.moe_rows(Y, IDS[:1].expand(HUGE // 100, 2), *EXPERTS, 1),
    "a gradient's position beyond the rows": lambda: torch.ops.logdiff.moe_combine_backward(
        torch.randn(2, 8), Y, W, torch.tensor([0, 1, 2, HUGE])
    ),
    "a gradient's groups that fall": lambda: torch.ops.logdiff.grouped_weight_grad(
        Y, Y, torch.tensor([0, HUGE, 4]), torch.float32
    ),
    "a bias gradient's groups that fall": lambda: torch.ops.logdiff.grouped_bias_grad(
        Y, torch.tensor([0, HUGE, 4]), torch.float32
    ),
    "blocks of no rows": lambda: _pages(0, TABLE, LENGTHS),
    "a block beyond 32 bits": lambda: _pages(16, TABLE.long() + 2**32, LENGTHS),
    "lengths that aren't integers": lambda: _pages(16, TABLE, torch.tensor([4.5])),
    "no query heads": lambda: ops.attention(HEADS[:, :0], HEADS, HEADS, torch.tensor([0, 4]), scale=1.0),
    "fewer logits than the vocabulary": lambda: ops.logprob(Y, AT, vocab_size=9),
    "fewer columns than the vocabulary": lambda: ops.log_softmax(Y, vocab_size=9),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        REFUSED[name]()


def test_a_result_of_another_dtype_is_refused_by_name() -> None:
    for call in (
        lambda: ops.linear(Y, Y, None, torch.float64),
        lambda: ops.grouped_linear(Y, torch.tensor([0, 4]), Y[None], out_dtype=torch.int8),
    ):
        with pytest.raises(UnsupportedError, match=r"float64|int8"):
            call()


def test_a_view_of_negated_memory_is_its_value() -> None:
    """The imaginary part of a lazy conjugate: torch keeps the memory and a bit that says minus."""
    x = torch.view_as_complex(torch.randn(4, 64, 2)).conj().imag
    assert x.is_neg()
    plain, w, table = x.resolve_neg(), torch.randn(8, 64), torch.randn(4, 16)
    heads, starts = (lambda t: t.view(4, 2, 32)), torch.tensor([0, 4])
    same(ops.linear(x, w), ops.linear(plain, w))
    same(ops.linear(w, x), ops.linear(w, plain))
    same(ops.swiglu(x, x), ops.swiglu(plain, plain))
    same(ops.rope(heads(x), table, table), ops.rope(heads(plain), table, table))
    same(ops.attention(*[heads(x)] * 3, starts, scale=1.0), ops.attention(*[heads(plain)] * 3, starts, scale=1.0))
    same(ops.logprob(x, starts.repeat(2)), ops.logprob(plain, starts.repeat(2)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.linear(x, Y),
        lambda x: ops.rms_norm(x, None, 1e-6),
        lambda x: ops.attention(*[x.view(4, 1, 8)] * 3, torch.tensor([0, 4]), scale=1.0),
    ],
)
def test_a_tangent_is_never_dropped(call: Callable[[Tensor], Tensor]) -> None:
    with forward_ad.dual_level():
        call(Y)
        with pytest.raises(UnsupportedError, match="forward-mode"):
            call(forward_ad.make_dual(Y, Y))


def test_a_forked_child_computes_after_its_parent_did() -> None:
    code = """
import os, signal, torch
from logdiff_kernels import ops
torch.set_num_threads(2)
x, w = torch.randn(512, 512), torch.randn(512, 512)
expected = ops.linear(x, w).numpy().tobytes()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if ops.linear(x, w).numpy().tobytes() == expected else 1)
assert os.waitpid(child, 0)[1] == 0
assert ops.linear(x, w).numpy().tobytes() == expected
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={k: v for k, v in os.environ.items() if k != "LOGDIFF_CPU_POOL"},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
