"""Rows and features that are wrong are described by the simplest rule that they follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from logdiff_kernels.check.given import Rows
from logdiff_kernels.check.structure import features, onset

NAMES = ["a", "b", "c"]


def _rows() -> tuple[Rows, torch.Tensor]:
    """Three samples of 40 rows whose first ten are one prefill and the rest decode steps."""
    sample = torch.arange(3).repeat_interleave(40)
    position = torch.arange(40).repeat(3)
    passed = (position - 9).clamp(min=0) + 100 * sample
    rows = Rows(sample, position, position, position, position, passed)
    return rows, position < 10


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda r: torch.ones(120, dtype=torch.bool), {"kind": "all"}),
        (lambda r: r.position >= 10, {"kind": "decode"}),
        (lambda r: r.position < 10, {"kind": "prefill"}),
        (lambda r: r.position >= 24, {"kind": "position-from", "position": 24}),
        (lambda r: r.position < 5, {"kind": "position-below", "position": 5}),
        (lambda r: r.sample == 1, {"kind": "samples", "samples": ["b"]}),
        (
            lambda r: (r.sample == 2) & (r.position >= 30),
            {"kind": "samples-position-from", "position": 30, "samples": ["c"]},
        ),
        (lambda r: r.position % 4 == 3, {"kind": "periodic", "of": "position", "period": 4, "phase": 3}),
    ],
)
def test_a_rule_is_told(rule: Callable[[Rows], torch.Tensor], expected: dict[str, object]) -> None:
    rows, first = _rows()
    assert onset(rule(rows), rows, first, NAMES) == expected


def test_no_row_off_has_no_onset() -> None:
    rows, first = _rows()
    assert onset(torch.zeros(120, dtype=torch.bool), rows, first, NAMES) is None


def test_rows_without_a_rule_are_scattered() -> None:
    rows, first = _rows()
    off = torch.rand(120, generator=torch.Generator().manual_seed(0)) < 0.3
    found = onset(off, rows, first, NAMES)
    assert found is not None
    assert found["kind"] == "scattered"
    assert found["share"] == pytest.approx(float(off.double().mean()))


def test_wrong_heads_and_features_are_named() -> None:
    units = torch.full((6, 32), 0.3, dtype=torch.float64)
    units[:, 8:16] = 20.0
    assert features(units, 4, 3.0) == {"heads": [1], "of": 4}
    found = features(units, None, 3.0)
    assert found is not None
    assert found["features"] == [8, 16]
    assert features(torch.full((6, 32), 20.0, dtype=torch.float64), 4, 3.0) is None
