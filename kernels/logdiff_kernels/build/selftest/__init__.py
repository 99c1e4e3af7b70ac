"""`logdiff kernels selftest` of the Ascend C kernels: laws and facts of a user's NPU, or of the twin.

The report is plain JSON without paths or times, so that those of two hosts can be compared (`logdiff kernels selftest
--compare`).
"""

from __future__ import annotations

from typing import Any

from logdiff_kernels import laws
from logdiff_kernels.build.arch import arch_name
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.build.selftest import elementwise, matrix, operators, phases, reductions
from logdiff_kernels.build.selftest.section import Scope, Section

__all__ = ["Scope", "Section", "run", "sections"]

NOT_RUN = "the kernels and this self-test were not run on hardware by their authors"


def run(launcher: Launcher, progress: laws.OnProgress | None = None, scope: Scope = Scope.DEFAULT) -> dict[str, Any]:
    """Try every check with `launcher`.

    Returns:
        `laws.report`, with `scope`, `chip`, `exact_exp`, `binary` and `contract`; `sections`: rows of `name`, `tells`,
        `matters`, `checks`, `failed`, `fingerprint`, `facts`; `notes`: sentences on what breaks no law.
    """
    from logdiff_kernels.contract import CONTRACT

    parts = sections(launcher, scope)
    found = laws.report(
        launcher.provider, arch_name(launcher.arch), [check for part in parts for check in part.checks], progress
    )
    about = {"chip": launcher.chip, "exact_exp": launcher.exact_exp, "binary": launcher.binary_hash}
    rows, described = list(found["laws"]), []
    for part in parts:
        mine, rows = rows[: len(part.checks)], rows[len(part.checks) :]
        described.append(
            {
                "name": part.name,
                "tells": part.tells,
                "matters": part.matters,
                "checks": len(mine),
                "failed": sum(not row["ok"] for row in mine),
                "fingerprint": part.fingerprint,
                "facts": part.facts,
            }
        )
    notes = [sentence for part in parts for sentence in part.notes]
    if launcher.chip != "twin":
        notes.append(NOT_RUN)
    return {**found, **about, "contract": CONTRACT, "scope": scope.value, "sections": described, "notes": notes}


def sections(launcher: Launcher, scope: Scope = Scope.DEFAULT) -> list[Section]:
    """Every part, in the order in which they have to run: products are judged by what was found of Mmad."""
    products = matrix.section(launcher, scope)

    def ascending() -> bool:
        return all(matrix.order_of(products, dtype) == "ascending" for dtype in matrix.DTYPES)

    return [
        elementwise.section(launcher, scope),
        reductions.section(launcher, scope),
        products,
        operators.section(launcher, scope, ascending),
        phases.section(launcher, scope),
    ]
