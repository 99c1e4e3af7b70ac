"""What runs when nothing is in the way: kernel names, generated code, and kernels called without torch's dispatcher.

One pass under `torch.profiler`, with oneDNN's own log and with Python's profile hook, which sees the wrappers that
Inductor generates and the drivers of the aligned kernels.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

MAX_NAMES = 400
_GENERATED = re.compile(r"/torchinductor_|/inductor_cache/|/torch_compile_cache/|/fxgraph/|<eval_with_key>")
_KERNEL = re.compile(r"\b((?:cpp|triton|cuda|npu)_(?:fused|poi|per|red|tem)\w*)\s*[=(\[]")
_EXTERN = re.compile(r"\b(?:extern_kernels|aten|torch\.ops)\.([\w.]+)\(")
_DIRECT = ("logdiff_kernels.cpu.", "logdiff_kernels.ascendc.")
_NOISE = ("logdiff_kernels.cpu.library", "logdiff_kernels.ascendc.launch")


class Native:
    """Collects the native pass of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, Counter[str]]] = {}
        self._files: dict[str, str] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Observe what runs, without a dispatch mode."""
        found = self.phases.setdefault(name, {k: Counter() for k in ("ops", "kernels", "generated", "direct")})
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with _output_of_c() as output, torch.profiler.profile(activities=activities) as profile:
            old = sys.getprofile()
            sys.setprofile(lambda frame, event, _arg: self._call(found, frame, event))
            try:
                yield
            finally:
                sys.setprofile(old)
        for event in profile.events() or ():
            device = "kernels" if str(event.device_type) != "DeviceType.CPU" else "ops"
            if "::" in event.name or device == "kernels" or event.name.startswith("Torch-Compiled"):
                found[device][event.name[:200]] += 1
        for line in output():
            kernel = _onednn(line)
            if kernel is not None:
                found["kernels"][kernel] += 1

    def _call(self, found: dict[str, Counter[str]], frame: FrameType, event: str) -> None:
        if event != "call":
            return
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        if isinstance(module, str) and module.startswith(_DIRECT) and module not in _NOISE:
            if not code.co_name.startswith(("_", "<")):
                found["direct"][f"{module}.{code.co_name}"] += 1
        elif _GENERATED.search(code.co_filename):
            found["generated"][code.co_filename] += 1

    def as_dict(self) -> dict[str, Any]:
        """{phase: {"ops", "kernels", "direct" {name: count}, "generated" [{"file", "calls", "kernels", "extern"}]}}."""
        return {
            name: {
                **{kind: dict(found[kind].most_common(MAX_NAMES)) for kind in ("ops", "kernels", "direct")},
                "generated": [_generated(path, count) for path, count in found["generated"].most_common(40)],
            }
            for name, found in self.phases.items()
        }


def _generated(path: str, calls: int) -> dict[str, Any]:
    """A generated file: what it calls, and a hash of its text without its own folder names."""
    import hashlib

    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {"file": path, "calls": calls, "kernels": [], "extern": [], "sha256": None}
    kernels = list(dict.fromkeys(_KERNEL.findall(text)))
    extern = list(dict.fromkeys(_EXTERN.findall(text)))
    digest = hashlib.sha256(re.sub(r"/[\w./-]+|c[a-z0-9]{50}", "", text).encode()).hexdigest()[:16]
    return {"file": Path(path).name, "calls": calls, "kernels": kernels[:60], "extern": extern[:60], "sha256": digest}


def _onednn(line: str) -> str | None:
    """ "oneDNN matmul brg_matmul:avx512_core_amx" of a line of oneDNN's log; None for any other line."""
    parts = line.split(",")
    if not parts[0].startswith(("onednn_verbose", "dnnl_verbose")):
        return None
    for place, part in enumerate(parts):
        if part == "exec" and place + 3 < len(parts):
            return f"oneDNN {parts[place + 2]} {parts[place + 3]}"
    return None


@contextmanager
def _output_of_c() -> Iterator[Any]:
    """What C code prints to standard output meanwhile (oneDNN's log goes there), and that log switched on."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    kept = os.dup(1)
    lines: list[str] = []
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            with _verbose():
                yield lambda: lines
        finally:
            sys.stdout.flush()
            libc.fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            lines += file.read(64 << 20).decode(errors="replace").splitlines()


@contextmanager
def _verbose() -> Iterator[None]:
    mkldnn: Any = torch.backends.mkldnn
    if not mkldnn.is_available():
        yield
        return
    with mkldnn.verbose(mkldnn.VERBOSE_ON):
        yield
