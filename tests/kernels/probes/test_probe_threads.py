"""I:threads of vLLM's operators: the number of threads really changes inside of them, or the relation is not asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from logdiff_kernels.probes.providers import vllm as provider
from logdiff_kernels.probes.relations.row_trials import threads
from logdiff_kernels.probes.session import Wanted, run

TASKS = Path("/proc/self/task")


def _run_times() -> dict[str, int]:
    """Thread -> nanoseconds that it has run."""
    found = {}
    for task in TASKS.iterdir():
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[0])
        except OSError:  # it ended
            continue
    return found


def _workers(call: Callable[[], object], seconds: float = 0.4) -> int:
    """Threads that carried at least a tenth of the work of a loop over `call`."""
    call()
    before, end = _run_times(), time.monotonic() + seconds
    while time.monotonic() < end:
        call()
    spent = [now - before.get(task, 0) for task, now in _run_times().items()]
    return sum(ns > max(spent) / 10 for ns in spent)


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
def test_vllms_own_operators_run_on_as_many_threads_as_torch_is_told() -> None:
    pytest.importorskip("vllm")
    provider.PROVIDERS[0].ops["rms_norm"]("cpu", "bfloat16")
    x, weight = torch.randn(4096, 2048, dtype=torch.bfloat16), torch.ones(2048, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    for number in (1, 2, 1):
        with threads(number):
            assert provider.openmp_threads() == number
            assert _workers(lambda: torch.ops._C.rms_norm(out, x, weight, 1e-6)) == number


@pytest.mark.parametrize(("taken", "words"), [(3, "stays at 3 threads"), (None, "can't be asked")])
def test_a_runtime_that_does_not_follow_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, taken: int | None, words: str
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setattr(provider, "openmp_threads", lambda: taken)
    asked = {"ops": ["rms_norm"], "providers": ["vllm"], "relations": ["I:threads", "I:batch"], "seconds": 60.0}
    data = run(Wanted.of({**asked, "shapes": {"rms_norm": [{"rows": 2, "n": 64}]}}))
    assert [entry["relation"] for entry in data["results"]] == ["I:batch"]
    (skipped,) = data["skipped"]
    assert skipped["relation"] == "I:threads"
    assert words in skipped["reason"]
