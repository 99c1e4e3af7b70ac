"""The benchmarks of NPU kernels on the stand-in for an NPU, at small sizes, as one JSON object."""

from __future__ import annotations

import json
from typing import Any

import npu_drivers
import stand_in_npu
import torch
from logdiff_kernels.actions import EngineFree
from logdiff_kernels.build import npu
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.ops import bench

SIZES = bench.Sizes((1, 40), 64, 96, 300, 4, 2, 32, 64, (1, 3), 16)


def main() -> dict[str, Any]:
    stand_in_npu.install()
    launcher = npu_drivers.Launcher()
    npu.launcher = lambda index, exact_exp: launcher  # type: ignore[assignment, return-value]
    npu.missing = list  # type: ignore[assignment]
    bench.Sizes = lambda: SIZES  # type: ignore[misc, assignment]
    seen: list[Any] = []
    task = {"task": "kernels_bench", "provider": "ascendc", "quick": True}
    with torch.inference_mode():  # autograd's views would lose the stand-in's memory
        said = EngineFree().run(task, lambda *step: seen.append(step)).data
        said["waits"] = stand_in_npu.events.count(["synchronize"])
        bench.BOUND = 0.0
        said["apart"] = bench.run(launcher.device, npu.wait, ["rms_norm"])
    try:
        EngineFree().run({**task, "families": ["rope"]}, lambda *_: None)
    except RunnerError as error:
        said["unknown"] = [type(error).__name__, error.hint]
    return {**said, "seen": seen}


if __name__ == "__main__":
    print(json.dumps(main()))
