"""A stand-in for the Ascend device layer, so that the real vllm-ascend sources can be imported without an NPU.

`install()` makes the imports of `torch_npu`, `torchair` and `torchvision` succeed and names torch's PrivateUse1 backend
"npu", as torch_npu does. Questions about the device have fixed answers; an operator that is called is recorded in
`calls` and refused. No result of an NPU is imitated, so nothing here says anything about numbers.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from standin import batch_invariant_ops, modules, npu
from standin.record import StandIn as StandIn
from standin.record import StandInError as StandInError
from standin.record import calls as calls


def install(*, operators: str | None = None, triton: bool = False, flash_attn: bool = False) -> None:
    """Put the stand-ins in place; call it before vllm or vllm_ascend is imported.

    Args:
        operators: which package is imported as `batch_invariant_ops`: "ascendc" has the operators of Huawei's package,
            "namesake" has that import name and nothing of them, None is no package.
        triton: whether a Triton driver is active, as with triton-ascend. The triton package itself is the real one.
        flash_attn: whether `flash_attn_npu_v3` is there.
    """
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch

    torch.utils.rename_privateuse1_backend("npu")
    modules.provide("torch_npu", "torchair", "torchvision", *(["flash_attn_npu_v3"] if flash_attn else []))
    torch._register_device_module("npu", npu)
    sys.modules["torch.npu"] = npu
    import torch_npu

    importlib.import_module("torchair.fx_summary")  # the real package imports it by itself, and vllm-ascend reloads it
    torch_npu.npu = npu
    torch_npu.__version__ = "2.9.0"
    if operators is not None:
        sys.modules["batch_invariant_ops"] = _package(operators)
    if triton:
        _activate_triton()


def _package(kind: str) -> ModuleType:
    module = ModuleType("batch_invariant_ops", f"stand-in ({kind})")
    module.__file__ = batch_invariant_ops.__file__
    if kind == "ascendc":
        batch_invariant_ops.register()
    elif kind == "namesake":
        module.set_batch_invariant_mode = batch_invariant_ops.set_batch_invariant_mode  # type: ignore[attr-defined]
    else:
        raise ValueError(f"operators={kind!r}: 'ascendc', 'namesake' or None")
    return module


def _activate_triton() -> None:
    """Enter a driver that says it is active into Triton's own table; it can't launch anything."""
    modules.provide("triton.language.extra.cann")
    from triton.backends import Backend, backends

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    backends.clear()
    backends["npu"] = Backend(compiler=None, driver=Driver)  # type: ignore[arg-type]
