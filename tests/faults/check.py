"""Whether every live fault is really there: `python -m tests.faults.check [--seed N] [--only PATTERN ...]`.

Each fault's run file and its stock twin go through `logdiff run` without a floor; stock runs that are alike are made
once. One JSON line per comparison is kept in the work folder, so that a later call goes on.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.faults.corpus import faults
from tests.faults.fault import Fault


def measured(run: Path, work: Path, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The last step's measure of a run file, or the error of the run; from `known` where it was made before."""
    from logdiff.errors import LogdiffError
    from logdiff.live import load_run_file
    from logdiff.live import run as run_live

    key = digest(run)
    if key in known:
        return known[key]
    case, begun = work / "cases" / key, time.monotonic()
    found: dict[str, Any]
    try:
        finished = run_live(load_run_file(run), case, name=run.parent.name)
        result = json.loads((finished.path / "results" / "measure.json").read_bytes())
        failed = [gate["gate"] for gate in result["gates"] if gate["ok"] is False]
        found = {"measure": result["measure"], "failed_gates": failed}
    except LogdiffError as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    found |= {"key": key, "seconds": round(time.monotonic() - begun, 1)}
    shutil.rmtree(case, ignore_errors=True)
    known[key] = found
    with (work / "measured.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")
    return found


def digest(run: Path) -> str:
    """Identity of a comparison: the run file and the modules and checkpoints that it names beside itself."""
    text = run.read_text(encoding="utf-8").replace(str(run.parent), "")
    document = yaml.safe_load(run.read_text(encoding="utf-8"))
    for side in ("rollout", "train"):
        for module in document[side].get("modules", []):
            text += Path(module).read_text(encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def verdict(fault: Fault, stock: dict[str, Any], faulty: dict[str, Any]) -> dict[str, Any]:
    """One row: the two mean |d|, their ratio, and whether the fault is there as it is meant to be."""
    row: dict[str, Any] = {"name": fault.name, "label": fault.label, "above": fault.above}
    if "error" in stock or "error" in faulty:
        return row | {"error": faulty.get("error") or stock.get("error"), "there": False}
    before, after = (float(side["measure"]["mean_abs"]) for side in (stock, faulty))
    ratio = after / before if before else float("inf") if after else 1.0
    return row | {
        "stock": before,
        "faulty": after,
        "ratio": ratio,
        "failed_gates": faulty["failed_gates"],
        "there": ratio >= fault.above if fault.above else None,
    }


def main() -> int:
    """Check the live faults; exit 1 where one is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--work", type=Path, default=Path("runs/faults-check"))
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    lines = work / "measured.jsonl"
    rows = map(json.loads, lines.read_text(encoding="utf-8").splitlines()) if lines.is_file() else []
    known = {row["key"]: row for row in rows if "error" not in row}
    missing = 0
    for fault in faults():
        if fault.kind != "live" or not any(fnmatch.fnmatch(fault.name, pattern) for pattern in options.only):
            continue
        made = fault.build(options.seed, work / "made" / f"{fault.name}-{options.seed}")
        assert made.stock is not None
        row = verdict(fault, measured(made.stock, work, known), measured(made.paths[0], work, known))
        row["facts"] = made.facts
        missing += row["there"] is False
        print(json.dumps(row), flush=True)
    print(json.dumps({"format": "logdiff-faults-check/1", "seed": options.seed, "missing": missing}))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
