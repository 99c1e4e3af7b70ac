"""Native libraries of this process that can compute: custom operators, BLAS, oneDNN, collectives; with their hashes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from logdiff_kernels.observe.patched.owners import file_digest, installed

_COMPUTES = ("torch", "vllm", "blas", "dnn", "mkl", "omp", "logdiff", "npu", "cann", "cuda")
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


def libraries() -> list[dict[str, Any]]:
    """Shared objects that are mapped and no system libraries or Python extension modules of the standard library.

    Returns:
        [{"file" (below its install folder), "by" (distribution), "sha256" (16 digits), "changed": reason or null,
        "operators": whether `torch.ops.load_library` loaded it, "computes": whether it does arithmetic, as the names of
        its file and folders tell: extension modules that parse JSON are loaded by chance}], sorted by file.
    """
    torch = sys.modules.get("torch")
    loaded = {str(Path(p).resolve()) for p in getattr(getattr(torch, "ops", None), "loaded_libraries", ())}
    owners, found = installed(), []
    for path in sorted(_mapped() | loaded):
        if (
            path.startswith((*_SYSTEM, sys.base_prefix + "/lib/lib"))
            or owners.standard(path)
            or "/lib-dynload/" in path
        ):
            continue
        owner = owners.of(path)
        root = owner.root if owner is not None else ""
        file = path.removeprefix(f"{root}/") if root else path
        digest = file_digest(path)
        found.append(
            {
                "file": file,
                "by": owner.label if owner is not None else "no distribution",
                "sha256": digest.removeprefix("sha256=")[:16] if digest else None,
                "changed": owners.changed(path),
                "operators": path in loaded,
                "computes": path in loaded or any(part in file for part in _COMPUTES),
            }
        )
    return found


def _mapped() -> set[str]:
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    files = {line.partition("/")[2] for line in text.splitlines() if "/" in line}
    return {f"/{file}" for file in files if ".so" in file.rpartition("/")[2] and not file.endswith("(deleted)")}
