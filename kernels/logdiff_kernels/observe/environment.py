"""Facts of this interpreter and machine (`logdiff-env/1`): what runs here, whatever the engine."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ENVIRONMENT = (
    "VLLM_",
    "HCCL_",
    "LCCL_",
    "ASCEND_",
    "ATB_",
    "OMP_",
    "MKL_",
    "KMP_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_TF32_OVERRIDE",
    "NCCL_",
    "TORCH",
    "PYTORCH_",
    "ATEN_",
    "ONEDNN_",
    "DNNL_",
    "TRITON_",
    "FLASHINFER_",
    "TASK_QUEUE_ENABLE",
    "CPU_AFFINITY_CONF",
    "CLOSE_MATMUL_K_SHIFT",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_",
    "PYTHONHASHSEED",
    "VERL_",
    "LOGDIFF_",
    "SOC_VERSION",
)
"""Variables that can change numbers or dispatch: names or prefixes. Nothing else of the environment is read."""

_SECRET = re.compile(r"TOKEN(?!S|IZ)|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE|AUTH", re.IGNORECASE)
_PACKAGES = re.compile(
    r"^(torch|torch[-_]npu|torchvision|transformers|tokenizers|safetensors|accelerate|peft|numpy|triton.*|vllm.*|"
    r"flash[-_]attn.*|flashinfer.*|xformers|sglang|verl|megatron.*|mindspeed.*|batch[-_]invariant.*|deepspeed|"
    r"bitsandbytes|gguf|compressed[-_]tensors|liger[-_]kernel|kernels|ray|logdiff|nvidia-(cublas|cudnn|nccl).*|"
    r"intel[-_]openmp|mkl.*|te[-_]?.*engine|transformer[-_]engine)$",
    re.IGNORECASE,
)
_CANN_FILES = (
    "version.info",
    "version.cfg",
    "ascend_toolkit_install.info",
    "compiler/version.info",
    "opp/version.info",
    "runtime/version.info",
)


def environment(on_fact: Callable[[int, int, str], None] = lambda done, total, name: None) -> dict[str, Any]:
    """All facts: python, platform, cpu, torch, packages, distributions, device, cann, env.

    Args:
        on_fact: called with (facts told, number of facts, name) before each of them: torch alone takes seconds.
    """
    facts: dict[str, Callable[[], Any]] = {
        "python": python,
        "platform": platform_facts,
        "cpu": cpu,
        "torch": torch_facts,
        "packages": packages,
        "distributions": ambiguous_distributions,
        "device": device,
        "cann": cann,
        "env": environment_variables,
    }
    found: dict[str, Any] = {"format": "logdiff-env/1"}
    for done, (name, tell) in enumerate(facts.items()):
        on_fact(done, len(facts), name)
        found[name] = tell()
    on_fact(len(facts), len(facts), "")
    return found


def python() -> dict[str, Any]:
    """Version, implementation and path of the interpreter."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
    }


def platform_facts() -> dict[str, Any]:
    """Operating system, machine and C library; no host name."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def cpu() -> dict[str, Any]:
    """Model, number of usable processors and instruction sets, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines())
        if key.strip() in ("model name", "flags", "Features", "CPU part", "CPU implementer")
    }
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    vector = [f for f in flags if re.match(r"^(sse4_2|avx|fma|amx|bf16|f16c|asimd|sve|sme\d*$|i8mm|fphp)", f)]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": fields.get("model name") or fields.get("CPU part"),
        "processors": usable,
        "flags": sorted(vector),
    }


def packages() -> dict[str, str]:
    """Version of every installed package that can have a part in the numbers."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name and _PACKAGES.match(name) and name not in found:
            found[name] = distribution.version
    return dict(sorted(found.items()))


_AMBIGUOUS = ("batch_invariant_ops",)
"""Import names that unrelated packages share."""
_NPU_FILE = re.compile(r"npu|ascend|cann|opp/", re.IGNORECASE)


def ambiguous_distributions() -> dict[str, dict[str, Any]]:
    """Which distribution provides an import name that several packages have; read off its metadata, never imported.

    `npu_files` is whether any of its files is for NPUs: the CANN operators have some, the CUDA package of the same
    name has none. None where the distribution lists no files.
    """
    found: dict[str, dict[str, Any]] = {}
    for distribution in metadata.distributions():
        files = distribution.files
        tops = {str(file).split("/", 1)[0].removesuffix(".py") for file in files or ()}
        name = str(distribution.metadata["Name"] or "")
        for wanted in _AMBIGUOUS:
            if wanted in tops or name.replace("-", "_").lower() == wanted:
                own = [str(f) for f in files or () if ".dist-info/" not in str(f)]
                found[wanted] = {
                    "name": name,
                    "version": distribution.version,
                    "npu_files": any(_NPU_FILE.search(f) for f in own) if own else None,
                }
    return found


def environment_variables() -> dict[str, str]:
    """The variables of `ENVIRONMENT` that are set; one whose name or value looks like a secret is shown as `***`."""
    found = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(ENVIRONMENT):
            found[name] = "***" if _SECRET.search(name) or ("@" in value and "://" in value) else value
    return found


def torch_facts() -> dict[str, Any] | None:
    """Build, threads and determinism switches of torch; None where it can't be imported."""
    try:
        import torch
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    backends: Any = torch.backends
    cudnn, matmul = backends.cudnn, backends.cuda.matmul
    return {
        "version": torch.__version__,
        "git": getattr(torch.version, "git_version", None),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": backends.cpu.get_cpu_capability(),
        "mkl": backends.mkl.is_available(),
        "mkldnn": backends.mkldnn.is_available() and bool(backends.mkldnn.enabled),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": {"matmul": bool(matmul.allow_tf32), "cudnn": bool(cudnn.allow_tf32)},
        "reduced_precision_reduction": {
            "bf16": bool(matmul.allow_bf16_reduced_precision_reduction),
            "fp16": bool(matmul.allow_fp16_reduced_precision_reduction),
        },
    }


def device() -> dict[str, Any]:
    """Accelerators that torch sees: kind (`cuda`, `npu` or `cpu`), names, count, driver-side versions."""
    try:
        import torch
    except Exception:
        return {"kind": None}
    for kind in ("cuda", "npu"):
        module = getattr(torch, kind, None)
        try:
            available = module is not None and bool(module.is_available())
        except Exception as error:
            return {"kind": kind, "error": f"{type(error).__name__}: {error}"}
        if module is None or not available:
            continue
        facts: dict[str, Any] = {
            "kind": kind,
            "count": module.device_count(),
            "names": [module.get_device_name(i) for i in range(module.device_count())],
        }
        if kind == "cuda":
            facts["capability"] = [list(module.get_device_capability(i)) for i in range(module.device_count())]
        return facts
    return {"kind": "cpu"}


def cann() -> dict[str, Any] | None:
    """Paths and version files of Ascend CANN; None where there is no sign of it."""
    roots = [os.environ.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH")]
    roots += ["/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest"]
    seen: dict[str, dict[str, str]] = {}
    for root in dict.fromkeys(r for r in roots if r):
        folder = Path(root)
        if not folder.is_dir():
            continue
        seen[root] = {}
        for name in _CANN_FILES:
            file = folder / name
            try:
                seen[root][name] = file.read_text(encoding="utf-8", errors="replace")[:2000]
            except OSError:
                continue
    driver = Path("/usr/local/Ascend/driver/version.info")
    if not seen and not driver.is_file():
        return None
    return {
        "toolkits": seen,
        "driver": driver.read_text(encoding="utf-8", errors="replace")[:2000] if driver.is_file() else None,
    }
