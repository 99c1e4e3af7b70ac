"""Live comparisons: a run file in, a case with captured tokens and measured results out."""

from logdiff.live.engine_tasks import build_model, environment, list_models
from logdiff.live.run import run
from logdiff.live.runfile import RunFile, load_run_file

__all__ = ["RunFile", "build_model", "environment", "list_models", "load_run_file", "run"]
