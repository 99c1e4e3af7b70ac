"""Where the kernels' threads come from, and that subnormals survive on every one of them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import pytest
import torch
from logdiff_kernels.cpu import library


def _flushing() -> int:
    return int(library.lib().ld_flushing_workers())


@pytest.fixture
def flushing_denormals() -> object:
    """This thread and torch's pool flush subnormals, as a user's program may have asked for."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU can't flush subnormals")
    yield
    torch.set_flush_denormal(False)


def test_no_worker_flushes_subnormals_and_the_setting_comes_back(flushing_denormals: object) -> None:
    tiny = torch.tensor([2.0**-126]) * 0.5
    assert float(tiny) == 0  # the setting is in force
    assert _flushing() == 0
    assert float(torch.tensor([2.0**-126]) * 0.5) == 0  # and still is


def test_torchs_number_of_threads_applies() -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert library.lib().ld_max_threads() == count
    finally:
        torch.set_num_threads(before)
    assert library.pool() == "gomp"


def test_calls_from_several_threads_at_once_are_right() -> None:
    x = torch.randn(1 << 16)
    call = library.function("ld_elementwise", [ctypes.c_int32, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_int32])
    alone = torch.empty_like(x)
    call(0, x.data_ptr(), alone.data_ptr(), x.numel(), 0)
    outputs = [torch.empty_like(x) for _ in range(6)]
    threads = [
        threading.Thread(target=lambda y=y: [call(0, x.data_ptr(), y.data_ptr(), x.numel(), 0) for _ in range(20)])
        for y in outputs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(y, alone) for y in outputs)


def test_own_pool_works_without_openmp_also_in_a_forked_child() -> None:
    code = """
import ctypes, os, torch
from logdiff_kernels.cpu import library
assert library.pool() == "threads"
assert library.lib().ld_max_threads() == 3
x = torch.randn(1 << 18)
call = library.function("ld_elementwise", [ctypes.c_int32, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_int32])
def run(scalar):
    y = torch.empty_like(x)
    assert call(0, x.data_ptr(), y.data_ptr(), x.numel(), scalar) == 0
    return y
wanted = run(1)
assert all(torch.equal(run(0), wanted) for _ in range(50))
assert library.lib().ld_flushing_workers() == 0
expected = wanted.numpy().tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if run(0).numpy().tobytes() == expected else 1)  # torch's own pool doesn't survive a fork
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LOGDIFF_CPU_POOL": "threads", "OMP_NUM_THREADS": "3"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
