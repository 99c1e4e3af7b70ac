"""Several cores: GM hand-overs, cross-core flags, SyncAll, deadlocks, and the order of blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.twin.library import Argument, Options
from logdiff_kernels.twin.trace import EVENTS, Trace

from tests.kernels.twin.kernels_of import Kernels


def _mixed(blocks: int, count: int, initialised: bool = False) -> list[Argument]:
    x = torch.randn(128 * blocks * count, generator=torch.Generator().manual_seed(3))
    return [
        Argument(x, "x", writable=False),
        Argument(torch.zeros_like(x), "workspace", initialised=initialised),
        Argument(torch.zeros_like(x), "y", initialised=False),
    ]


@pytest.mark.parametrize(("blocks", "cores"), [(1, 24), (5, 24), (24, 24), (40, 7)])
def test_a_mixed_kernel_is_clean_on_any_number_of_cores(core: Kernels, blocks: int, cores: int) -> None:
    arguments = _mixed(blocks, 3)
    core.run("mixed", 0, arguments, count=3, blocks=blocks, options=Options(cores=cores, seed=blocks))
    assert torch.equal(arguments[2].tensor, 2 * arguments[0].tensor)


@pytest.mark.parametrize(
    ("variant", "op", "words"),
    [
        (1, "Load", "CrossCoreSetFlag"),  # the flag is set on MTE1, which does not know when FIX has written
        (3, "Load", "FIX_MTE2"),  # the cube core does not wait for the vector cores
        (4, "Drain", "CrossCoreSetFlag"),  # the vector cores do not wait for the cube core
        (6, "Load", "PIPE_MTE2"),  # L1 is filled again while MTE1 reads it
        (7, "Drain", "M_FIX"),
    ],
)
def test_a_missing_edge_is_a_race(core: Kernels, variant: int, op: str, words: str) -> None:
    """With a workspace that counts as written, so that only the order is wrong."""
    found = [
        core.failure("mixed", variant, _mixed(3, 4, True), count=4, blocks=3, options=Options(seed=s))
        for s in range(1, 5)
    ]
    assert {error.check for error in found} == {"race"}
    assert any(error.op == op and words in error.reason for error in found)


@pytest.mark.parametrize(
    ("variant", "words"),
    [(2, "AIV0 of block 0 waits for cross-core flag 0"), (5, "AIC of block 0 waits for cross-core flag 1")],
)
def test_a_deadlock_names_who_waits_for_what(core: Kernels, variant: int, words: str) -> None:
    error = core.failure("mixed", variant, _mixed(2, 2), count=2, blocks=2)
    assert error.check == "deadlock"
    assert words in error.reason


def test_blocks_that_write_the_same_gm_race(core: Kernels) -> None:
    core.run("owners", 0, [None, torch.empty(90)], blocks=30)
    assert core.failure("owners", 1, [None, torch.empty(90)], blocks=30).check == "race"
    assert core.failure("owners", 2, [None, torch.empty(90)], blocks=30).check == "race"


@pytest.mark.parametrize("variant", [0, 2])
@pytest.mark.parametrize("blocks", [1, 20, 48])
def test_syncall_and_mode_0_order_all_cores(core: Kernels, variant: int, blocks: int) -> None:
    x, y = torch.zeros(8 * blocks), torch.empty(8 * blocks)
    core.run("gather_sync", variant, [x, y], blocks=blocks)
    assert torch.equal(y, torch.full((8 * blocks,), blocks * (blocks + 1) / 2))


def test_without_them_the_hand_over_is_a_race(core: Kernels) -> None:
    for variant in (1, 3):
        assert core.failure("gather_sync", variant, [torch.zeros(160), torch.empty(160)], blocks=20).check == "race"


def test_a_core_that_skips_syncall_leaves_the_others_waiting(core: Kernels) -> None:
    found = {
        core.failure("gather_sync", 4, [torch.zeros(160), torch.empty(160)], blocks=20, options=Options(seed=s)).check
        for s in range(3)
    }
    assert found <= {"deadlock", "race"}
    quiet = Options(check_races=False)
    error = core.failure("gather_sync", 4, [torch.zeros(160), torch.empty(160)], blocks=20, options=quiet)
    assert error.check == "deadlock"
    assert "in SyncAll" in error.reason


def test_syncall_with_more_blocks_than_cores_hangs(core: Kernels) -> None:
    error = core.failure("gather_sync", 0, [torch.zeros(800), torch.zeros(800)], blocks=100)
    assert error.check == "deadlock"
    assert "100 blocks on 48 cores" in error.reason


def test_syncall_needs_a_kernel_kind_that_starts_the_scheduler(core: Kernels) -> None:
    error = core.failure("gather_only", 0, [torch.zeros(32), torch.zeros(32)], blocks=4)
    assert error.check == "flag"
    assert "MIX kind" in error.reason


@pytest.mark.parametrize(
    ("variant", "check", "words"),
    [
        (1, "flag", "more than it was waited for"),
        (2, "flag", "no flag 16"),
        (3, "flag", "on V"),
        (4, "flag", "16 times without a wait"),
        (5, "flag", "joins vector cores only"),
        (6, "deadlock", "SyncAll"),
        (8, "flag", "SyncAll's"),
        (9, "flag", "set on MTE2 in mode 2 while a set on FIX in mode 2 is not waited for"),
        (10, "flag", "more than it was waited for"),
    ],
)
def test_a_wrong_cross_core_flag_is_named(core: Kernels, variant: int, check: str, words: str) -> None:
    error = core.failure("cross_flags", variant, [None, None], blocks=2)
    assert error.check == check
    assert words in error.reason


def test_modes_1_and_all_cores_together_are_clean(core: Kernels) -> None:
    core.run("cross_flags", 0, [None, None], blocks=3)


def test_mode_4_exists_on_3510_only(core: Kernels) -> None:
    if core.arch == 3510:
        core.run("cross_flags", 7, [None, None], blocks=3)
    else:
        assert "no mode 4" in core.failure("cross_flags", 7, [None, None], blocks=3).reason


def test_a_vector_core_of_a_mixed_kernel_knows_its_place(core: Kernels) -> None:
    y = torch.zeros(6)
    core.run("places", 0, [None, y], blocks=3)
    assert y.tolist() == [302, 312] * 3  # 100 * blocks + 10 * sub-block + ratio


def _order(trace: Trace | None) -> list[int]:
    assert trace is not None
    return [int(record["core"]) for record in trace.records if EVENTS[record["event"]] == "op"]


def test_the_seed_decides_the_order_of_cores_and_the_result_does_not_depend_on_it(core: Kernels) -> None:
    def run(seed: int) -> tuple[list[int], torch.Tensor]:
        arguments = _mixed(4, 2)
        result = core.run("mixed", 0, arguments, count=2, blocks=4, options=Options(seed=seed, trace=True))
        return _order(result.trace), arguments[2].tensor

    first, again, other = run(1), run(1), run(2)
    assert first[0] == again[0]
    assert first[0] != other[0]
    assert torch.equal(first[1], other[1])


def test_the_trace_has_the_bytes_of_each_memory_and_the_edges_of_cross_core_flags(core: Kernels) -> None:
    trace = core.run("mixed", 0, _mixed(1, 1), count=1, options=Options(trace=True)).trace
    assert trace is not None
    name = trace.names.index("Drain")
    drains = trace.records[trace.records["name"] == name]
    assert len(drains) == 2
    assert (drains["read"][:, 5] == 512).all()  # L0C
    assert (drains["written"][:, 0] == 512).all()  # GM
    assert np.array_equal(trace.cores["cube"], [1, 0, 0])
    edges = trace.records["event"][trace.edges["set"]], trace.records["event"][trace.edges["wait"]]
    crossing = edges[1] == EVENTS.index("cross_wait")
    # Each vector core waits for the cube core, which waits for both of them.
    assert crossing.sum() == 4
    assert (edges[0][crossing] == EVENTS.index("cross_set")).all()


def test_a_kernel_that_declares_another_kind_is_refused(core: Kernels) -> None:
    core.run("declared", 0, [None, None])
    assert core.failure("declared", 1, [None, None]).check == "launch"


def test_a_cpp_exception_of_a_kernel_ends_the_launch(core: Kernels) -> None:
    assert "C++ exception" in core.failure("throws", 0, [None, None], blocks=3).reason


def test_a_runaway_loop_ends_at_the_limit(core: Kernels) -> None:
    error = core.failure("endless", 0, [None, None], blocks=2, options=Options(instruction_limit=5000))
    assert (error.check, error.reason) == ("launch", "more than 5000 instructions")


def test_what_cannot_be_launched_is_said(core: Kernels) -> None:
    assert core.failure("places", 0, [None, None], blocks=0).check == "launch"
    with pytest.raises(UnsupportedError, match="no launcher"):
        core.run("missing", 0, [])
    with pytest.raises(InputError, match="contiguous"):
        core.run("places", 0, [None, torch.zeros(4, 4).t()])
