"""The self-test on tensors of the stand-in for an NPU: prints what fails and each part's fingerprint as JSON."""

from __future__ import annotations

import json

import stand_in_npu
import torch
from logdiff_kernels import laws
from logdiff_kernels.build import selftest
from logdiff_kernels.build.selftest.section import Scope
from npu_drivers import Launcher

if __name__ == "__main__":
    stand_in_npu.install()
    parts = selftest.sections(Launcher(), Scope.QUICK)
    with torch.inference_mode():  # autograd's views would lose the stand-in's memory
        found = laws.report("stand-in", "dav-2201", [check for part in parts for check in part.checks])
    failed = [law for law in found["laws"] if not law["ok"]]
    print(json.dumps({"failed": failed, "fingerprints": {part.name: part.fingerprint for part in parts}}))
