"""The tasks `probe_list`, `probe_facts` and `probe`: operator probes of this interpreter (docs/probes.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.kernel_actions import built_cpu
from logdiff_kernels.protocol import plain
from logdiff_kernels.toolchain import content_hash


def list_probes(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Operators, providers and relations: `logdiff_kernels.probes.catalogue.listed`."""
    from logdiff_kernels.probes import catalogue

    return TaskOutput(data=catalogue.listed())


def probe_facts(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """What decides a probe's bits besides its own arguments: versions, machine, variables, threads, kernels, probes.

    Kernels are built and named only where `aligned` of the task says that they will be probed (default: yes).
    """
    import torch

    from logdiff_kernels.observe import environment

    facts = {
        "packages": environment.packages(),
        "cpu": environment.cpu(),
        "env": environment.environment_variables(),
        "device": environment.device(),
        "threads": torch.get_num_threads(),
        "aligned": _aligned(progress) if task.get("aligned", True) else None,
        "probes": _sources(),
    }
    return TaskOutput(data=facts)


def _aligned(progress: Progress) -> Any:
    """The build of the aligned kernels, made where there is none; a sentence where this machine can't have them."""
    from logdiff_kernels.ops import registry

    try:
        built_cpu(progress)
        return registry.fingerprint()
    except UnsupportedError as error:
        return error.message


def run_probes(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """The checks of a request (`logdiff_kernels.probes.session.Wanted`); with `output` each finished entry is appended
    to that file as one JSON line, so that nothing is lost with the process."""
    from logdiff_kernels.probes import ranks, session

    wanted = session.Wanted.of(task)
    known = {tuple(entry) for entry in task.get("known") or ()}
    output = task.get("output")

    def on_check(done: int, total: int, name: str, entry: dict[str, Any] | None) -> None:
        progress(done, total, "check", name)
        if entry is not None and output:
            with Path(output).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(plain(entry), allow_nan=False) + "\n")

    try:
        data = session.run(wanted, on_check, known)
    finally:
        ranks.close()
    return TaskOutput(data=data)


def _sources() -> str:
    """SHA-256 over the probes' own files."""
    folder = Path(__file__).with_name("probes")
    files = sorted(folder.rglob("*.py"))
    return content_hash((file.relative_to(folder).as_posix() for file in files), files)
