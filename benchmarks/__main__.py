"""`make bench`: every benchmark of this folder in turn; `make bench ARGS=measure` runs one."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

ON_REQUEST = frozenset({"ablation", "mutants"})
"""Run by name only: they take long."""


def main() -> int:
    """Run the named benchmarks, or all; further arguments go to a single named one."""
    names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))
    usual = [name for name in names if name not in ON_REQUEST]
    chosen, rest = (sys.argv[1:2], sys.argv[2:]) if len(sys.argv) > 1 else (usual, [])
    for name in chosen:
        if name not in names:
            print(f"no benchmark {name!r}; there are: {', '.join(names)}", file=sys.stderr)
            return 2
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *rest], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
