"""Starting engines and speaking to them: child processes beside the model, or a server over HTTP."""

from logdiff.target.children import end_children, end_children_on_signals
from logdiff.target.engine import Engine, EngineSpec, OnProgress, Progress, TaskResult, UnsupportedError
from logdiff.target.start import start
from logdiff.target.timeouts import Timeouts

__all__ = [
    "Engine",
    "EngineSpec",
    "OnProgress",
    "Progress",
    "TaskResult",
    "Timeouts",
    "UnsupportedError",
    "end_children",
    "end_children_on_signals",
    "start",
]
