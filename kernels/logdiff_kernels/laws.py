"""`logdiff-selftest/1`: laws tried one by one, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OnProgress = Callable[[int, int, str, str], None]


@dataclass(frozen=True, slots=True)
class Check:
    """One law of one kernel.

    Attributes:
        kernel: what is tested.
        law: in words.
        run: gives an empty text when the law holds, else what broke it.
    """

    kernel: str
    law: str
    run: Callable[[], str]


def report(provider: str, arch: str, checks: Sequence[Check], progress: OnProgress | None = None) -> dict[str, Any]:
    """Try every check.

    Args:
        provider: whose kernels.
        arch: instruction set or NPU architecture.
        checks: in the order in which they are tried.
        progress: takes (done, total, "law", kernel).

    Returns:
        `logdiff-selftest/1`: `provider`, `arch`, `laws` [{"kernel", "law", "ok", "detail"}], `failed`.
    """
    laws: list[dict[str, Any]] = []
    for done, check in enumerate(checks, 1):
        try:
            detail = check.run()
        except Exception as error:  # a kernel that raises has failed its law, not the report
            detail = f"{type(error).__name__}: {error}"[:300]
        laws.append({"kernel": check.kernel, "law": check.law, "ok": not detail, "detail": detail or "holds"})
        if progress is not None:
            progress(done, len(checks), "law", check.kernel)
    failed = sum(not law["ok"] for law in laws)
    return {"format": "logdiff-selftest/1", "provider": provider, "arch": arch, "laws": laws, "failed": failed}
