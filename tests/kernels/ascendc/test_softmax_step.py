"""The online-softmax step alone, in the twin, against the contract in numpy."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from logdiff_kernels.ascendc import cases
from logdiff_kernels.contract.exp import exp1, ln1
from logdiff_kernels.contract.reductions import r64
from logdiff_kernels.twin import build
from logdiff_kernels.twin.library import Argument, Library, Options
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ROWS, STEPS, PER_CHUNK = 24, 6, 3
ZERO, ONE, NEG_INF = np.float32(0), np.float32(1), np.float32(-np.inf)


class _Plan(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("dtype", "rows", "width", "steps", "per_chunk", "slice", "sinks", "reserved")
    ]


def _usable(m: Floats) -> Floats:
    return np.where(m == NEG_INF, ZERO, m)


@np.errstate(all="ignore")
def _contract(scores: Floats, sinks: Floats | None) -> tuple[Floats, list[list[Floats]]]:
    """p [steps, rows, width], and per step m, l, c and after its chunk the totals' m and l."""
    weights, states = np.empty_like(scores), []
    total_m = np.full(ROWS, NEG_INF) if sinks is None else sinks.copy()
    total_l = np.full(ROWS, ZERO if sinks is None else ONE)
    m = total = np.zeros(0, np.float32)
    for i, s in enumerate(scores):
        if i % PER_CHUNK == 0:
            m, total = np.full(ROWS, NEG_INF), np.zeros(ROWS, np.float32)
        high = np.maximum(m, s.max(-1))
        u = _usable(high)
        weights[i] = exp1(s - u[:, None])
        c = exp1(m - u)
        total, m = total * c + r64(weights[i]), high
        if (i + 1) % PER_CHUNK == 0:
            high = np.maximum(total_m, m)
            u = _usable(high)
            total_l = total_l * exp1(total_m - u) + total * exp1(m - u)
            total_m = high
        states.append([m, total, c, total_m.copy(), total_l.copy()])
    return weights, states


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("width", [128, 384, 512])
@pytest.mark.parametrize("arch", build.ARCHS)
def test_steps_chunks_and_totals_are_the_contract_s(arch: int, width: int, sinks: bool) -> None:
    source = cases.Source(width + sinks)
    scores = source.floats(STEPS, ROWS, width, scale=4.0)
    scores[0, 3] = -torch.inf  # a chunk that opens with nothing visible
    scores[:, 5] = -torch.inf  # a row that never sees anything
    scores[:, 7, 1:] = -torch.inf
    scores[PER_CHUNK:, 9] = -torch.inf  # a chunk without a visible key
    scores[2, 11] = 3e38  # exponentials far below the least normal number afterwards
    sink = source.floats(64) if sinks else None
    weights = torch.empty(STEPS, ROWS, width, dtype=torch.bfloat16)
    states = torch.empty(STEPS, 6, 64)
    plan = _Plan(rows=ROWS, width=width, steps=STEPS, per_chunk=PER_CHUNK, slice=16, sinks=sinks)
    library = Library(build.ensure_library(Path(__file__).parent / "softmax_kernel.cpp", arch, exact_exp=True))
    outputs = [Argument(x, initialised=False) for x in (weights, states)]
    library.launch("softmax", [Argument(scores, writable=False), sink, *outputs], plan, 1, Options(cores=1))

    want, want_states = _contract(scores.numpy(), None if sink is None else sink.numpy()[:ROWS])
    assert cases.same_bits(weights, torch.from_numpy(want).to(torch.bfloat16))
    found = states[:, :, :ROWS]
    for step, expected in zip(found, want_states, strict=True):
        for name, got, value in zip(("m", "l", "c"), step, expected, strict=False):
            assert cases.same_bits(got, torch.from_numpy(value)), name
    total_m, total_l = want_states[-1][3:]
    assert cases.same_bits(found[-1, 3], torch.from_numpy(total_m))
    assert cases.same_bits(found[-1, 4], torch.from_numpy(total_l))
    with np.errstate(all="ignore"):
        assert cases.same_bits(found[-1, 5], torch.from_numpy(total_m + ln1(total_l)))
