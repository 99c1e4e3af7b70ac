"""A matched filter finds what is far below the noise of single elements, and isn't fooled by errors of one sign."""

from __future__ import annotations

import pytest
import torch
from logdiff_kernels.check.regression import regress


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_prediction_a_hundredth_of_the_noise_is_found() -> None:
    predicted = 0.01 * _noise(400, 500, seed=1)
    fit = regress(_noise(400, 500) + predicted, predicted)
    assert fit.beta == pytest.approx(1.0, abs=0.7)
    assert regress(_noise(400, 500), predicted).z < 4


def test_its_strength_grows_with_rows() -> None:
    predicted = 0.1 * _noise(400, 500, seed=1)
    measured = _noise(400, 500) + predicted
    assert regress(measured, predicted).z > 1.7 * regress(measured[:100], predicted[:100]).z
    assert regress(measured, predicted).z > 30


def test_errors_that_are_alike_in_every_row_do_not_count_row_by_row() -> None:
    constant = _noise(1, 64).expand(400, 64)  # a rounding of the weights, the same for every token
    predicted = torch.ones(400, 64, dtype=torch.float64)
    assert abs(regress(constant, predicted).z) < 4


def test_what_is_not_finite_is_no_fit() -> None:
    measured = _noise(10, 10)
    measured[0, 0] = float("nan")
    assert regress(measured, _noise(10, 10, seed=2)).rest == float("inf")


def test_a_prediction_of_nothing_is_no_fit() -> None:
    assert regress(_noise(4, 4), torch.zeros(4, 4, dtype=torch.float64)).size == 0.0
