"""What the launcher does with the stand-in for torch_npu, as one JSON object: `python npu_session.py LIBRARY`."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import stand_in_npu
import torch
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.build import compile, npu
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.ops import devices, registry


class Plan(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint32), ("status", ctypes.c_int32)]


def refused(work: Any) -> list[str]:
    try:
        work()
    except RunnerError as error:
        return [type(error).__name__, error.message]
    return ["nothing", ""]


def main(library: Path) -> dict[str, Any]:
    said: dict[str, Any] = {"without": npu.missing()}
    stand_in_npu.install()
    binary = compile.Binary("probe", library, "0" * 64, library, 0.0, True)
    built = compile.Build("dav-2201", False, "stand-in", "8.5.0", (binary,))
    launcher = npu.NpuLauncher(build=built)
    said["facts"] = [launcher.arch, launcher.cores, launcher.vectors_per_core, launcher.exact_exp, str(launcher.device)]

    out = torch.zeros(8, dtype=torch.float64, device="cpu")
    target, scratch = stand_in_npu.wrap(out), launcher.workspace(48)
    said["workspace"] = [str(scratch.device), str(scratch.dtype), scratch.numel()]
    said["launches"] = []
    for value in (7, 8):
        stand_in_npu.events.clear()
        launcher.launch("probe", [target, None, scratch], Plan(value, 0), 24)
        said["launches"].append({"events": list(stand_in_npu.events), "seen": out.tolist()})
    said["addresses"] = [out.data_ptr(), scratch.data_ptr()]

    launch = launcher.launch
    said["shape"] = refused(lambda: launch("probe", [target], Plan(1, -2), 1))
    said["runtime"] = refused(lambda: launch("probe", [target], Plan(1, -77), 1))
    said["elsewhere"] = refused(lambda: launch("probe", [target, torch.zeros(2)], Plan(1, 0), 1))
    said["no block"] = refused(lambda: launch("probe", [target], Plan(1, 0), 0))
    said["too many"] = refused(lambda: launch("probe", [target], Plan(1, 0), 49))
    said["unknown"] = refused(lambda: launch("other", [target], Plan(1, 0), 1))
    devices._used.clear()
    npu._launcher = lambda index, exact_exp: launcher  # type: ignore[assignment]
    devices.launcher_of(torch.device("npu", 0))
    said["fingerprint"] = [registry.fingerprint()["providers"][1:], built.sha256]

    os.environ["LOGDIFF_CACHE"] = str(library.parent / "cache")  # from here on: the CPU library stays in its own
    own = npu.NpuLauncher(exact_exp=True)  # compiles, with the stand-in CANN that the test has installed
    said["first use"] = [own.build.arch, own.build.exact_exp, own.build.cann, own.binary_hash == own.build.sha256]
    said["compiled"] = [binary.kernel for binary in own.build.binaries]
    blank = [None] * len(kernels()["rms_norm"].pointers)
    said["unloadable"] = refused(lambda: own.launch("rms_norm", blank, Plan(1, 0), 1))

    stand_in_npu.drained = False
    out.fill_(-1)
    said["undrained"] = [*refused(lambda: launch("probe", [target], Plan(1, 0), 1)), out[0].item()]

    stand_in_npu.chip = "Ascend310P3"
    said["chip"] = refused(lambda: npu.NpuLauncher(build=built))
    stand_in_npu.devices = 0
    said["no device"] = refused(lambda: npu.NpuLauncher(build=built))
    return said


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
