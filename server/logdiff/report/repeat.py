"""The commands that make the evidence and this page again, from what the manifest says about its inputs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logdiff.report.files import CaseFiles
from logdiff.report.wording import visible

PATHS = 20
_DEMO_MODELS = {"smollm2": "smollm2", "qwen3": "dense", "qwen3-moe": "moe"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command, why to run it, and the text of a file that it needs."""

    why: str
    command: str
    file: str = ""


def _quoted(value: Any) -> str:
    return shlex.quote(visible(str(value), 1000))


def _demo(run: dict[str, Any]) -> str:
    rollout = run.get("rollout")
    engine = rollout.get("engine") if isinstance(rollout, dict) else None
    model = _DEMO_MODELS.get(str(run.get("model", "")).removeprefix("builtin:"))
    parts = ["logdiff demo"]
    if model:
        parts.append(f"--model {model}")
    if engine:
        parts.append(f"--rollout {_quoted(engine)}")
    return " ".join(parts)


def _run_file(run: dict[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump(run, sort_keys=False, allow_unicode=False, width=100)
    return "\n".join(visible(line, 400) for line in text.splitlines()[:200])


def _evidence(files: CaseFiles) -> Command | None:
    inputs = files.manifest.get("inputs")
    inputs = inputs if isinstance(inputs, dict) else {}
    run, listed, paths = inputs.get("run"), inputs.get("files"), inputs.get("paths")
    kind = files.manifest.get("kind")
    if kind == "probe":
        asked = inputs.get("arguments")
        return _probes(asked) if isinstance(asked, dict) else None
    if kind == "dispatch":
        return _dispatch(inputs) if isinstance(inputs.get("run_file"), str) else None
    if kind == "profile":
        given = [f"--profile {_quoted(one)}" for one in _listed(inputs.get("profiles"))]
        return Command("Read the same profiles again", " ".join(["logdiff dispatch", *given]))
    if isinstance(run, dict):
        if kind == "demo":
            return Command("Capture both sides again", _demo(run))
        why = "Capture both sides again; values of environment variables are not kept"
        return Command(why, "logdiff run run.yaml", _run_file(run))
    if isinstance(listed, list):
        given = [entry["path"] for entry in listed[:PATHS] if isinstance(entry, dict) and "path" in entry]
        more = " ..." if len(listed) > PATHS else ""
        return Command("Measure the same files again", " ".join(["logdiff measure", *map(_quoted, given)]) + more)
    if isinstance(paths, list):
        given = [_quoted(path) for path in paths[:PATHS]]
        if kind == "audit":
            live = ["--live"] if inputs.get("live") else []
            return Command("Audit the same files again", " ".join(["logdiff audit", *live, *given]))
        parts = ["logdiff import", _quoted(inputs.get("format", "jsonl")), *given, "--case NEW_FOLDER"]
        return Command("Import the same files again", " ".join(parts))
    return None


def _listed(value: Any) -> list[Any]:
    return value[:PATHS] if isinstance(value, list) else []


def _probes(asked: dict[str, Any]) -> Command:
    parts = ["logdiff probe run", *map(_quoted, _listed(asked.get("ops")))]
    parts += [f"--provider {_quoted(name)}" for name in _listed(asked.get("providers"))]
    relations = _listed(asked.get("relations"))
    parts += [f"--relations {_quoted(','.join(map(str, relations)))}"] if relations else []
    parts += [f"--{name} {_quoted(asked[name])}" for name in ("model", "device", "dtype", "seed") if asked.get(name)]
    parts += [f"--shape {_quoted(text)}" for text in _listed(asked.get("shapes"))]
    return Command("Probe the same again; what the cache knows is not asked again without --fresh", " ".join(parts))


def _dispatch(inputs: dict[str, Any]) -> Command:
    parts = ["logdiff dispatch", _quoted(inputs["run_file"])]
    phases = _listed(inputs.get("phases"))
    parts += [f"--{name} {_quoted(inputs[name])}" for name in ("side", "align") if inputs.get(name)]
    parts += [f"--phases {_quoted(','.join(map(str, phases)))}"] if phases else []
    parts += [f"--toggle {_quoted(text)}" for text in _listed(inputs.get("toggles"))]
    return Command("Look at the same engines again", " ".join(parts))


def _worst_tokens(first: str, second: str) -> str:
    return (
        "select sample_id, step, rank, position, token_id, "
        f"max(logprob) filter (side = '{second}') - max(logprob) filter (side = '{first}') as d "
        "from tokens where mask group by all order by abs(d) desc nulls last limit 20"
    )


def repeat(path: Path, output: Path, files: CaseFiles, sides: tuple[str, str]) -> list[Command]:
    """Commands in the order of the work; `sides` are the first and second side of the main pair."""
    evidence = _evidence(files)
    return [
        *([evidence] if evidence is not None else []),
        Command("Write this page again", f"logdiff report {_quoted(path)} -o {_quoted(output)}"),
        *(
            [Command("List the worst tokens", f'logdiff query {_quoted(path)} "{_worst_tokens(*sides)}"')]
            if files.compares
            else []
        ),
    ]
