"""Runs inside an environment of `make setup-ascend`: imports the real sources over the stand-in and says what it sees.

    PYTHON drive.py '{"patches": true, "operators": "ascendc", "triton": false, "recipe": false, "select": false}'

prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import standin

OPERATORS = ("mm", "matmul", "sum", "addmm", "bmm", "softmax", "_softmax", "linear", "log_softmax", "_log_softmax")
SWITCHES = ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "VLLM_ASCEND_ENABLE_NZ", "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE")


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Do what was asked for, in the order in which a worker process does it."""
    standin.install(
        operators=asked.get("operators"), triton=asked.get("triton", False), flash_attn=asked.get("flash_attn", False)
    )
    import vllm
    import vllm_ascend
    from vllm.platforms import current_platform

    answer: dict[str, Any] = {
        "vllm": vllm.__version__,
        "platform": type(current_platform).__module__ + "." + type(current_platform).__qualname__,
        "files": [vllm.__file__, vllm_ascend.__file__],
    }
    if asked.get("patches"):
        current_platform.pre_register_and_update()  # platform patches, as at the engine's start
        from vllm_ascend.utils import adapt_patch

        adapt_patch()  # worker patches
        answer["patch_modules"] = sorted(n for n in sys.modules if n.startswith("vllm_ascend.patch."))
    if "operators" in asked:
        answer["invariance"] = _invariance()
    if asked.get("select"):
        answer["selected"] = _selected(current_platform)
    if asked.get("recipe"):
        import recipe_like

        recipe_like.apply()
    if asked.get("inventory"):
        answer |= _inventory(asked["inventory"])
    return {**answer, "called": standin.calls}


def _invariance() -> dict[str, Any]:
    """Run the real initialisation and compare what torch dispatches to before and after."""
    import torch
    import torch_npu
    from vllm.config import VllmConfig
    from vllm_ascend import batch_invariant
    from vllm_ascend.ascend_config import init_ascend_config

    init_ascend_config(VllmConfig())  # a worker has done so before
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(f"{record.levelname}: {record.getMessage()}")  # type: ignore[method-assign]
    batch_invariant.logger.addHandler(handler)
    before = {name: os.environ.pop(name, None) for name in SWITCHES}
    native, error = torch.sum, None
    try:
        batch_invariant.init_batch_invariance()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {
        "registered": _registered(),
        "torch_sum": torch.sum is not native,
        "replaced_of_torch_npu": sorted(
            n for n in ("npu_fused_infer_attention_score", "npu_add_rms_norm") if n in vars(torch_npu)
        ),
        "switches": {name: os.environ[name] for name in SWITCHES if name in os.environ},
        "before": before,
        "heard": [line for line in heard if "atch-invariant" in line],
        "error": error,
    }


def _registered() -> dict[str, str]:
    """Operator -> file of its implementation for the NPU's key, as our observer reads torch's table."""
    from logdiff_kernels.observe.registrations import foreign

    found = {r.op: Path(r.source.rpartition(":")[0]).name for r in foreign() if r.key == "PrivateUse1"}
    return {name: found[f"aten::{name}"] for name in OPERATORS if f"aten::{name}" in found}


def _selected(platform: Any) -> dict[str, str]:
    """What the real selector answers to each setting of the FA3 switch."""
    import inspect

    import torch
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    answers = {}
    for backend in ("none", "FLASH_ATTN"):
        for invariant in (False, True):
            values = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": None, "block_size": 128}
            if "use_batch_invariant" in AttentionSelectorConfig._fields:
                values["use_batch_invariant"] = invariant
            chosen = None if backend == "none" else AttentionBackendEnum[backend]
            try:
                found = platform.get_attn_backend_cls(chosen, AttentionSelectorConfig(**values))
            except ValueError as error:
                found = f"ValueError: {error}"
            answers[f"{backend}, batch invariant {invariant}"] = str(found)
    answers["reads"] = str("use_batch_invariant" in inspect.getsource(type(platform)))
    return answers


def _inventory(asked: dict[str, Any]) -> dict[str, Any]:
    from logdiff_kernels.observe.patched import inventory
    from logdiff_kernels.observe.registrations import foreign

    found = inventory(asked["packages"], stock=asked["stock"])
    return {
        "records": {r.target: r.by for r in found.records},
        "findings": {r.target: [r.kind, r.by, r.live] for r in found.findings},
        "checked": found.checked,
        "foreign": {f"{r.op} {r.key}": [r.source, r.declared] for r in foreign() if r.key == "PrivateUse1"},
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
