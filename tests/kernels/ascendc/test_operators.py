"""Operators of the contract on the Ascend C kernels: what the CPU has, the drivers have, with the same bits."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Sequence
from ctypes import Structure
from types import ModuleType
from typing import Any

import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.ascendc.cases import CASES, Case, same_bits
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.ops import devices
from torch import Tensor

from tests.kernels.cpu import operator_calls

ARCHS = (2201, 3510)
PARTS = ("activation", "attention", "embedding", "linear", "logprob", "moe", "norm", "rope", "router")
NOT_OPERATORS = {"dense_rows", "checked", "checked_store"}


class Recorder(TwinLauncher):
    """The twin; names of the kernels that were launched in `launched`."""

    launched: set[str]

    def launch(self, kernel: str, tensors: Sequence[Tensor | None], plan: Structure, blocks: int) -> None:
        super().launch(kernel, tensors, plan, blocks)
        self.launched = {*getattr(self, "launched", ()), kernel}


def _operators(part: str) -> dict[str, Callable[..., Any]]:
    module = importlib.import_module(f"logdiff_kernels.cpu.{part}")
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        name: f
        for name, f in functions
        if f.__module__ == module.__name__ and not name.startswith("_") and name not in NOT_OPERATORS
    }


@pytest.mark.parametrize("part", PARTS)
def test_every_function_of_the_cpu_has_a_driver_with_its_parameters(part: str) -> None:
    drivers = importlib.import_module(f"logdiff_kernels.ascendc.{part}")
    assert _operators(part)
    for name, function in _operators(part).items():
        parameters = list(inspect.signature(getattr(drivers, name)).parameters.values())
        assert parameters[0].name == "launcher"
        wanted = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
        assert [(p.name, p.default) for p in parameters[1:]] == wanted, name


def test_every_driver_and_every_kernel_has_a_case() -> None:
    functions = {(case.part, case.function) for case in CASES}
    drivers = {(part, name) for part in PARTS for name in _operators(part)}
    assert drivers - functions == {("moe", "sort")}  # made of torch's own operators on integers
    launched = {name for case in CASES for name in case.kernels}
    assert launched == {name for name in kernels() if not name.startswith("probe_")}


# which of attention's kernels run depends on the length
@pytest.mark.parametrize("case", [c for c in CASES if c.part != "attention"], ids=lambda case: case.name)
def test_a_case_launches_the_kernels_that_it_names(case: Case) -> None:
    launcher = Recorder(cores=40, check_races=False)
    case.on_launcher(launcher, case.arguments(70, case.dtypes[-1], 1))
    assert launcher.launched == set(case.kernels)


class Both:
    """A part of the kernels: every call goes to the driver and, with copies of its tensors, to the CPU library."""

    def __init__(self, part: str, cpu: ModuleType, launcher: TwinLauncher, calls: set[tuple[str, str]]) -> None:
        self.drivers = importlib.import_module(f"logdiff_kernels.ascendc.{part}")
        self.part, self.cpu, self.launcher, self.calls = part, cpu, launcher, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            copies = copy.deepcopy([x.detach() if isinstance(x, Tensor) else x for x in arguments])
            got = getattr(self.drivers, name)(self.launcher, *arguments)
            want = getattr(self.cpu, name)(*copies)
            if name == "sort":  # behind the rows `order` has no meaning
                rows = int(want[0][-1])
                self._compare(name, (got[0], got[1][:rows], got[2]), (want[0], want[1][:rows], want[2]))
            else:
                self._compare(name, got, want)
            self._compare(f"{name}: arguments", arguments, copies)
            self.calls.add((self.part, name))
            return got

        return call

    def _compare(self, name: str, got: Any, want: Any) -> None:
        if isinstance(want, tuple | list):
            assert len(got) == len(want)
            for one, other in zip(got, want, strict=True):
                self._compare(name, one, other)
        elif isinstance(want, Tensor):
            assert same_bits(got, want), f"{self.part}.{name}: {int((got != want).sum())} of {want.numel()} differ"
        else:
            assert got == want, f"{self.part}.{name}"


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[TwinLauncher], set[tuple[str, str]]]:
    """`both(launcher)`: from now on operators run twice and are compared; the result fills with what they called."""

    def start(launcher: TwinLauncher) -> set[tuple[str, str]]:
        calls: set[tuple[str, str]] = set()
        monkeypatch.setattr(devices.Kernels, "of", lambda self, x: Both(self._part, self._cpu, launcher, calls))
        return calls

    return start


@pytest.mark.parametrize("dtype", operator_calls.DTYPES, ids=str)
def test_operators_and_their_gradients_have_the_bits_of_the_cpu(
    dtype: torch.dtype, both: Callable[[TwinLauncher], set[tuple[str, str]]]
) -> None:
    arch = ARCHS[operator_calls.DTYPES.index(dtype) % 2]
    calls = both(TwinLauncher(arch, cores=3, check_races=False))
    operator_calls.products(dtype, 1000)
    operator_calls.rows(dtype, 1030)
    parts = ("activation", "embedding", "linear", "moe", "norm", "rope")
    assert calls == {(part, name) for part in parts for name in _operators(part)}


@pytest.mark.parametrize("arch", ARCHS)
def test_scores_and_their_gradients_have_the_bits_of_the_cpu(
    arch: int, both: Callable[[TwinLauncher], set[tuple[str, str]]]
) -> None:
    calls = both(TwinLauncher(arch, cores=3, check_races=False))
    operator_calls.scores()
    # `logprob` calls `finish` itself
    assert calls == {(part, name) for part in ("logprob", "router") for name in _operators(part)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_experts_of_other_ranks_have_the_bits_of_the_cpu(
    dtype: torch.dtype, both: Callable[[TwinLauncher], set[tuple[str, str]]]
) -> None:
    """Expert parallelism (absent slots), tensor parallelism of the experts, replicas, a shared expert."""
    calls = both(TwinLauncher(cores=2, check_races=False))
    generator = torch.Generator().manual_seed(2)
    x, shared = (torch.randn(9, 32, generator=generator).to(dtype) for _ in range(2))
    gate_up, down = (torch.randn(3, *shape, generator=generator).to(dtype) for shape in ((64, 32), (32, 32)))
    ids = torch.tensor([[0, -1], [2, 1], [-1, -1], [1, 0], [0, 2], [2, -1], [1, 2], [-1, 1], [2, 0]])
    weights, logical = torch.rand(9, 2, generator=generator), torch.tensor([4, 0, 2])
    ops.moe(x, ids, weights, gate_up, down, expert_ids=logical, shared=shared)
    halves = [
        ops.moe_rows(x, ids, torch.cat([gate_up[:, at : at + 16], gate_up[:, 32 + at : 48 + at]], 1), part, 1)
        for at, part in ((0, down[:, :, :16].contiguous()), (16, down[:, :, 16:].contiguous()))
    ]
    y = ops.tree_combine(torch.stack(halves), None, dtype)
    ops.moe_combine_slots(y, weights, ids, logical, shared)
    assert {("moe", "sort"), ("moe", "gather"), ("moe", "combine"), ("linear", "tree_combine")} <= calls
