"""Live comparisons: a run file in, a case with captured tokens and measured results out."""

from logdiff.live.engine_tasks import align_check, build_model, dispatch, environment, kernels, list_models
from logdiff.live.run import resolve_models, run
from logdiff.live.runfile import RunFile, load_run_file

__all__ = [
    "RunFile",
    "align_check",
    "build_model",
    "dispatch",
    "environment",
    "kernels",
    "list_models",
    "load_run_file",
    "resolve_models",
    "run",
]
