"""The tasks `kernels_list`, `kernels_build`, `kernels_selftest` and `kernels_bench`, for every provider."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from logdiff_kernels.cpu.library import Loaded

PROVIDERS = ("cpu", "twin", "ascendc")
DEFAULT_ARCH = "dav-2201"


def list_kernels(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Every provider, or the named one: its record, and what is missing where it can't run."""
    wanted = [_provider(task)] if task.get("provider") else PROVIDERS
    if wanted == ["cpu"]:
        _refuse_arch(task)
    return TaskOutput(data={"providers": [_LISTED[provider](task) for provider in wanted]})


def build_kernels(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Compile what is not built yet."""
    provider = _provider(task)
    if provider == "cpu":
        return TaskOutput(data=_build_cpu(task, progress))
    from logdiff_kernels.build import compile, twin
    from logdiff_kernels.build.cann import find_cann
    from logdiff_kernels.ops import devices, registry

    def told(done: int, total: int, kernel: str) -> None:
        progress(done, total, "kernel", kernel)

    if provider == "twin":
        made = twin.build_twin(_arch(task) or DEFAULT_ARCH, on_done=told)
        return TaskOutput(data={"provider": registry.TWIN, **made.as_dict()})
    cann = find_cann()
    made = compile.build(_arch(task) or _device_arch(), devices.exact_exp(), cann=cann, on_done=told)
    return TaskOutput(data={"provider": registry.ASCENDC, **made.as_dict()})


def selftest_kernels(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """The laws on this machine (`logdiff-selftest/1`); `scope` of NPU providers: quick, default or full."""
    provider = _provider(task)
    scope = task.get("scope") or "default"
    if provider == "cpu":
        from logdiff_kernels.ops import selftest

        _refuse_arch(task)
        if scope != "default":
            raise InputError("--quick and --full are for NPU providers", value=scope, hint="leave them out")
        built_cpu(progress)
        return TaskOutput(data=selftest.run(progress))
    from logdiff_kernels.build import selftest as npu_selftest

    if scope not in list(npu_selftest.Scope):
        raise InputError("no such scope", value=scope, hint=f"one of: {', '.join(npu_selftest.Scope)}")
    return TaskOutput(data=npu_selftest.run(_launcher(provider, task), progress, npu_selftest.Scope(scope)))


def bench_kernels(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Times of the CPU library or of an NPU's kernels (`logdiff-bench/1`); for the twin the figures of the cost model.

    `families` holds names of families or cases.
    """
    provider = _provider(task)
    if provider == "cpu":
        _refuse_arch(task)
        return TaskOutput(data=_bench_cpu(task, progress))
    if provider == "ascendc":
        return TaskOutput(data=_bench_npu(task, progress))
    from logdiff_kernels.build import model
    from logdiff_kernels.ops import registry

    arch = _arch(task) or DEFAULT_ARCH
    progress(0, None, "", f"cost model of {arch}")
    rows = model.figures(arch, quick=bool(task.get("quick")), cases=task.get("families"))
    skipped = [{"case": case, "reason": model.WHY_NO_TIME} for case in dict.fromkeys(row["case"] for row in rows)]
    data = {"format": "logdiff-bench/1", "provider": registry.TWIN, "arch": arch, "results": [], "skipped": skipped}
    return TaskOutput(data={**data, "model": rows, "note": model.NOTE})


def _provider(task: dict[str, Any]) -> str:
    provider = task.get("provider") or "cpu"
    if provider not in PROVIDERS:
        raise InputError("no such provider", value=provider, hint=f"one of: {', '.join(PROVIDERS)}")
    return str(provider)


def _arch(task: dict[str, Any]) -> str | None:
    from logdiff_kernels.build.arch import arch_name, arch_number

    arch = task.get("arch")
    return None if arch is None else arch_name(arch_number(arch))


def _refuse_arch(task: dict[str, Any]) -> None:
    if task.get("arch") is not None:
        raise InputError(
            "--arch is for NPU providers", value=task["arch"], hint="leave it out; LOGDIFF_CPU_ISA chooses a CPU's"
        )


def _device_arch() -> str:
    from logdiff_kernels.build import npu
    from logdiff_kernels.build.arch import arch_name

    try:
        return arch_name(npu.device_arch())
    except UnsupportedError as error:
        raise InputError(
            f"which architecture? There is no NPU to ask: {error.message}",
            value=None,
            hint="--arch dav-2201 (910B, A3) or dav-3510 (950)",
        ) from error


def _launcher(provider: str, task: dict[str, Any]) -> Any:
    if provider == "twin":
        from logdiff_kernels.build.twin import TwinLauncher

        return TwinLauncher(_arch(task) or DEFAULT_ARCH)
    from logdiff_kernels.build import npu
    from logdiff_kernels.build.arch import arch_name
    from logdiff_kernels.ops import devices

    found = npu.launcher(None, devices.exact_exp())
    if _arch(task) not in (None, arch_name(found.arch)):
        raise InputError(
            f"this NPU is {arch_name(found.arch)}", value=task["arch"], hint="leave --arch out, or --provider twin"
        )
    return found


def _list_cpu(task: dict[str, Any]) -> dict[str, Any]:
    """Nothing is compiled for a list: `binary_hash` is null until the library is built, `isa` what it would be for."""
    from logdiff_kernels.cpu import build, library
    from logdiff_kernels.ops import registry

    try:
        isa = library.first_choice()
        built = build.built_library(isa) is not None
        record = asdict(registry.provider(registry.CPU)) if built else registry.unbuilt_cpu(isa.name)
    except UnsupportedError as error:
        return {"provider": "cpu", "name": registry.CPU, "available": False, "missing": [error.message]}
    return {"provider": "cpu", "available": True, "missing": [], **record}


def _list_twin(task: dict[str, Any]) -> dict[str, Any]:
    from logdiff_kernels.build.twin import TwinLauncher
    from logdiff_kernels.ops import registry
    from logdiff_kernels.twin.build import find_compiler

    record = asdict(registry.of_launcher(TwinLauncher(_arch(task) or DEFAULT_ARCH)))
    try:
        find_compiler()
    except UnsupportedError as error:
        return {"provider": "twin", "available": False, "missing": [error.message], **record}
    return {"provider": "twin", "available": True, "missing": [], **record}


def _list_ascendc(task: dict[str, Any]) -> dict[str, Any]:
    """Nothing is compiled for a list: `binary_hash` is null until the kernels are built."""
    from logdiff_kernels.build import cann, compile, npu
    from logdiff_kernels.ops import devices, registry

    gaps = npu.missing()
    arch = _arch(task) or (DEFAULT_ARCH if gaps else _device_arch())
    exact_exp = devices.exact_exp()
    built = compile.built(arch, exact_exp)
    return {
        "provider": "ascendc",
        "available": not gaps,
        "missing": gaps,
        "instead": cann.INSTEAD if gaps else "",
        "name": registry.ASCENDC,
        **registry.npu_facts(),
        "arch": arch,
        "exact_exp": exact_exp,
        "binary_hash": None if built is None else built.sha256,
    }


_LISTED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "cpu": _list_cpu,
    "twin": _list_twin,
    "ascendc": _list_ascendc,
}


def built_cpu(progress: Progress) -> Loaded:
    """The CPU library; where it has to be compiled, source by source."""
    from logdiff_kernels.cpu import build, library

    def told(done: int, total: int, source: str) -> None:
        progress(done, total, "source", source or "compiling the CPU kernels")

    build.ensure_library(library.first_choice(), told)
    return library.loaded()


def _build_cpu(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from logdiff_kernels.ops import registry

    _refuse_arch(task)
    found = built_cpu(progress)
    refused = [{"isa": isa, "why": why} for isa, why in found.refused]
    data = {"isa": found.isa, "path": str(found.path), "sha256": found.sha256, "refused": refused}
    return {"provider": registry.CPU, **data}


def _bench_npu(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from logdiff_kernels.build import npu
    from logdiff_kernels.build.arch import arch_name
    from logdiff_kernels.ops import bench, registry

    gaps = npu.missing()
    if gaps:
        raise UnsupportedError(
            "; ".join(gaps),
            value="ascendc",
            hint="--provider twin shows the figures of the cost model, --provider cpu times the CPU library",
        )
    launcher = _launcher("ascendc", task)
    results, skipped = bench.run(
        launcher.device,
        npu.wait,
        task.get("families") or (),
        quick=bool(task.get("quick")),
        on_case=lambda done, total, name: progress(done, total, "case", name),
    )
    where = {"provider": registry.ASCENDC, "arch": arch_name(launcher.arch), "chip": launcher.chip}
    return {"format": "logdiff-bench/1", **where, "results": results, "skipped": skipped}


def _bench_cpu(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Every benchmark of `benchmarks/operators` that has a `run(cases, quick) -> rows`, or the named ones.

    `families` holds names of files, or of single cases.
    """
    import importlib
    import pkgutil
    import sys

    root = Path(__file__).resolve().parents[2]
    folder = root / "benchmarks" / "operators"
    if not folder.is_dir():
        raise UnsupportedError(
            "the benchmarks are not installed with the package", value=str(folder), hint="run this in a source checkout"
        )
    sys.path.insert(0, str(root))
    names = sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_"))
    modules = {name: importlib.import_module(f"benchmarks.operators.{name}") for name in names}
    families = {name: module for name, module in modules.items() if hasattr(module, "run")}
    cases = {case: name for name, module in families.items() for case in module.CASES}
    chosen: dict[str, list[str]] = {}
    for wanted in task.get("families") or list(families):
        if wanted not in families and wanted not in cases:
            raise InputError("no such benchmark", value=wanted, hint=f"one of: {', '.join([*families, *cases])}")
        of = cases.get(wanted, wanted)
        chosen.setdefault(of, []).extend([wanted] if wanted in cases else families[wanted].CASES)
    built_cpu(progress)
    rows: list[dict[str, Any]] = []
    for done, (name, some) in enumerate(chosen.items()):
        progress(done, len(chosen), "family", name)
        rows += families[name].run(tuple(dict.fromkeys(some)), quick=bool(task.get("quick")))
    measured = [row for row in rows if "skipped" not in row]
    skipped = [{"case": row["case"], "reason": row["skipped"]} for row in rows if "skipped" in row]
    return {"format": "logdiff-bench/1", "results": measured, "skipped": skipped}
