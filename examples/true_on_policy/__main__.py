"""`python -m examples.true_on_policy`: run stock, aligned or both, and draw them side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

# Both engines get the same number of threads, and no hub is asked for anything.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import typer
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.models import build

from examples.true_on_policy.plot import comparable_runs, summary, write_plots
from examples.true_on_policy.progress import View, table
from examples.true_on_policy.settings import Settings


class Modes(str, Enum):
    """What to run."""

    stock = "stock"
    aligned = "aligned"
    both = "both"


_DEFAULT: dict[str, Any] = {field.name: field.default for field in fields(Settings)}


def _option(name: str, help: str) -> Any:
    return typer.Option(f"--{name.replace('_', '-')}", help=help, show_default=True)


def main(
    mode: Annotated[Modes, _option("mode", "what to run; both: one after the other, then the plots")] = Modes.both,
    model: Annotated[str, _option("model", "a Hugging Face folder, or a name of `logdiff models list`")] = "smollm2",
    out: Annotated[Path, _option("out", "folder for metrics and plots")] = Path("runs/true-on-policy"),
    steps: Annotated[int, _option("steps", "rollouts")] = _DEFAULT["steps"],
    prompts: Annotated[int, _option("prompts", "prompts per step")] = _DEFAULT["prompts"],
    group: Annotated[int, _option("group", "responses per prompt")] = _DEFAULT["group"],
    max_tokens: Annotated[int, _option("max_tokens", "longest response")] = _DEFAULT["max_tokens"],
    temperature: Annotated[float, _option("temperature", "of sampling and scoring")] = _DEFAULT["temperature"],
    minibatches: Annotated[int, _option("minibatches", "optimiser updates per step")] = _DEFAULT["minibatches"],
    micro_batch: Annotated[int, _option("micro_batch", "sequences per forward")] = _DEFAULT["micro_batch"],
    lr: Annotated[float, _option("lr", "learning rate")] = _DEFAULT["lr"],
    letter: Annotated[str, _option("letter", "reward: share of tokens with this letter")] = _DEFAULT["letter"],
    seed: Annotated[int, _option("seed", "of prompts and sampling")] = _DEFAULT["seed"],
    dtype: Annotated[str, _option("dtype", "bfloat16, float16 or float32")] = _DEFAULT["dtype"],
    check_weights: Annotated[int, _option("check_weights", "checksums every N steps")] = _DEFAULT["check_weights"],
    ops: Annotated[str, _option("ops", "operators that an aligned run aligns")] = _DEFAULT["ops"],
) -> None:
    """A small GRPO: Transformers learns, vLLM samples, weights are synced every step.

    Exit status: 0; 1 where an aligned run is not exactly on-policy; 2 for arguments that do not fit or an engine that
    refused.
    """
    given = dict(locals())
    if mode is Modes.both:
        for each in ("stock", "aligned"):
            arguments = [f"--{key.replace('_', '-')}={value}" for key, value in given.items() if key != "mode"]
            command = [sys.executable, "-m", "examples.true_on_policy", f"--mode={each}", *arguments]
            status = subprocess.run(command, check=False).returncode
            if status:
                raise typer.Exit(status)
        return
    folder = model if Path(model).is_dir() else None
    try:
        settings = Settings(
            mode=mode.value,
            model=str(Path(folder).absolute() if folder else build(model)),
            **{name: given[name] for name in given if name in _DEFAULT and name not in ("mode", "model")},
        )
        _run(settings, out)
    except (ValueError, RunnerError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _run(settings: Settings, out: Path) -> None:
    from logdiff.errors import LogdiffError

    from examples.true_on_policy.loop import EvidenceError, NotOnPolicyError, run

    status = 0
    with View(settings.mode, settings.steps) as view:
        try:
            run(settings, out / settings.mode, view.phase, view.step)
        except NotOnPolicyError as error:
            view.say(f"not on-policy: {error}")
            status = 1
        except (LogdiffError, EvidenceError) as error:
            view.say(f"error: {error}")
            raise typer.Exit(2) from None
    runs = comparable_runs(out)
    if not runs:
        raise typer.Exit(status)
    png, page = write_plots(runs, out, f"GRPO on {Path(settings.model).name.split('-')[0]}, d at every step")
    table(summary(runs))
    typer.echo(f"{png}\n{page}")
    if status:
        raise typer.Exit(status)


if __name__ == "__main__":
    typer.run(main)
