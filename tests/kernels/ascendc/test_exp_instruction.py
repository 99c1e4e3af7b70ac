"""Vector kernels built with the chip's Exp and Ln, as NPUs run them by default: the laws hold, and values are close.

The twin gives Exp and Ln the fp32 nearest to the exact value or, at random, its neighbour: off by less than one unit in
the last place, as the CPU's are. So two results of one operation differ by less than 2^-22 of their size. Behind the
first difference come at most 16 operations, each of which adds its own rounding; `SCALES` says what the terms of a
result are as large as.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from logdiff_kernels.ascendc import logprob
from logdiff_kernels.ascendc.cases import CASES, Case, same_bits
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.cpu import logprob as cpu
from torch import Tensor

ARCHS = (2201, 3510)
TOLERANCE = 16 * 2.0**-22

Scale = Callable[[tuple[Any, ...], list[Tensor]], list[Tensor]]


def _own(_arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    return [x.abs() for x in results]


def _glu_backward(arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    # act'(g) = sigmoid + g * sigmoid * (1 - sigmoid) * (slope of the argument, for geglu 1.6 (1 + 0.134 g^2))
    dy, gate, up, kind = arguments[:4]
    slope = 1.6 * (1 + 0.134 * gate * gate) if kind == 1 else torch.full_like(gate, 1.702)
    return [dy.abs() * (up.abs() + (kind == 2)) * (1 + gate.abs() * slope), results[1].abs()]


def _merge(arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    m, s, h = arguments[0].unbind(-1)
    below = torch.where(m == -torch.inf, 0.0, m.amax(1, keepdim=True) - m)
    terms = (h.abs() + s.abs() * below).sum(1)
    return [torch.stack([results[0][:, 0].abs(), results[0][:, 1].abs(), terms], 1)]


def _logarithms(_arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    # a difference of terms below 100 + |result|: z - u is above -100 where exp(z - u) is not 0
    return [100 + x.abs() for x in results]


def _through_z(temperature: Tensor, stats: Tensor, d: Tensor) -> Tensor:
    # p <= 1 and -p log p <= 1; p follows z = logits / T, which is off by a part of its size; then divided by T
    return d * (1 + stats[:, 0].abs()) / torch.where(temperature == 0, 1.0, temperature)


def _logprob_backward(arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    _, temperature, stats, _, dlogp, entropy, dentropy, _ = arguments
    d = dlogp.abs() + dentropy.abs() * (2 + entropy.abs())
    return [_through_z(temperature, stats, d)[:, None].expand_as(results[0])]


def _log_softmax_backward(arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    _, temperature, stats, dout, _ = arguments
    return [_through_z(temperature, stats, dout.abs().sum(1))[:, None].expand_as(results[0])]


def _router_backward(arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    dweights, _, _, _, _, scaling = arguments
    return [(dweights.abs().sum(1, keepdim=True) * scaling).expand_as(results[0])]


def _capped(arguments: tuple[Any, ...], results: list[Tensor]) -> list[Tensor]:
    # 1 - exp(-2|x|) is a difference of terms of at most 1, times the cap
    return [x.abs() + arguments[2] for x in results]


SCALES: dict[str, Scale] = {
    "glu": _own,
    "glu_backward": _glu_backward,
    "logprob": _logarithms,
    "stats": _own,
    "merge": _merge,
    "finish": _logarithms,
    "log_softmax": _logarithms,
    "logprob_backward": _logprob_backward,
    "log_softmax_backward": _log_softmax_backward,
    "router": _own,
    "router_backward": _router_backward,
    "scale_cap_": _capped,
}
EXP_CASES = [c for c in CASES if c.function in SCALES]


def _arguments(case: Case, length: int) -> tuple[Any, ...]:
    """Inputs as they occur: statistics of the logits; no subnormal exp, which Exp gives and exp1 does not."""
    found = list(case.arguments(length, torch.float32, 11))
    if case.part == "router":
        found[int(case.function == "router_backward")].clamp_(-30, 30)
    elif case.function == "finish":
        found[0][:-1, 1].clamp_(min=1.0)  # the largest logit's exp
    elif case.function in ("log_softmax", "logprob_backward", "log_softmax_backward"):
        found[2] = cpu.stats(found[0], found[1], found[0].shape[1], True)
    return tuple(found)


def _one_row(arguments: tuple[Any, ...], rows: int, row: int) -> tuple[Any, ...]:
    return tuple(x[row : row + 1] if isinstance(x, Tensor) and x.shape[0] == rows else x for x in arguments)


@pytest.mark.parametrize("arch", [2201, pytest.param(3510, marks=pytest.mark.slow(seconds=10))])
@pytest.mark.parametrize("case", EXP_CASES, ids=lambda case: case.name)
def test_laws_hold_and_values_are_close_to_the_cpus(case: Case, arch: int) -> None:
    one, many = (TwinLauncher(arch, n, seed=n, exact_exp=False, perturb=True) for n in (1, 40))
    differ = False
    for length in (70, 520):
        results = case.on_launcher(one, _arguments(case, length))
        others = case.on_launcher(many, _arguments(case, length))
        alone = case.on_launcher(one, _one_row(_arguments(case, length), results[0].shape[0], 1))
        for got, other, single in zip(results, others, alone, strict=True):
            assert same_bits(got, other)
            assert same_bits(got[1:2], single)
        want = case.on_cpu(_arguments(case, length))
        if "special" in case.name:
            continue
        for got, near, scale in zip(results, want, SCALES[case.function](_arguments(case, length), want), strict=True):
            if not got.is_floating_point():
                assert torch.equal(got, near)
                continue
            assert torch.equal(got.isfinite(), near.isfinite())
            off = (got.double() - near.double()).abs() > TOLERANCE * scale.double() + 2.0**-140
            assert not bool((off & near.isfinite()).any())
            differ |= not same_bits(got, near)
    assert differ or "special" in case.name, "Exp and Ln weren't used"


@pytest.mark.parametrize("arch", ARCHS)
def test_no_log_probability_is_above_zero(arch: int) -> None:
    launcher = TwinLauncher(arch, cores=2, exact_exp=False, perturb=True)
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)) * 3
    ids = torch.arange(40)
    logits[ids, ids] = torch.linspace(5, 40, 40)
    logp, entropy, _ = logprob.logprob(launcher, logits, None, ids, 300, True)
    assert bool((logp <= 0).all())
    assert bool((logp[-1:] == 0).all())
    assert entropy is not None
    assert bool((entropy >= 0).all())
