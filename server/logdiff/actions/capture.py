"""Live engines: run, demo, env, models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from logdiff.actions.done import Done, PathLike
from logdiff.actions.evidence import measured_result, report, stem
from logdiff.errors import EngineError, EvidenceError, InputError

if TYPE_CHECKING:
    from logdiff.measure import Measurement
    from logdiff.target.engine import OnProgress


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
    changes: dict[str, Any] = {} if align is None else {"ops": operator_names(align)}
    if tokens is not None:
        changes["tokens"] = str(Path(tokens).absolute())
    if changes:
        loaded = loaded.with_align(**changes)
    with run_live(loaded, case, floor=floor, name=stem(run_file), on_progress=on_progress) as made:
        data = made.read_result("measure")
    found = _measurement(data)
    return Done(measured_result(found, made, limits), found.exit_code(limits))


def operator_names(text: str) -> str | list[str]:
    """`align.ops` of a run file from "all" or names with commas."""
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
        stock = measured_result(_measurement(made.read_result("measure")), made, None)
    data: dict[str, Any] = {"model": model, "rollout": rollout, "stock": stock, "aligned": None, "report": ""}
    again = loaded.with_align(ops="all", tokens=str(made.path))
    beside = made.path.with_name(f"{made.path.name}-aligned")
    try:
        with run_live(again, beside, on_progress=on_progress, name=f"{name}-aligned", kind="demo") as after:
            data["aligned"] = measured_result(_measurement(after.read_result("measure")), after, None)
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

    return Done(environment(python, on_progress))


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
