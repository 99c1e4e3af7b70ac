"""Operators on tensors of the stand-in for an NPU, as one JSON object: which driver gets them, with which launcher.

The driver stands in too: it runs the CPU library on the tensors' host memory, so that results can be compared.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import stand_in_npu
import torch
from logdiff_kernels import ops
from logdiff_kernels.cpu import norm
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.ops import devices

_NPU_ALONE = ("torch_npu", "logdiff_kernels.build", "logdiff_kernels.ascendc", "logdiff_kernels.twin")

calls: list[str] = []


def drivers() -> types.ModuleType:
    module = types.ModuleType("logdiff_kernels.ascendc.norm")
    for name in ("rms_norm", "rms_norm_backward"):

        def driver(launcher: Any, *arguments: Any, _name: str = name) -> Any:
            calls.append(f"{_name} {launcher}")
            made = getattr(norm, _name)(*(stand_in_npu.host(x) for x in arguments))
            return tuple(None if x is None else stand_in_npu.wrap(x) for x in made)

        setattr(module, name, driver)
    return module


def main() -> dict[str, Any]:
    said: dict[str, Any] = {}
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(3)).bfloat16()
    w = torch.linspace(0.5, 2.0, 48).bfloat16()
    expected = ops.rms_norm(x, w, 1e-6)
    said["imported for CPU tensors"] = [name for name in sys.modules if name.startswith(_NPU_ALONE)]
    stand_in_npu.install()
    from logdiff_kernels.build import npu

    sys.modules["logdiff_kernels.ascendc.norm"] = drivers()
    npu.launcher = lambda index, exact_exp: f"npu:{index} exact_exp={exact_exp}"  # type: ignore[assignment]

    sys.modules["logdiff_kernels.ascendc.activation"] = None  # type: ignore[assignment]
    xn, wn = stand_in_npu.wrap(x.clone()), stand_in_npu.wrap(w.clone())
    y = ops.rms_norm(xn, wn, 1e-6)
    said["direct"] = [str(y.device), torch.equal(stand_in_npu.host(y), expected), list(calls)]
    calls.clear()
    y = torch.ops.logdiff.rms_norm(xn, wn, 1e-6, 0.0)[0]
    said["dispatcher"] = [str(y.device), torch.equal(stand_in_npu.host(y), expected), list(calls)]
    calls.clear()

    leaf = x.clone().requires_grad_()
    ops.rms_norm(leaf, w, 1e-6).backward(torch.ones_like(expected))
    xn.requires_grad_()
    y = ops.rms_norm(xn, wn, 1e-6)
    (grad,) = torch.autograd.grad(y, xn, stand_in_npu.wrap(torch.ones_like(expected)))
    said["gradient"] = [torch.equal(stand_in_npu.host(grad), leaf.grad), list(calls)]
    calls.clear()

    ops.rms_norm(x, w, 1e-6)
    said["CPU tensors"] = list(calls)
    for name, work in {
        "mixed": lambda: ops.rms_norm(xn.detach(), w, 1e-6),
        "no driver": lambda: ops.swiglu(xn.detach(), xn.detach()),
        "meta": lambda: ops.rms_norm(x.to("meta"), w.to("meta"), 1e-6),
    }.items():
        try:
            said[name] = ["nothing", str(work())]
        except RunnerError as error:
            said[name] = [type(error).__name__, error.message]
    with devices.rehearse("a twin"):  # type: ignore[arg-type]
        ops.rms_norm(x, w, 1e-6)
    said["rehearsal"] = list(calls)
    return said


if __name__ == "__main__":
    print(json.dumps(main()))
