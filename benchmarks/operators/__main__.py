"""`make bench ARGS="operators --quick"`: what `logdiff kernels bench` measures, one JSON line per row."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

FAMILIES = ("linear", "attention", "rows", "engines")


def main() -> int:
    """Run every family in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most about 20 s for each case")
    options = parser.parse_args()
    for name in FAMILIES:
        family = importlib.import_module(f"benchmarks.operators.{name}")
        for case in family.CASES:
            for row in family.run((case,), quick=options.quick):
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
