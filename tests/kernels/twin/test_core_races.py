"""Order within one core: flags and barriers, each needed one dropped in turn."""

from __future__ import annotations

import pytest
import torch
from logdiff_kernels.twin.library import Options

from tests.kernels.twin.kernels_of import Kernels

X = torch.arange(64, dtype=torch.float32)


@pytest.mark.parametrize("variant", [0, 7, 12, 14, 17, 19])
def test_an_ordered_program_is_clean(core: Kernels, variant: int) -> None:
    y = torch.zeros(64)
    core.run("flags", variant, [X.clone(), y])
    expected = 4 * X
    if variant == 17:
        expected[0] += 1
    assert torch.equal(y, expected)


@pytest.mark.parametrize(
    ("variant", "op", "operand", "words"),
    [
        (1, "Sum", "src0", "a flag MTE2_V"),  # no flag between load and vector
        (3, "Sum", "src0", "a flag MTE2_V"),  # set, but not waited for
        (6, "Sum", "src0", "PipeBarrier<PIPE_V>"),  # read after write within V
        (8, "Store", "src", "a flag V_MTE3"),
        (9, "Sum", "dst", "must lie between"),  # write after the store's read
        (10, "Load", "dst", "must lie between"),
        (11, "Store", "dst", "PipeBarrier<PIPE_MTE3>"),  # two stores to the same GM
        (13, "Load", "src", "a flag MTE3_MTE2"),  # GM written and read back by the same core
        (16, "GetValue", "src", "a flag V_S"),
        (18, "Store", "src", "a flag S_MTE3"),
        (20, "GlobalTensor::GetValue", "src", "cache"),
        (21, "GlobalTensor::GetValue", "src", "cache"),
    ],
)
def test_a_missing_edge_is_a_race(core: Kernels, variant: int, op: str, operand: str, words: str) -> None:
    error = core.failure("flags", variant, [X.clone(), torch.zeros(64)])
    assert (error.check, error.op, error.operand) == ("race", op, operand)
    assert words in error.reason


@pytest.mark.parametrize(
    ("variant", "words"),
    [(2, "twice"), (4, "hangs"), (5, "0 to 7"), (15, "V_MTE2 2 is left set")],
)
def test_a_wrong_flag_is_named(core: Kernels, variant: int, words: str) -> None:
    error = core.failure("flags", variant, [X.clone(), torch.zeros(64)])
    assert error.check == "flag"
    assert words in error.reason


def test_races_are_let_pass_only_when_asked_and_the_result_says_so(core: Kernels) -> None:
    quick = Options(check_races=False)
    assert not core.run("flags", 6, [X.clone(), torch.zeros(64)], options=quick).races_checked
    assert core.run("flags", 0, [X.clone(), torch.zeros(64)]).races_checked
    assert core.failure("flags", 4, [X.clone(), torch.zeros(64)], options=quick).check == "flag"


def test_products_into_one_tile_need_a_barrier_unless_the_tile_is_large(core: Kernels) -> None:
    core.run("accumulate", 0, [None, None])
    core.run("accumulate", 2, [None, None])
    error = core.failure("accumulate", 1, [None, None])
    assert (error.check, error.pipe) == ("race", "M")
    assert "PipeBarrier<PIPE_M>" in error.reason
