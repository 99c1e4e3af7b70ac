"""The task `dispatch_trace`, as far as every engine does it alike: its inputs, its ranks and its document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logdiff_kernels import frames
from logdiff_kernels.engines.base import TaskOutput
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.process import rank_digest
from logdiff_kernels.protocol import plain, required

PHASES = ("prefill", "decode", "score", "backward")
LENGTHS = (23, 17, 11, 38, 13)
"""Prompt lengths of the traced sequences: their number, sum and maximum are hardly ever sizes of a model."""

NEW_TOKENS = 3


def phases_of(task: dict[str, Any]) -> list[str]:
    """The phases that a task asks for. Raises `InputError` for an unknown one."""
    wanted = task.get("phases") or list(PHASES)
    for name in wanted:
        if name not in PHASES:
            raise InputError(f"unknown phase {name!r}", value=name, hint=f"of: {', '.join(PHASES)}")
    return [name for name in PHASES if name in wanted]


def sequences(vocabulary: int) -> list[list[int]]:
    """Token ids for the trace: equal in every process, within the vocabulary, without its first and last ones."""
    span = max(1, vocabulary - 20)
    return [[10 + (7919 * (place + 1) * (row + 3)) % span for place in range(n)] for row, n in enumerate(LENGTHS)]


def failure(error: BaseException, phase: str, *, native: bool) -> dict[str, Any]:
    """What a pass that failed leaves: {"phase", "pass", "error", "where"}, the innermost place first."""
    return {
        "phase": phase,
        "pass": "native" if native else "watched",
        "error": frames.words(error),
        "where": frames.places(error),
    }


def finish(
    task: dict[str, Any],
    ranks: list[dict[str, Any]],
    skipped: dict[str, str],
    table: dict[str, Any],
    failed: dict[str, Any] | None = None,
) -> TaskOutput:
    """Write `logdiff-dispatch/1` of an engine: the first rank in full, all ranks by their digests.

    Args:
        task: with `output`.
        ranks: one document per rank, in rank order.
        skipped: {phase: why it was not traced}.
        table: `logdiff_kernels.coverage.dispatch` of this process.
        failed: `failure` of the pass after which no other ran; the rest of the document is true of the process.
    """
    digests = [rank_digest(rank) for rank in ranks]
    first = ranks[0]
    document = {
        **{key: value for key, value in table.items() if key != "functions"},
        "phases": first["phases"],
        "native_pass": first["native"],
        "operators": first["operators"],
        "skipped": skipped,
        "failed": failed,
        **{key: first[key] for key in ("patched", "libraries", "modules", "threads", "switches", "resolved")},
        "ranks": digests,
        "rank_findings": [
            {"rank": rank, **record}
            for rank, one in enumerate(ranks)
            if rank
            for record in one["patched"]["findings"]
            if record not in first["patched"]["findings"]
        ],
        "functions": table["functions"],
    }
    path = Path(required(task, "output", str))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(document), ensure_ascii=False), encoding="utf-8")
    return TaskOutput({"dispatch": path}, {"ranks": len(ranks), "phases": sorted(first["phases"])})
