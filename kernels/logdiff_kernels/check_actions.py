"""The task `check_operators`: each operator of both sides against fp64, on what that side fed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logdiff_kernels import sequences as files
from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.errors import InputError
from logdiff_kernels.protocol import plain, required


def check_operators(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Judge boundary files.

    Task: {"model", "dtype", "captures": [boundary files], "truth": sequence file, "sampling", "args": {side: {...}},
    "seconds": budget or null, "output": JSON}. The reference is the checkpoint's own configuration whatever `args`
    say; numbers in them are only candidates for what a side computes instead. The result is `logdiff-operators/1`.

    Raises:
        InputError: no captures, a file that can't be read, samples that the truth doesn't have, a sketch.
    """
    from logdiff_kernels.check.captured import Captured
    from logdiff_kernels.check.reference import reference
    from logdiff_kernels.check.report import report
    from logdiff_kernels.observe.boundaries.files import BoundaryFile

    output = Path(required(task, "output", str))
    paths = required(task, "captures", list)
    if not paths:
        raise InputError("there is no capture to check", value=paths, hint="boundary files of the task 'capture'")
    truth = files.read(required(task, "truth", str))
    ids: dict[str, Sequence[int]] = {
        n: [*p, *r] for n, p, r in zip(truth.sample_ids, truth.prompts, truth.responses, strict=True)
    }
    prompts = {n: len(p) for n, p in zip(truth.sample_ids, truth.prompts, strict=True)}
    captures = [Captured(BoundaryFile(path), ids, prompts) for path in paths]
    for captured in captures:
        if captured.header.extra.get("level") == "sketch":
            raise InputError("operators can't be checked on sketches", value=str(captured.file.path), hint="level full")
    folder, dtype = required(task, "model", str), required(task, "dtype", str)
    progress(0, None, "", f"the clean model of {folder}, in fp64")
    first = list(next(iter(ids.values()), []))
    model = reference(folder, dtype, first, task.get("sampling") or {}, args=task.get("args") or {})
    document = {"model": folder, **report(model, captures, progress, task.get("seconds"))}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(plain(document), indent=1, allow_nan=False), encoding="utf-8")
    off = sum(c["ok"] is False for c in document["checks"])
    data = {"checks": len(document["checks"]), "off": off, "first_off": document["first_off"]}
    return TaskOutput({"operators": output}, data)
