"""router: the contract's choice, order and weights, the laws of rows, gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels import ops
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.reference import router as exact
from torch import Tensor

from tests.kernels.ops import row_oracle
from tests.kernels.ops.row_laws import check_rows, same
from tests.kernels.oracle import same_bits

DEEPSEEK = RouterSpec(
    4, "sigmoid", renormalize=True, renorm_eps=1e-20, scaling=2.5, groups=4, topk_groups=2, group_score="top2"
)
SPECS = {
    "qwen3": RouterSpec(4, renormalize=True),
    "softmax": RouterSpec(3),
    "gpt-oss": RouterSpec(4, choose_on="logits"),
    "llama4": RouterSpec(1, "sigmoid", choose_on="logits"),
    "deepseek-v2": RouterSpec(4, groups=4, topk_groups=2, scaling=16.0),
    "deepseek-v3": DEEPSEEK,
}


def _logits(tokens: int, experts: int, seed: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, experts, generator=generator) * 3
    if kind == "ties":
        x = x.round()
    if kind == "special":
        pick = torch.randint(0, 12, x.shape, generator=generator)
        for code, value in ((0, float("nan")), (1, float("inf")), (2, -float("inf")), (3, 0.0), (4, -0.0)):
            x = torch.where(pick == code, torch.tensor(value), x)
    return x


@settings(max_examples=120, deadline=None)
@given(
    k=st.integers(1, 6),
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    choose_on=st.sampled_from(["scores", "logits"]),
    renormalize=st.booleans(),
    scaling=st.sampled_from([1.0, 2.5]),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 3), (8, 2)]),
    group_score=st.sampled_from(["max", "top2"]),
    size=st.sampled_from([6, 7, 16]),
    biased=st.booleans(),
    kind=st.sampled_from(["plain", "ties", "special"]),
    seed=st.integers(0, 10**6),
)
def test_router_is_the_contract_to_the_bit(
    k: int,
    scoring: str,
    choose_on: str,
    renormalize: bool,
    scaling: float,
    groups: tuple[int, int],
    group_score: str,
    size: int,
    biased: bool,
    kind: str,
    seed: int,
) -> None:
    spec = RouterSpec(k, scoring, choose_on, renormalize, 1e-20, scaling, *groups, group_score)
    experts = groups[0] * size
    logits = _logits(4, experts, seed, kind)
    bias = torch.randn(experts, generator=torch.Generator().manual_seed(seed)) if biased else None
    weights, ids = ops.router(logits, spec, bias)
    expected, expected_ids = row_oracle.router(logits, spec, bias)
    assert torch.equal(ids, expected_ids)
    assert same_bits(weights, torch.from_numpy(expected))


def test_ties_go_to_the_lower_index_and_nan_comes_first() -> None:
    rule = RouterSpec(3, choose_on="logits")
    assert ops.router(torch.tensor([[0.0, 2.0, -0.0, 2.0, 1.0]]), rule)[1].tolist() == [[1, 3, 4]]
    assert ops.router(torch.tensor([[-0.0, -1.0, 0.0, -1.0]]), rule)[1].tolist() == [[0, 2, 1]]
    assert ops.router(torch.tensor([[9.0, float("nan"), float("inf"), 9.0]]), rule)[1].tolist() == [[1, 2, 0]]


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 0.5]])
    weights, ids = ops.router(logits, RouterSpec(1, "sigmoid"), torch.tensor([0.0, 0.0, 5.0, 0.0]))
    assert ids.tolist() == [[2]]
    assert weights.item() == pytest.approx(torch.sigmoid(torch.tensor(-1.0)).item(), rel=1e-6)


def test_experts_of_groups_that_were_not_chosen_are_never_chosen() -> None:
    spec = RouterSpec(2, "sigmoid", groups=2, topk_groups=1)
    bias = torch.tensor([-3.0, -3.0, -4.0, -4.0])  # every choice value is below 0: a fill with 0 would win
    assert ops.router(torch.zeros(1, 4), spec, bias)[1].tolist() == [[0, 1]]


@pytest.mark.parametrize("name", SPECS)
def test_rows_are_independent_of_batch_threads_and_strides(name: str) -> None:
    bias = torch.randn(32) if name == "deepseek-v3" else None
    check_rows(lambda x: ops.router(x, SPECS[name], bias), _logits(300, 32, 5, "ties"))


@pytest.mark.parametrize("name", SPECS)
def test_gradient_and_weights_are_those_of_fp64(name: str) -> None:
    logits = torch.randn(50, 32).requires_grad_()
    bias = torch.randn(32) if name == "deepseek-v3" else None
    weights, ids = ops.router(logits, SPECS[name], bias)
    d = torch.randn_like(weights)
    weights.backward(d)
    wide = logits.detach().double().requires_grad_()
    expected, _ = exact.router(wide, SPECS[name], bias, ids)
    expected.backward(d.double())
    assert (weights - expected).abs().max() <= 4e-7 * expected.abs().max()
    assert (logits.grad - wide.grad).abs().max() <= 2e-6 * wide.grad.abs().max()


@pytest.mark.parametrize("name", SPECS)
def test_choice_is_that_of_torch_where_nothing_ties(name: str) -> None:
    logits = torch.randn(50, 32, generator=torch.Generator().manual_seed(3))
    bias = torch.linspace(0, 0.1, 32) if name == "deepseek-v3" else None
    assert torch.equal(ops.router(logits, SPECS[name], bias)[1], exact.router(logits, SPECS[name], bias)[1])


def test_training_and_compiled_give_the_bits_of_inference() -> None:
    logits = _logits(9, 32, 6, "plain")
    expected = ops.router(logits, DEEPSEEK)
    same(ops.router(logits.clone().requires_grad_(), DEEPSEEK), expected)
    same(torch.compile(lambda x: ops.router(x, DEEPSEEK), backend="aot_eager")(logits), expected)


def test_operator_passes_opcheck() -> None:
    logits = torch.randn(3, 16).requires_grad_()
    torch.library.opcheck(torch.ops.logdiff.router.default, (logits, torch.randn(16), 4, 4, 2, 5, 1e-20, 2.0))


def test_what_is_not_covered_raises() -> None:
    with pytest.raises(UnsupportedError, match="bfloat16"):
        ops.router(torch.zeros(2, 8).bfloat16(), RouterSpec(2))
    with pytest.raises(InputError, match="top_k"):
        ops.router(torch.zeros(2, 8), RouterSpec(9))
    with pytest.raises(InputError, match="shapes"):
        ops.router(torch.zeros(2, 8), RouterSpec(2), torch.zeros(7))
