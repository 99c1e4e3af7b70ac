"""Addresses, sizes, initialisation and modes: what no kernel may do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logdiff_kernels.twin.library import Argument, Options

from tests.kernels.twin.kernels_of import Kernels

USABLE_UB = {2201: 192 * 1024 - 256 - 8 * 1024, 3510: 248 * 1024}


def _arguments() -> list[Argument]:
    return [
        Argument(torch.ones(64), "x", writable=False),
        Argument(torch.empty(64), "y", initialised=False),
    ]


def test_a_correct_program_is_clean(core: Kernels) -> None:
    arguments = _arguments()
    core.run("memory", 0, arguments)
    assert torch.equal(arguments[1].tensor, torch.ones(64))


@pytest.mark.parametrize(
    ("variant", "check", "operand", "words"),
    [
        (1, "range", "", "260 bytes at"),
        (2, "range", "src", "[0, 256) of a GM tensor of 252"),
        (3, "alignment", "dst", "UB address 16"),
        (4, "poison", "src0", "byte 0 of"),
        (5, "poison", "src0", "byte 252 of"),
        (7, "alignment", "", "UB address 16"),
        (8, "overload", "", "L1 on a vector core"),
        (9, "range", "dst", "[0, 260) of a UB tensor of 256"),
        (10, "range", "dst", "write to x, an input"),
        (11, "poison", "src", "nothing has written"),
        (12, "range", "", "element 65 of a tensor of 64"),
        (13, "overload", "", "Drain runs on FIX"),
        (14, "overload", "", "MTE1_M"),
        (15, "overload", "", "PIPE_M"),
        (16, "range", "src", "GM tensor of 0 bytes"),
        (17, "queue", "", "two styles"),
        (18, "state", "", "HF32"),
        (19, "state", "", "saturation"),
        (20, "poison", "src0", "nothing has written"),
    ],
)
def test_a_misuse_is_named(core: Kernels, variant: int, check: str, operand: str, words: str) -> None:
    error = core.failure("memory", variant, _arguments())
    assert (error.check, error.operand) == (check, operand)
    assert words in error.reason
    if variant == 1:
        assert error.op == "SetGlobalBuffer"


def test_a_global_tensor_of_no_size_ends_with_its_argument_also_behind_another(core: Kernels) -> None:
    both = torch.zeros(128)
    core.run("memory", 21, [Argument(both[:64], "x", writable=False), Argument(both[64:], "y")])
    assert both[64:].tolist() == [64.0] * 64


def test_the_last_bytes_of_ub_are_the_compilers(core: Kernels) -> None:
    error = core.failure("memory", 6, _arguments())
    assert error.check == "capacity"
    assert f"the core has {USABLE_UB[core.arch]}" in error.reason


@pytest.mark.parametrize("variant", [0, 2])
def test_initsocstate_or_a_tpipe_sets_mask_and_atomics(core: Kernels, variant: int) -> None:
    core.run("uninitialised_modes", variant, [None, None])


def test_without_it_an_earlier_kernels_modes_would_count(core: Kernels) -> None:
    assert core.failure("uninitialised_modes", 1, [None, None]).check == "state"


def test_every_core_starts_with_modes_that_an_earlier_kernel_left_and_the_seed_decides_which(core: Kernels) -> None:
    def left(seed: int) -> torch.Tensor:
        y = torch.empty(4)
        core.run("left_over", 0, [None, y], blocks=4, options=Options(seed=seed))
        return y

    assert torch.equal(left(1), left(1))
    assert not torch.equal(left(1), left(2))
    assert len(set(left(1).tolist())) == 4


def test_the_scalar_unit_reads_no_cube_memory(core: Kernels) -> None:
    error = core.failure("scalar", 0, [torch.ones(64), None])
    assert error.check == "overload"
    assert "L1" in error.reason


def test_subnormals_are_kept_whatever_the_process_has_set(core: Kernels) -> None:
    tiny, y = torch.full((64,), 1e-40), torch.zeros(64)
    torch.set_flush_denormal(True)
    try:
        core.run("flags", 0, [tiny, y])
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(y, 4 * tiny)
    assert y[0] > 0


@pytest.mark.parametrize("on_chip", [False, True])
def test_initialisation_is_kept_byte_by_byte(core: Kernels, on_chip: bool) -> None:
    """Random ranges against an array of flags: the read that fails, and the byte that it names."""
    rng = np.random.default_rng(5)
    failures = 0
    for _ in range(200):
        rows = np.zeros((12, 4), np.int32)
        rows[:, 0] = rng.choice([0, 1, 2], size=12, p=[0.4, 0.5, 0.1])
        rows[:, 1:3] = np.sort(rng.integers(0, 257, size=(12, 2)), axis=1)
        rows[:2] = [(1, 0, 140, 0), (1, 120, 256, 0)]
        written = np.zeros(256, bool)
        expected = None
        for what, begin, end, _unused in rows:
            if what == 0:
                missing = np.flatnonzero(~written[begin:end])
                if len(missing):
                    expected = begin + missing[0]
                    break
            else:
                written[begin:end] = what == 1
        arguments = [torch.from_numpy(rows), Argument(torch.zeros(64), "memory", initialised=False)]
        if expected is None:
            core.run("ranges", int(on_chip), arguments, count=12)
        else:
            error = core.failure("ranges", int(on_chip), arguments, count=12)
            assert error.check == "poison"
            assert f"read of byte {expected} of" in error.reason
            failures += 1
    assert 40 < failures < 190
