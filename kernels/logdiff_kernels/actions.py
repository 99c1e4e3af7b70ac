"""Tasks that need no engine: facts of this interpreter, small local models, what can be aligned, the CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logdiff_kernels import kernel_actions, probe_actions
from logdiff_kernels.engines.base import Progress, TaskOutput
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
            "probe_list",
            "probe_facts",
            "probe",
            "reference",
            "check_operators",
        }
    )

    def run(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Do one engine-free task of docs/architecture.md."""
        return _ACTIONS[task["task"]](task, progress)

    def close(self) -> None:
        """Nothing to free."""


def _environment(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.observe.environment import environment

    return TaskOutput(data=environment(lambda done, total, name: progress(done, total, "fact", name)))


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


def _reference(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.reference_actions import reference

    return reference(task, progress)


def _check_operators(task: dict[str, Any], progress: Progress) -> TaskOutput:
    from logdiff_kernels.check_actions import check_operators

    return check_operators(task, progress)


_ACTIONS: dict[str, Callable[[dict[str, Any], Progress], TaskOutput]] = {
    "environment": _environment,
    "list_models": _list_models,
    "build_model": _build_model,
    "align_check": _align_check,
    "dispatch": _dispatch,
    "kernels_list": kernel_actions.list_kernels,
    "kernels_build": kernel_actions.build_kernels,
    "kernels_selftest": kernel_actions.selftest_kernels,
    "kernels_bench": kernel_actions.bench_kernels,
    "probe_list": probe_actions.list_probes,
    "probe_facts": probe_actions.probe_facts,
    "probe": probe_actions.run_probes,
    "reference": _reference,
    "check_operators": _check_operators,
}
