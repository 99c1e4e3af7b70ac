"""`make faults`: lets `logdiff diagnose` answer about the corpus and scores its verdicts.

    python -m tests.faults [--set tuning|scoring|all] [--seed N] [--only PATTERN ...] [--live N] [--work DIR]

One case at a time holds engines. Each finished case is one JSON line in the work folder, so that a later call goes on;
the last line printed is the summary. Exit 0 when the bars hold.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults import peers, split
from tests.faults.corpus import faults
from tests.faults.fault import CLASSES, Fault
from tests.faults.judge import judge
from tests.faults.summary import plot, summarise, text

MAX_SECONDS, MAX_STARTS = 180, 6
WIND_DOWN = 10.0
"""Seconds beyond the limit that a command may take to end its engines."""

KILL_AFTER = 300.0
"""Seconds after which a command that does not keep its own limit is ended; its case is a miss."""

TUNING_SEED = 1
LIVE = 24
"""Live cases of a set that are run by default: with two engines each, this many fit in its 40 minutes."""


def chosen(which: str, seed: int, live: int, patterns: list[str]) -> list[Fault]:
    """The cases of a set: all pair files, and `live` of the live ones (0: all), drawn by the seed over the classes."""
    half = split.halves(faults())
    found = [f for f in faults() if which == "all" or half[f.name] == which]
    found = [f for f in found if any(fnmatch.fnmatch(f.name, pattern) for pattern in patterns)]
    engines = [f for f in found if f.kind == "live"]
    if not live or patterns != ["*"]:
        return found
    draw = random.Random(f"live {seed}")
    groups = {label: [f for f in engines if f.label == label and not f.control] for label in CLASSES}
    groups["control"] = [f for f in engines if f.control]
    for group in groups.values():
        draw.shuffle(group)
    kept: set[str] = set()
    while len(kept) < min(live, len(engines)):
        for group in groups.values():
            if group and len(kept) < live:
                kept.add(group.pop().name)
    return [f for f in found if f.kind != "live" or f.name in kept]


def run(fault: Fault, seed: int, work: Path) -> dict[str, Any]:
    """Make one fault, have it diagnosed, judge the answer."""
    made = fault.build(seed, work / "made" / f"{fault.name}-{seed}")
    case = work / "cases" / f"{fault.name}-{seed}"
    shutil.rmtree(case, ignore_errors=True)
    command = [sys.executable, "-m", "logdiff", "diagnose", *map(str, made.paths), "--json", "--case", str(case)]
    command += ["--max-seconds", str(MAX_SECONDS), "--max-starts", str(MAX_STARTS)]
    log = work / "logs" / f"{fault.name}-{seed}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with log.open("wb") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        try:
            output, _ = child.communicate(timeout=KILL_AFTER)
            ended = f"exit {child.returncode}, see {log}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            ended = f"still running after {KILL_AFTER:.0f} s, see {log}"
    answer = _document(output)
    seconds, starts = round(time.monotonic() - begun, 1), _starts(case)
    judged = judge(fault, fault.patterns(made.facts), answer, ended)
    shutil.rmtree(case / "captures", ignore_errors=True)
    return {
        "name": fault.name,
        "seed": seed,
        "label": fault.label,
        "kind": fault.kind,
        "control": fault.control,
        "facts": made.facts,
        "judged": judged.as_dict(),
        "verdict": (answer or {}).get("verdict"),
        "candidates": [[c.get("cause"), c.get("score")] for c in (answer or {}).get("candidates", [])[:5]],
        "peers": peers.flags((answer or {}).get("measure")),
        "seconds": seconds,
        "starts": starts,
        "over_limit": seconds > MAX_SECONDS + WIND_DOWN or starts > MAX_STARTS,
    }


def _document(output: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(output)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _starts(case: Path) -> int:
    """Engine starts that the case's journal tells of."""
    path = case / "journal.jsonl"
    if not path.is_file():
        return 0
    events = (json.loads(line).get("event") for line in path.read_text(encoding="utf-8").splitlines() if line)
    return sum(event == "engine_starting" for event in events)


def main() -> int:
    """Run the set; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--set", choices=("tuning", "scoring", "all"), default="tuning", dest="which")
    parser.add_argument("--seed", type=int, help="default: 1, or the scoring seed for the scoring half")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of names; all live cases of them are run")
    parser.add_argument("--live", type=int, default=LIVE, help="live cases to draw; 0: all")
    parser.add_argument("--work", type=Path, default=Path("runs/faults"))
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = split.scoring_seed() if options.which == "scoring" else TUNING_SEED
    if seed is None:
        parser.error(f"{split.SEED_FILE.name} says unset: give --seed")
    cases = chosen(options.which, seed, options.live, options.only or ["*"])
    if options.list:
        print(*(f"{f.kind:6}{f.label:26}{f.name}" for f in cases), sep="\n")
        return 0
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    lines = work / f"{options.which}-{seed}.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.is_file() else []
    done = {row["name"]: row for row in rows}
    for number, fault in enumerate(cases, start=1):
        if fault.name in done:
            continue
        row = run(fault, seed, work)
        done[fault.name] = row
        with lines.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")
        mark = "ok  " if row["judged"]["right_class"] and row["judged"]["first"] is not False else "miss"
        note = f" {row['judged']['reason']}" if row["judged"]["reason"] else ""
        print(f"[{number}/{len(cases)}] {mark} {fault.name} {row['seconds']:.0f} s{note}", file=sys.stderr, flush=True)
    wanted = {fault.name for fault in cases}
    summary = summarise([row for row in done.values() if row["name"] in wanted], len(cases))
    summary |= {"set": options.which, "seed": seed, "reliability": str(work / f"{options.which}-{seed}.png")}
    plot(summary, Path(summary["reliability"]))
    print(text(summary))
    print(json.dumps(summary))
    return 0 if summary["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
