"""Tasks that need no engine: facts of this interpreter, small local models, what can be aligned, the CPU kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.protocol import required


class EngineFree:
    """The adapter behind `"engine": null`."""

    tasks = frozenset(
        {
            "environment",
            "list_models",
            "build_model",
            "align_check",
            "dispatch",
            "kernels_list",
            "kernels_build",
            "kernels_selftest",
            "kernels_bench",
        }
    )

    def run(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Do one engine-free task of docs/architecture.md."""
        return _ACTIONS[task["task"]](task, progress)

    def close(self) -> None:
        """Nothing to free."""


def _environment(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.observe.environment import environment

    return TaskOutput(data=environment())


def _list_models(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels import models

    return TaskOutput(data={"models": models.catalogue()})


def _build_model(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels import models

    name = required(task, "name", str)
    progress(0, None, "model", f"building {name}")
    options = {key: task[key] for key in ("seed", "dtype") if task.get(key) is not None}
    path = models.build(name, out=task.get("output"), **options, **task.get("overrides", {}))
    return TaskOutput(files={"model": path}, data={"name": name, "path": str(path)})


def _align_check(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.coverage import align_check

    progress(0, None, "", f"asking {task.get('engine')} what can be aligned")
    data = align_check(
        required(task, "engine", str),
        required(task, "side", str),
        required(task, "model", str),
        task.get("dtype"),
        task.get("args") or {},
        required(task, "ops", list),
    )
    return TaskOutput(data=data)


def _dispatch(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.coverage import dispatch

    return TaskOutput(data=dispatch(required(task, "engine", str), required(task, "side", str), task.get("model")))


def _kernels_list(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.ops import registry

    return TaskOutput(data={"providers": [dataclasses.asdict(provider) for provider in registry.providers()]})


def _kernels_build(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.align import PROVIDER
    from logdiff_kernels.cpu import library

    progress(0, None, "", "compiling what is not built yet")
    found = library.loaded()
    refused = [{"isa": isa, "why": why} for isa, why in found.refused]
    data = {"isa": found.isa, "path": str(found.path), "sha256": found.sha256, "refused": refused}
    return TaskOutput(data={"provider": PROVIDER, **data})


def _kernels_selftest(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.ops import selftest

    return TaskOutput(data=selftest.run(progress))


def _kernels_bench(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Every benchmark of `benchmarks/operators` that has a `run(cases, quick) -> rows`, or the named ones.

    `families` holds names of files, or of single cases.
    """
    import importlib
    import pkgutil
    import sys

    root = Path(__file__).resolve().parents[2]
    folder = root / "benchmarks" / "operators"
    if not folder.is_dir():
        raise UnsupportedError(
            "the benchmarks are not installed with the package", value=str(folder), hint="run this in a source checkout"
        )
    sys.path.insert(0, str(root))
    names = sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_"))
    modules = {name: importlib.import_module(f"benchmarks.operators.{name}") for name in names}
    families = {name: module for name, module in modules.items() if hasattr(module, "run")}
    cases = {case: name for name, module in families.items() for case in module.CASES}
    chosen: dict[str, list[str]] = {}
    for wanted in task.get("families") or list(families):
        if wanted not in families and wanted not in cases:
            raise InputError("no such benchmark", value=wanted, hint=f"one of: {', '.join([*families, *cases])}")
        of = cases.get(wanted, wanted)
        chosen.setdefault(of, []).extend([wanted] if wanted in cases else families[wanted].CASES)
    rows: list[dict[str, Any]] = []
    for done, (name, some) in enumerate(chosen.items()):
        progress(done, len(chosen), "family", name)
        rows += families[name].run(tuple(dict.fromkeys(some)), quick=bool(task.get("quick")))
    measured = [row for row in rows if "skipped" not in row]
    skipped = [{"case": row["case"], "reason": row["skipped"]} for row in rows if "skipped" in row]
    return TaskOutput(data={"format": "logdiff-bench/1", "results": measured, "skipped": skipped})


_ACTIONS: dict[str, Callable[[dict[str, Any], Progress], TaskOutput]] = {
    "environment": _environment,
    "list_models": _list_models,
    "build_model": _build_model,
    "align_check": _align_check,
    "dispatch": _dispatch,
    "kernels_list": _kernels_list,
    "kernels_build": _kernels_build,
    "kernels_selftest": _kernels_selftest,
    "kernels_bench": _kernels_bench,
}
