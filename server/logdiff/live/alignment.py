"""The aligned side of a live run: its overlay file, the environment of each engine, and what both sides must report."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from logdiff.case import Case
from logdiff.errors import EvidenceError
from logdiff.live.runfile import RunFile
from logdiff.measure import aligned_differences
from logdiff.target import EngineSpec
from logdiff.target.alignment import BUDGET, SIDES, VARIABLE, overlay_document
from logdiff.target.overlay import package_folder

OVERLAY = "align.json"
NUMERIC = ("align.py", "contract", "cpu", "ops", "ascendc", "plan", "build", "engines")
"""Files and folders of `logdiff_kernels` that decide an aligned run's numbers."""

_SUFFIXES = (".py", ".cpp", ".h", ".asc")


def write_overlay(case: Case, run: RunFile) -> None:
    """Write the overlay file of an aligned run into its case, or leave it as it is when it says the same."""
    if run.align.ops is None:
        return
    document = overlay_document(run.align.ops, run.align.sides, case.manifest.id)
    if _read(case.path / OVERLAY) != document:
        case.write_json(OVERLAY, document)


def engine_spec(spec: EngineSpec, run: RunFile, case: Path, switchable: bool = False) -> EngineSpec:
    """The engine of a side with `LOGDIFF_ALIGN` as the run file decides, whatever the shell's environment says.

    A value in the side's own `env` stays. A running server has an environment of its own. `switchable` lets an engine
    that starts native switch operators in place later.
    """
    if VARIABLE in spec.env or spec.engine == "vllm-http":
        return spec
    value = str(case / OVERLAY) if run.align.of(spec.side) else ""
    more = {BUDGET: "1"} if switchable and not value else {}
    return replace(spec, env={**spec.env, VARIABLE: value, **more})


def ignored_variable(run: RunFile) -> str | None:
    """A sentence when the shell asks for an alignment that the run file does not; None otherwise."""
    if not os.environ.get(VARIABLE) or run.align.ops is not None:
        return None
    return f"{VARIABLE} of this shell is left out: the run file decides (align: {{ops: all}}, or --align all)"


def sources_digest(run: RunFile) -> str | None:
    """SHA-256 over the aligned operators' sources; None for a native run, whose numbers do not depend on them."""
    if run.align.ops is None:
        return None
    root = package_folder()
    digest = hashlib.sha256()
    for name in NUMERIC:
        place = root / name
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix in _SUFFIXES)
        for file in files:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def check_aligned(run: RunFile, fingerprints: dict[str, dict[str, Any]]) -> None:
    """Refuse to call a comparison aligned whose sides do not say that they are, or run other definitions.

    Raises:
        EvidenceError: a side that was to be aligned reports no aligned operators or other ones, or the contract,
            provider or binary of the two sides differ.
    """
    wanted = [side for side in SIDES if run.align.of(side)]
    for side in wanted:
        block = fingerprints.get(side, {}).get("aligned")
        if not isinstance(block, dict):
            raise EvidenceError(
                f"the {side} engine was to run aligned and does not say that it does",
                value=f"sides/{side}/fingerprint.json: aligned = {block!r}",
                hint="see its log; a logdiff_kernels of another version in that environment, or a plug-in left out",
            )
        reported = block.get("ops")
        if isinstance(reported, list) and set(reported) != set(run.align.of(side)):
            raise EvidenceError(
                f"the {side} engine aligned other operators than the run file names",
                value=", ".join(sorted(set(reported) ^ set(run.align.of(side)))),
                hint="see its log",
            )
    if len(wanted) == 2:
        faults = aligned_differences(*(fingerprints[side]["aligned"] for side in SIDES))
        if faults:
            raise EvidenceError(
                f"both sides are aligned, but not to the same thing: {'; '.join(faults)}",
                value=faults[0],
                hint="use the same version of logdiff, on the same kind of machine, on both sides",
            )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
