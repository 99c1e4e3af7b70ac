"""The command line. Each command parses, calls the package that does the work, and formats."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `logdiff` and `python -m logdiff`; exits with 0, 1, 2 or 3 (see `logdiff --help`)."""
    from logdiff.cli.app import run

    sys.exit(run(sys.argv[1:] if argv is None else list(argv)))
