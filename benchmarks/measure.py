"""Time, peak memory and slope of `logdiff measure FILE`, case writing included, for Parquet and JSON Lines.

    python -m benchmarks.measure [--tokens 1000000,10000000] [--forms parquet,jsonl] [--folder DIR] [--json FILE]

Each run is the command line in a process of its own, so that start, reading, statistics and the sealed case all
count. The slope is the exponent of time against tokens between two sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from logdiff.case.batch import PairMeta

from benchmarks.readers import synthetic_batches
from benchmarks.result import finish

LIMITS = {"tokens": 10_000_000, "form": "parquet", "seconds": 20.0, "peak_mib": 2000}
"""The promise that is checked: what `make bench` must show for this form and size."""


def run_once(path: Path, case: Path) -> dict[str, Any]:
    """Measure one file through the command line. Raises SystemExit when it fails."""
    command = [sys.executable, "-m", "logdiff", "measure", str(path), "--case", str(case), "--json"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if child.returncode not in (0, 1):
            raise SystemExit(
                f"measure failed with {child.returncode}: {errors.read().decode(errors='replace')[-2000:]}"
            )
        block = json.load(out)["measure"]
    return {
        "tokens": block["tokens"],
        "seconds": round(seconds, 2),
        "peak_mib": usage.ru_maxrss // 1024,
        "file_mb": path.stat().st_size // 1_000_000,
        "mean_abs": block["mean_abs"],
    }


def bench(form: str, sizes: list[int], folder: Path) -> list[dict[str, Any]]:
    """All sizes of one form, smallest first, each with the slope against the one before."""
    from logdiff.case.readers import write_pairs

    rows: list[dict[str, Any]] = []
    for tokens in sorted(sizes):
        path = folder / f"pairs-{tokens}.{form}"
        write_pairs(path, PairMeta({"vocab_size": 150_000}), synthetic_batches(tokens))
        row = {"form": form, **run_once(path, folder / f"case-{form}-{tokens}")}
        if row["tokens"] != tokens:
            raise SystemExit(f"{row['tokens']} tokens measured of {tokens} written")
        if rows:
            before = rows[-1]
            slope = math.log(row["seconds"] / before["seconds"]) / math.log(row["tokens"] / before["tokens"])
            row["slope"] = round(slope, 3)
        if form == LIMITS["form"] and tokens == LIMITS["tokens"]:
            row["within_limit"] = row["seconds"] < LIMITS["seconds"] and row["peak_mib"] < LIMITS["peak_mib"]
        rows.append(row)
        path.unlink()
    return rows


def main() -> int:
    """Print a table, or write JSON; 1 where the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1000000,10000000", help="sizes, separated by commas")
    parser.add_argument("--forms", default="parquet,jsonl", help="parquet, jsonl, jsonl.gz, jsonl.zst")
    parser.add_argument("--folder", default=None, help="where files and cases are written meanwhile")
    parser.add_argument("--json", default=None, help="also write the rows to this file (- for standard output)")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.tokens.split(",")]
    shown = sys.stderr if arguments.json == "-" else sys.stdout
    rows: list[dict[str, Any]] = []
    print(f"{'form':10} {'tokens':>12} {'seconds':>8} {'peak MiB':>9} {'MB':>6} {'slope':>6}", file=shown)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for form in arguments.forms.split(","):
            for row in bench(form, sizes, Path(folder)):
                rows.append(row)
                figures = f"{row['tokens']:>12,} {row['seconds']:>8} {row['peak_mib']:>9} {row['file_mb']:>6}"
                figures += f" {row.get('slope', ''):>6}"
                print(f"{row['form']:10} {figures}", file=shown, flush=True)
    return finish("measure", LIMITS, rows, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
