"""`make typecheck-cann`: do the Ascend C sources pass the compiler's checks against the headers of the user's own CANN?

`bisheng -fsyntax-only` for every source and architecture, both kinds of exp; nothing is written. Without
`ASCEND_HOME_PATH` the check is skipped.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path

from logdiff_kernels import toolchain
from logdiff_kernels.build import compile
from logdiff_kernels.build.cann import VARIABLES, Cann, find_cann
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan.plans import ARCHES


def check(cann: Cann) -> list[str]:
    """What the compiler says against a source, one text each; empty when all pass."""
    units = list(product(compile.chosen(None), ARCHES, (False, True)))
    headers = [f"-I{folder}" for folder in cann.includes]

    def one(unit: tuple[Path, str, bool]) -> None:
        source, arch, exact_exp = unit
        argv = [str(cann.bisheng), *compile.flags(arch, exact_exp), *headers, "-fsyntax-only"]
        what = f"{source.name} for {arch}{' with exact exp' if exact_exp else ''}"
        argv.append(source.relative_to(compile.PACKAGE).as_posix())
        compilers.run(argv, what, folder=compile.PACKAGE, timeout=compile.TIMEOUT)

    with toolchain.Compilers() as compilers:
        results = compilers.each(one, units)
    return [f"{found.message}\n{found.hint}" for found in results if isinstance(found, UnsupportedError)]


def main() -> int:
    """Exit status: 0 when every source passes or there is nothing to check against, 1 when one does not."""
    if not any(os.environ.get(variable) for variable in VARIABLES):
        print(f"typecheck-cann: skipped, neither {' nor '.join(VARIABLES)} is set")
        return 0
    try:
        cann = find_cann()
    except UnsupportedError as error:
        print(f"typecheck-cann: {error.message} ({error.value}); {error.hint}", file=sys.stderr)
        return 1
    faults = check(cann)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"typecheck-cann: {len(compile.sources())} sources, CANN {cann.version}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
