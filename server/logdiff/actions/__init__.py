"""What the command line and the tools both do: one function per command, results as `--json` prints them.

Heavy packages are imported by the functions that need them, so that this package costs nothing to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logdiff.actions.align import align_apply, align_plan, align_revert, align_status
from logdiff.actions.audit import audit
from logdiff.actions.capture import DEMO_MODELS, build_model, demo, env, list_models, run
from logdiff.actions.diagnose import diagnose
from logdiff.actions.diagnose_live import localize
from logdiff.actions.dispatch import dispatch
from logdiff.actions.dispatch_profile import dispatch_profile
from logdiff.actions.done import Done
from logdiff.actions.evidence import compare, import_, measure, query, report
from logdiff.actions.kernels import KERNEL_PROVIDERS, kernels
from logdiff.actions.playbook import playbook
from logdiff.actions.probe import probe_list, probe_run

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress

__all__ = [
    "ACTIONS", "DEMO_MODELS", "KERNEL_PROVIDERS", "Done", "align_apply", "align_plan", "align_revert", "align_status",
    "audit", "build_model", "compare", "demo", "diagnose", "dispatch", "dispatch_profile", "env", "import_", "kernels",
    "list_models", "localize", "measure", "perform", "playbook", "probe_list", "probe_run", "query", "report", "run",
]  # fmt: skip


def perform(action: str, arguments: dict[str, Any], on_progress: OnProgress | None = None) -> Done:
    """Do one of `ACTIONS` with keyword arguments that came over a wire."""
    done: Done = ACTIONS[action](**arguments, on_progress=on_progress)
    return done


ACTIONS: dict[str, Callable[..., Done]] = {
    "align_apply": align_apply,
    "align_plan": align_plan,
    "align_revert": align_revert,
    "audit": audit,
    "diagnose": diagnose,
    "dispatch": dispatch,
    "dispatch_profile": dispatch_profile,
    "env": env,
    "import": import_,
    "localize": localize,
    "measure": measure,
    "playbook": playbook,
    "probe_run": probe_run,
    "query": query,
    "report": report,
    "run": run,
}
"""What a worker process may be asked for."""
