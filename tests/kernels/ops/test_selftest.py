"""The self-test sees a kernel that breaks a law."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.ops import selftest
from torch import Tensor


def broken(law: str) -> Any:
    stock = ops.rms_norm
    calls = 0

    def one_ulp_more(y: Tensor) -> Tensor:
        return (y.view(torch.int16 if y.element_size() == 2 else torch.int32) + 1).view(y.dtype)

    def call(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        nonlocal calls
        calls += 1
        y = stock(x, weight, eps)
        if law == "one row = many rows" and x.shape[0] == 1:
            return one_ulp_more(y)
        if law == "any order of rows":
            return torch.cat([one_ulp_more(y[:1]), y[1:]])
        if law == "any neighbours, NaN too" and bool(x.isnan().any()):
            return one_ulp_more(y)
        if law == "any number of threads" and torch.get_num_threads() == 1:
            return one_ulp_more(y)
        if law == "any strides" and not x.is_contiguous():
            return one_ulp_more(y)
        if law == "run to run" and calls % 2:
            return one_ulp_more(y)
        return y * 1.05 if law == "rounding against fp64" else y

    return call


LAWS = [
    "one row = many rows",
    "any order of rows",
    "any neighbours, NaN too",
    "any number of threads",
    "any strides",
    "run to run",
    "rounding against fp64",
]


@pytest.mark.parametrize("law", LAWS)
def test_a_norm_that_breaks_a_law_is_seen(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    monkeypatch.setattr(ops, "rms_norm", broken(law))
    checks = [(name, check) for kernel, name, check in selftest._checks() if kernel == "rms_norm 96/bfloat16"]
    assert [name for name, _ in checks] == LAWS
    seen = {name for name, check in checks if check()}
    assert law in seen
    if law in ("one row = many rows", "any neighbours, NaN too", "any number of threads", "any strides"):
        assert seen == {law}, "and no other law is blamed"


def test_a_kernel_that_raises_fails_its_law_and_not_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> str:
        raise ValueError("no such shape")

    monkeypatch.setattr(selftest, "_checks", lambda: iter([("linear", "run to run", check)]))
    found = selftest.run()
    assert found["failed"] == 1
    assert found["laws"] == [
        {"kernel": "linear", "law": "run to run", "ok": False, "detail": "ValueError: no such shape"}
    ]


def test_bits_are_compared_and_not_values() -> None:
    zero, minus = torch.zeros(3), -torch.zeros(3)
    assert selftest.same_bits(zero, zero) == ""
    assert "3 of 3 values differ" in selftest.same_bits(zero, minus)
    nan, other = torch.tensor([float("nan")]), torch.tensor([2143289345], dtype=torch.int32).view(torch.float32)
    assert selftest.same_bits(nan, other) == ""
