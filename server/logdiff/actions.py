"""What the command line and the tools both do: one function per command, results as `--json` prints them.

Heavy packages are imported by the functions that need them, so that this module costs nothing to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from logdiff.errors import CaseError, EngineError, EvidenceError, InputError

if TYPE_CHECKING:
    from logdiff.case import Case
    from logdiff.case.batch import PairBatch
    from logdiff.measure import Measurement, RunFacts
    from logdiff.target.engine import OnProgress

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Done:
    """A result in the form that `--json` prints, and the exit code that goes with it."""

    data: dict[str, Any]
    exit_code: int = 0


def perform(action: str, arguments: dict[str, Any], on_progress: OnProgress | None = None) -> Done:
    """Do one of `ACTIONS` with keyword arguments that came over a wire."""
    done: Done = ACTIONS[action](**arguments, on_progress=on_progress)
    return done


def measure(
    *,
    paths: Sequence[PathLike],
    case: PathLike | None = None,
    fail_above: str | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Measure pair files, or the tokens of a case (`logdiff-measure/1`).

    Pair files are stored in a new case in the same pass. A case folder is measured in place, unless `case` names
    another one.

    Raises:
        InputError: no input, an unreadable one, a limit that can't be set, or a case folder among several inputs.
        CaseError: the case holds other work.
    """
    from logdiff.measure import parse_fail_above

    limits = parse_fail_above(fail_above) if fail_above is not None else None
    if not paths:
        raise InputError("no input", hint="give pair files or one case folder")
    folders = [p for p in paths if Path(p).is_dir()]
    if folders and len(paths) > 1:
        raise InputError("a case folder is measured alone", value=str(folders[0]), hint="give one case folder")
    if folders and (case is None or Path(case).resolve() == Path(folders[0]).resolve()):
        return _measure_case(folders[0], limits, on_progress)
    return _measure_files(paths, case, limits, on_progress)


def _measure_case(folder: PathLike, limits: dict[str, float] | None, on_progress: OnProgress | None) -> Done:
    from logdiff.case import Case
    from logdiff.measure import measure as run_measure

    with Case.open(folder) as case:
        found = run_measure(case.meta, _watched(case.batches(), on_progress), _facts_of(case))
        if case.has_result("measure"):
            found = found.with_floor(case.read_result("measure").get("floor") or {})
        result = _result(found, case, limits)
        sealed = case.is_complete
        case.unseal("measured again")
        case.write_result("measure", result)
        if sealed or not case.missing():
            case.seal()
    return Done(result, found.exit_code(limits))


def _measure_files(
    paths: Sequence[PathLike],
    case_dir: PathLike | None,
    limits: dict[str, float] | None,
    on_progress: OnProgress | None,
) -> Done:
    from logdiff.case.readers import read_pairs
    from logdiff.measure import measure as run_measure

    meta, batches = read_pairs(paths)
    with _new_case(case_dir, _stem(paths[0]), "measure", _inputs(paths)) as case:
        case.write_meta(meta)
        with case.open_writer() as writer:
            found = run_measure(meta, _watched(batches, on_progress), sink=writer.append)
        result = _result(found, case, limits)
        case.write_result("measure", result)
        case.seal()
    return Done(result, found.exit_code(limits))


def _result(found: Measurement, case: Case, limits: dict[str, float] | None) -> dict[str, Any]:
    data = found.as_dict()
    result = {"format": data.pop("format"), "case": str(case.path), **data}
    if limits is not None:
        result["fail_above"] = {"limits": limits, "exceeded": found.exceeded(limits)}
    return result


def _facts_of(case: Case) -> RunFacts:
    """What a live run left in its case beside the tokens: fingerprints and weight checksums of both sides."""
    import json

    from logdiff.measure import RunFacts

    fingerprints: dict[str, dict[str, Any]] = {}
    weights: dict[int, dict[str, dict[str, Any]]] = {}
    for side in ("rollout", "train"):
        folder = case.path / "sides" / side
        if (folder / "fingerprint.json").is_file():
            fingerprints[side] = json.loads((folder / "fingerprint.json").read_text(encoding="utf-8"))
        for file in sorted(folder.glob("weights-step*.json")):
            step = int(file.stem.removeprefix("weights-step"))
            weights.setdefault(step, {})[side] = json.loads(file.read_text(encoding="utf-8"))
    unavailable = case.read_result("measure").get("unavailable", {}) if case.has_result("measure") else {}
    return RunFacts(fingerprints=fingerprints, weights=weights, unavailable=unavailable)


def _new_case(folder: PathLike | None, name: str, kind: str, inputs: dict[str, Any]) -> Case:
    """A new case, or the open one in `folder` that the same work on the same input left unfinished."""
    from logdiff.case import Case

    if folder is None or not (Path(folder) / "manifest.json").exists():
        return Case.create(folder, name, kind, inputs)
    case = Case.open(folder)
    if case.is_complete or case.manifest.kind != kind or case.manifest.inputs != inputs:
        what = "is complete" if case.is_complete else "belongs to other input"
        hint = "give a new folder with --case"
        if case.is_complete and case.manifest.inputs == inputs:
            hint = f"it holds this input: `logdiff measure {folder}` measures it again; else give a new --case"
        raise CaseError(f"the case {what}", value=str(folder), hint=hint)
    return case


def _inputs(paths: Sequence[PathLike]) -> dict[str, Any]:
    entries = []
    for path in paths:
        stat = Path(path).stat()
        entries.append({"path": str(Path(path).resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    return {"files": entries}


def _stem(path: PathLike) -> str:
    return Path(path).name.split(".")[0]


def _watched(batches: Iterable[PairBatch], on_progress: OnProgress | None) -> Iterator[PairBatch]:
    from logdiff.target.engine import Progress

    tokens = 0
    for batch in batches:
        tokens += batch.tokens
        yield batch
        if on_progress is not None:
            on_progress(Progress("measure", tokens, None, "tokens"))


def compare(*, before: PathLike, after: PathLike, on_progress: OnProgress | None = None) -> Done:
    """Two measured cases side by side (`logdiff-compare/1`); exit code 1 when something changed."""
    from logdiff.measure import compare as run_compare

    data = run_compare(_measured(before), _measured(after))
    return Done(data, 1 if data["changed"] else 0)


def _measured(folder: PathLike) -> dict[str, Any]:
    from logdiff.case import Case

    with Case.open(folder) as case:
        if not case.has_result("measure"):
            raise CaseError("the case is not measured", value=str(folder), hint=f"logdiff measure {folder}")
        return {
            "case": str(case.path),
            "result": case.read_result("measure"),
            "fingerprints": _facts_of(case).fingerprints,
            "meta": case.meta.facts,
        }


def report(
    *,
    case: PathLike,
    output: PathLike | None = None,
    png: PathLike | None = None,
    before: PathLike | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Write the HTML report of a case (`logdiff-report/1`: `case`, `report`, `plots`)."""
    from contextlib import ExitStack

    from logdiff.case import Case
    from logdiff.report import render

    with ExitStack() as stack:
        opened = stack.enter_context(Case.open(case))
        earlier = stack.enter_context(Case.open(before)) if before is not None else None
        target = Path(output).resolve() if output is not None else opened.path / "report.html"
        written = render(opened, target, png, earlier)
        plots = [str(p) for p in written["png"]]
        return Done({"format": "logdiff-report/1", "case": str(opened.path), "report": str(target), "plots": plots})


def import_(
    *,
    format: str,
    paths: Sequence[PathLike],
    case: PathLike | None = None,
    mapping: dict[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Read foreign records into a new case (`logdiff-case/1`: its manifest and where it is)."""
    from logdiff.case.importing import import_case
    from logdiff.target.engine import Progress

    def told(tokens: int) -> None:
        if on_progress is not None:
            on_progress(Progress("import", tokens, None, "tokens"))

    with import_case(format, paths, case, mapping, on_tokens=told) as made:
        manifest = made.manifest.as_dict()
        return Done({"format": manifest.pop("format"), "case": str(made.path), **manifest})


def query(*, case: PathLike, sql: str, limit: int = 1000, on_progress: OnProgress | None = None) -> Done:
    """Read-only SQL over a case (`logdiff-query/1`)."""
    from logdiff.case.query import query as run_query

    return Done(run_query(case, sql, limit_rows=limit))


def run(
    *,
    run_file: PathLike,
    case: str | Path | None = None,
    floor: Literal["brief", "quick", "full"] | None = "quick",
    fail_above: str | None = None,
    align: str | None = None,
    tokens: PathLike | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Capture both sides of a run file live, and measure (`logdiff-measure/1`).

    Args:
        run_file: what to compare.
        case: folder of the evidence.
        floor: how each side is compared with itself; None: not.
        fail_above: limits, as `measure` takes them.
        align: operators to run aligned ("all" or names with commas), in place of the run file's `align.ops`.
        tokens: an earlier case whose tokens are scored again, in place of the run file's `align.tokens`.
        on_progress: takes progress.
    """
    from logdiff.live import load_run_file
    from logdiff.live import run as run_live
    from logdiff.measure import parse_fail_above

    limits = parse_fail_above(fail_above) if fail_above is not None else None
    loaded = load_run_file(Path(run_file))
    changes: dict[str, Any] = {} if align is None else {"ops": _names(align)}
    if tokens is not None:
        changes["tokens"] = str(Path(tokens).absolute())
    if changes:
        loaded = loaded.with_align(**changes)
    with run_live(loaded, case, floor=floor, name=_stem(run_file), on_progress=on_progress) as made:
        data = made.read_result("measure")
    found = _measurement(data)
    return Done(_result(found, made, limits), found.exit_code(limits))


def _names(text: str) -> str | list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    return "all" if names == ["all"] else names


def _measurement(data: dict[str, Any]) -> Measurement:
    """A stored `logdiff-measure/1` as an object again."""
    from logdiff.measure import Gate, Measurement

    return Measurement(
        gates=[Gate(**gate) for gate in data["gates"]],
        measure=data["measure"],
        pairs=data["pairs"],
        unavailable=data["unavailable"],
        samples=data["samples"],
        floor=data["floor"],
    )


DEMO_MODELS = {"dense": "qwen3", "moe": "qwen3-moe", "smollm2": "smollm2"}


def demo(
    *,
    prompts: Path,
    model: str = "smollm2",
    rollout: str = "vllm",
    report_file: PathLike = "logdiff-demo.html",
    case: str | Path | None = None,
    python: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Run rollout against Transformers on small models, stock and then aligned on the same tokens (`logdiff-demo/1`).

    Args:
        prompts: file of chat prompts, one per line, for the model with trained weights; the others get random ids.
        model: key of `DEMO_MODELS`.
        rollout: engine that samples; where vLLM can't be imported `say` is told and `transformers-generate` is used.
        report_file: where the HTML goes.
        case: folder of the stock evidence; that of the aligned one has `-aligned` after its name.
        python: interpreter of both sides.
        say: takes one line of news.
        on_progress: takes progress.
    """
    from logdiff.live import RunFile
    from logdiff.live import run as run_live

    if rollout == "vllm" and (why := _vllm_missing(python)) is not None:
        say(f"vLLM can't be used here ({why}): the rollout engine is transformers-generate instead.")
        rollout = "transformers-generate"
    loaded = RunFile.from_dict(_demo_run(model, rollout, python, prompts), source="demo")
    name = f"demo-{model}"
    with run_live(loaded, case, floor="brief", on_progress=on_progress, name=name, kind="demo") as made:
        stock = _result(_measurement(made.read_result("measure")), made, None)
    data: dict[str, Any] = {"model": model, "rollout": rollout, "stock": stock, "aligned": None, "report": ""}
    again = loaded.with_align(ops="all", tokens=str(made.path))
    beside = made.path.with_name(f"{made.path.name}-aligned")
    try:
        with run_live(again, beside, on_progress=on_progress, name=f"{name}-aligned", kind="demo") as after:
            data["aligned"] = _result(_measurement(after.read_result("measure")), after, None)
    except (EngineError, EvidenceError) as error:
        say(f"The aligned engines could not be measured: {error.message}. {error.hint}".rstrip())
        data["unavailable"] = {"aligned": error.message}
        data["report"] = report(case=made.path, output=report_file).data["report"]
    else:
        data["report"] = report(case=after.path, output=report_file, before=made.path).data["report"]
    return Done({"format": "logdiff-demo/1", **data})


def _demo_run(model: str, rollout: str, python: str | None, text: Path) -> dict[str, Any]:
    trained = model == "smollm2"
    vllm = {"enforce_eager": True, "block_size": 128, "max_model_len": 1024}
    return {
        "format": "logdiff-run/1",
        "model": f"builtin:{DEMO_MODELS[model]}",
        "dtype": "bfloat16",
        "prompts": {"text": str(text), "chat": True}
        if trained
        else {"random": {"count": 8, "lengths": [7, 33, 64, 128], "seed": 1}},
        "sampling": {"max_tokens": 128 if trained else 64, "temperature": 1.0, "seed": 7},
        "rollout": {"engine": rollout, "python": python, "args": vllm if rollout == "vllm" else {}},
        "train": {"engine": "transformers", "python": python, "args": {"attn_implementation": "sdpa"}},
    }


def _vllm_missing(python: str | None) -> str | None:
    """Why the interpreter has no usable vLLM; None where it has one."""
    import subprocess
    import sys

    probe = [python or sys.executable, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"]
    try:
        found = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"the interpreter can't be run: {error}", value=python, hint="give --python PATH") from None
    return "it is not installed" if found.returncode else None


def env(*, python: str | None = None, on_progress: OnProgress | None = None) -> Done:
    """Facts of the interpreter that has the engines (`logdiff-env/1`)."""
    from logdiff.live import environment

    return Done(environment(python))


def list_models(*, python: str | None = None, on_progress: OnProgress | None = None) -> Done:
    """The local models that can be built (`logdiff-models/1`: `models`)."""
    from logdiff.live import list_models as catalogue

    return Done({"format": "logdiff-models/1", "models": catalogue(python)})


def build_model(
    *, name: str, output: PathLike | None = None, python: str | None = None, on_progress: OnProgress | None = None
) -> Done:
    """Build or find a local model: `path`."""
    from logdiff.live import build_model as build

    folder = None if output is None else Path(output)
    return Done({"path": str(build(name, python, on_progress, output=folder))})


def align_plan(
    *,
    source: PathLike,
    ops: str | None = None,
    sides: str | None = None,
    state: PathLike = ".logdiff",
    on_progress: OnProgress | None = None,
) -> Done:
    """Plan an alignment from a run file or case (`logdiff-align-plan/1`); exit code 1 when a part isn't covered."""
    from logdiff.align import State
    from logdiff.align import plan as run_plan

    data = run_plan(Path(source), State(Path(state)), ops=ops, sides=sides, on_progress=on_progress)
    shown = {key: value for key, value in data.items() if key != "facts"}
    return Done(shown, 1 if data["not_covered"] else 0)


def align_apply(*, plan_id: str, state: PathLike = ".logdiff", on_progress: OnProgress | None = None) -> Done:
    """Write the overlay of a plan (`logdiff-align/1`)."""
    from logdiff.align import State
    from logdiff.align import apply as run_apply

    return Done(run_apply(plan_id, State(Path(state)), on_progress=on_progress))


def align_status(*, state: PathLike = ".logdiff", on_progress: OnProgress | None = None) -> Done:
    """What is aligned in this workspace (`logdiff-align/1`); exit code 1 when something is not as it should be."""
    from logdiff.align import State
    from logdiff.align import status as run_status

    data = run_status(State(Path(state)))
    return Done(data, 1 if data["problems"] else 0)


def align_revert(
    *,
    case: PathLike | None = None,
    bits: bool = True,
    state: PathLike = ".logdiff",
    on_progress: OnProgress | None = None,
) -> Done:
    """Remove the overlay and prove native (`logdiff-align/1`); exit code 1 when it could not be proved."""
    from logdiff.align import State
    from logdiff.align import revert as run_revert

    stock = None if case is None else Path(case)
    data = run_revert(State(Path(state)), case=stock, bits=bits, on_progress=on_progress)
    return Done(data, 0 if data["native"] else 1)


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


ACTIONS: dict[str, Callable[..., Done]] = {
    "align_apply": align_apply,
    "align_plan": align_plan,
    "align_revert": align_revert,
    "env": env,
    "import": import_,
    "measure": measure,
    "query": query,
    "report": report,
    "run": run,
}
"""What a worker process may be asked for."""
