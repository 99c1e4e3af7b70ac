"""The aligned kernels of an interpreter: list, build, self-test, benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from logdiff.actions.done import Done, PathLike
from logdiff.errors import InputError

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress

KERNEL_PROVIDERS = ("cpu", "twin", "ascendc")


def kernels(
    *,
    what: Literal["list", "build", "selftest", "bench"],
    provider: str | None = None,
    arch: str | None = None,
    families: Sequence[str] = (),
    quick: bool = False,
    scope: str | None = None,
    report: PathLike | None = None,
    compare: PathLike | None = None,
    python: str | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """List, build, test or time the aligned kernels of an interpreter.

    Args:
        what: `list` (`logdiff-kernels/1`: `providers`, each with what is `missing` where it can't run), `build`
            (`logdiff-kernels/1`: what was made, with `sha256`), `selftest` (`logdiff-selftest/1`), `bench`
            (`logdiff-bench/1`).
        provider: one of `KERNEL_PROVIDERS`; None: all for a list, else `cpu`.
        arch: NPU architecture, `dav-2201` or `dav-3510`, for `ascendc` and `twin` only.
        families: which benchmarks, by family or case; default: all.
        quick: `bench` takes less time for each case.
        scope: how much `selftest` tries of NPU kernels: `quick`, `default` or `full`.
        report: a saved `selftest`, instead of running one.
        compare: another host's saved `selftest`; `compared` then says what differs. The exit code is 1 when a law fails
            here, or anything differs.
        python: interpreter with torch.
        on_progress: takes progress.

    Raises:
        InputError: no such provider or architecture, an architecture for the CPU, or a file that is no self-test.
        EngineError: kernels that can't be built or run there; the hint says what is missing and what can run instead.
    """
    from logdiff.live import kernels as run_kernels
    from logdiff.measure.selftest import compare_selftests, read_selftest

    if provider is not None and provider not in KERNEL_PROVIDERS:
        raise InputError("no such provider", value=provider, hint=f"one of: {', '.join(KERNEL_PROVIDERS)}")
    other = None if compare is None else read_selftest(compare)
    fields: dict[str, Any] = {"families": list(families), "quick": quick} if what == "bench" else {}
    if what == "selftest":
        fields = {"scope": scope}
    if report is not None:
        data = read_selftest(report)
    else:
        data = run_kernels(what, python, on_progress, provider=provider, arch=arch, **fields)
    if what in ("list", "build"):
        return Done({"format": "logdiff-kernels/1", **data})
    if other is not None:
        data = {**data, "compared": compare_selftests(data, other)}
    failed = what == "selftest" and (data["failed"] or not data.get("compared", {}).get("same", True))
    return Done(data, 1 if failed else 0)
