"""How long an engine may take before it counts as stuck."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Generous: a large model on a slow disk starts in minutes, a long rollout runs for hours.

    Args:
        hello: from the start of the child process until its first word (imports of the interpreter alone).
        start: until the engine is built.
        task: for one task.
        stop: between asking an engine to end, SIGTERM, and SIGKILL.
    """

    hello: float = 300.0
    start: float = 3600.0
    task: float = 6 * 3600.0
    stop: float = 25.0
