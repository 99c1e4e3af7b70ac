"""TPipe, TQue and event ids: a correct double-buffered kernel is clean, and each misuse is named."""

from __future__ import annotations

import pytest
import torch
from logdiff_kernels.twin.library import Argument, Options

from tests.kernels.twin.kernels_of import Kernels

X = torch.randn(8 * 64, generator=torch.Generator().manual_seed(1))


def test_a_double_buffered_loop_is_clean_and_gives_the_result(core: Kernels) -> None:
    y = torch.empty_like(X)
    core.run("queues", 0, [Argument(X, "x", writable=False), Argument(y, "y", initialised=False)], count=8)
    assert torch.equal(y, X + X)


@pytest.mark.parametrize(
    ("variant", "check", "op", "words"),
    [
        (1, "race", "Sum", "MTE2_V"),
        (2, "queue", "EnQue", "enqueued"),
        (3, "queue", "FreeTensor", "another queue's"),
        (4, "queue", "AllocTensor", "in use"),
        (5, "queue", "FreeTensor", "free"),
        (6, "race", "Sum", "PipeBarrier<PIPE_V>"),
        (7, "queue", "DeQue", "empty"),
        (8, "queue", "end of the kernel", "allocated"),
        (9, "queue", "EnQue", "no queue"),
        (10, "queue", "AllocTensor", "all 2 buffers"),
        (11, "capacity", "InitBuffer", "UB"),
        (12, "queue", "TPipe", "second TPipe"),
        (13, "queue", "AllocTensor", "8 tensors"),
        (14, "flag", "FetchEventID", "no event id of MTE2_V"),
        (16, "queue", "AllocTensor", "without InitBuffer"),
    ],
)
def test_a_misuse_is_named(core: Kernels, variant: int, check: str, op: str, words: str) -> None:
    error = core.failure("queues", variant, [X.clone(), torch.empty_like(X)], count=8)
    assert (error.check, error.op) == (check, op)
    assert words in error.reason
    assert error.kernel == "queues"
    assert error.core == "AIV of block 0"


def test_an_id_that_is_taken_is_not_fetched(core: Kernels) -> None:
    core.run("queues", 15, [X.clone(), torch.empty_like(X)], count=8)


def test_a_freed_buffer_makes_its_next_user_wait(core: Kernels) -> None:
    """The waits of a queue are in the trace: Alloc after Free waits for the vector pipe, DeQue for the load."""
    y = torch.empty_like(X)
    trace = core.run("queues", 0, [X.clone(), y], count=8, options=Options(trace=True)).trace
    assert trace is not None
    assert trace.count("MTE2_V") == trace.count("V_MTE3") == 2 * 8  # set and wait
    # Two buffers: each of 8 tiles frees; 6 reuse a buffer and the end of the kernel waits for the other two.
    assert trace.count("V_MTE2") == trace.count("MTE3_V") == 2 * 8
    assert len(trace.edges) == 4 * 8


def test_a_bound_queue_orders_load_and_store(core: Kernels) -> None:
    y = torch.empty_like(X)
    core.run("bound", 0, [X.clone(), y], count=8)
    assert torch.equal(y, X)
    error = core.failure("bound", 1, [X.clone(), y], count=8)
    assert (error.check, error.op) == ("race", "Store")
    assert "MTE2_MTE3" in error.reason
