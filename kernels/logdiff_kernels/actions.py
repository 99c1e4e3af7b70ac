"""Tasks that need no engine: the facts of this interpreter, and small local models."""

from __future__ import annotations

from typing import Any

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.protocol import required


class EngineFree:
    """The adapter behind `"engine": null`."""

    tasks = frozenset({"environment", "list_models", "build_model"})

    def run(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Do one engine-free task of docs/architecture.md."""
        if task["task"] == "environment":
            from logdiff_kernels.observe.environment import environment

            return TaskOutput(data=environment())
        from logdiff_kernels import models

        if task["task"] == "list_models":
            return TaskOutput(data={"models": models.catalogue()})
        name = required(task, "name", str)
        progress(0, None, "model", f"building {name}")
        options = {key: task[key] for key in ("seed", "dtype") if task.get(key) is not None}
        path = models.build(name, out=task.get("output"), **options, **task.get("overrides", {}))
        return TaskOutput(files={"model": path}, data={"name": name, "path": str(path)})

    def close(self) -> None:
        """Nothing to free."""
