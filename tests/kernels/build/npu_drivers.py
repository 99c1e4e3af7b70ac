"""The drivers on tensors of the stand-in for an NPU, their kernels run by the twin on the tensors' host memory.

Prints one JSON object: `cases`, for every case of `ascendc.cases` an empty text when the results are on the NPU and
have the bits of the CPU library, else what is wrong; `planted`, the same for launchers that are wrong; `operators`, the
same for the public operators. What makes a tensor on the wrong device shows here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import npu_calls
import stand_in_npu
import torch
from logdiff_kernels.ascendc.cases import CASES, Case, same_bits
from logdiff_kernels.build import npu
from logdiff_kernels.build.twin import TwinLauncher, build_twin

LENGTH, SEED = 130, 7


class Launcher:
    """The twin, for tensors of the stand-in."""

    def __init__(self) -> None:
        self._twin = TwinLauncher(cores=4, check_races=False)
        self.arch, self.cores, self.vectors_per_core = self._twin.arch, self._twin.cores, 2
        self.exact_exp, self.provider, self.chip = True, "stand-in", "stand-in"
        self.device = torch.device("npu", 0)
        self.binary_hash = "0" * 64

    def launch(self, kernel: str, tensors: Sequence[torch.Tensor | None], plan: Any, blocks: int) -> None:
        for x in tensors:
            if x is not None and x.device != self.device:
                raise RuntimeError(f"{kernel}: a tensor on {x.device}")
        self._twin.launch(kernel, [stand_in_npu.host(x) for x in tensors], plan, blocks)

    def workspace(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def check(case: Case, launcher: Any) -> str:
    arguments = case.arguments(LENGTH, torch.bfloat16 if torch.bfloat16 in case.dtypes else case.dtypes[0], SEED)
    expected = case.on_cpu(arguments)
    moved = tuple(stand_in_npu.wrap(x) if isinstance(x, torch.Tensor) else x for x in arguments)
    return apart(case.on_launcher(launcher, moved), expected, launcher.device)


def apart(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], device: torch.device) -> str:
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        if x.device != device:
            return f"result {i} is on {x.device}"
        if not same_bits(stand_in_npu.host(x), y):
            return f"result {i} has other bits"
    return ""


class Idle(Launcher):
    """Starts nothing."""

    def launch(self, kernel: str, tensors: Sequence[torch.Tensor | None], plan: Any, blocks: int) -> None:
        pass


class Scratch(Launcher):
    """Its scratch memory is the CPU's."""

    def workspace(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


def said_of(case: Case, launcher: Launcher) -> str:
    try:
        with torch.inference_mode():  # autograd's views would lose the stand-in's memory
            return check(case, launcher)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]


def main() -> dict[str, dict[str, str]]:
    stand_in_npu.install()
    build_twin("dav-2201", kernels=[kernel for case in CASES for kernel in case.kernels])  # side by side
    launcher, by_name = Launcher(), {case.name: case for case in CASES}
    planted = {  # first: memory that is given anew could hold the right bits
        "idle": said_of(by_name["rms_norm"], Idle()),
        "scratch": said_of(by_name["attention"], Scratch()),
    }
    cases = {name: said_of(case, launcher) for name, case in by_name.items()}
    return {"planted": planted, "cases": cases, "operators": operators(launcher)}


def operators(launcher: Launcher) -> dict[str, str]:
    npu.launcher = lambda index, exact_exp: launcher  # type: ignore[assignment, return-value]
    said = {}
    with torch.inference_mode():
        expected = dict(npu_calls.calls(lambda x: x))
        try:
            for name, found in npu_calls.calls(lambda x: stand_in_npu.wrap(x.clone())):
                said[name] = apart(found, expected[name], launcher.device)
        except Exception as error:
            said[f"after {list(said)[-1:]}"] = f"{type(error).__name__}: {error}"[:500]
    return {**{name: "not reached" for name in expected if name not in said}, **said}


if __name__ == "__main__":
    print(json.dumps(main()), file=sys.stdout)
