"""What is asked of both engines and of the checkpoint: boundaries, reference, operator checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff.diagnose.limits import Limits
from logdiff.errors import LogdiffError
from logdiff.live.capture import read_json, scoring
from logdiff.live.layout import generated, rescored, scored
from logdiff.live.session import Outcome, Session

ROWS = 480
"""Rows that are captured of each side at most, prompts included."""
VALUES = 100_000_000
"""Captured values of each side and phase at most; large models get fewer rows."""
CHECK_SECONDS = 35.0

OPERATORS = "results/operators.json"


@dataclass(slots=True)
class Observed:
    """What was found out beside the measurement.

    Args:
        step: the policy step that was looked at.
        boundaries: "side/phase" -> boundary file.
        same_bits: "side/phase" -> whether the log-probabilities of the captured pass are those of the measured one.
        operators: `logdiff-operators/1`, empty where nothing was checked.
        reference: document of the task `reference` and its folder; None where it failed.
        skipped: [(what, why)].
    """

    step: int
    boundaries: dict[str, Path] = field(default_factory=dict)
    same_bits: dict[str, bool] = field(default_factory=dict)
    operators: dict[str, Any] = field(default_factory=dict)
    reference: dict[str, Any] | None = None
    reference_folder: Path | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)


def reference(session: Session, observed: Observed, model: Path) -> None:
    """What the checkpoint itself gives for the tokens of the step."""
    step = observed.step
    tokens = session.case.path / generated(step)
    sampling = scoring(session.run.sampling.request())
    task = {"task": "reference", "model": str(model), "dtype": session.run.dtype, "input": str(tokens)}
    output = f"captures/step{step}/reference/reference.json"
    outcome = _attempt(session, f"step{step}/reference", {**task, "sampling": sampling}, output, [tokens], step)
    if outcome.path is None:
        observed.skipped.append(("reference", outcome.reason or "it failed"))
        return
    observed.reference = read_json(outcome.path)
    observed.reference_folder = outcome.path.parent
    for dtype, words in (observed.reference.get("failed") or {}).items():
        observed.skipped.append((f"reference in {dtype}", str(words)))


def boundaries(session: Session, observed: Observed, samples: list[str], limits: Limits) -> None:
    """Capture decode, prefill and the training forward of the chosen samples; a failure is a reason, not the end."""
    step, sampling = observed.step, session.run.sampling.request()
    tokens = session.case.path / generated(step)
    train = session.spec("train")
    jobs: list[tuple[str, str, dict[str, Any], str]] = [
        ("train", "score", {"sampling": scoring(sampling), "score": train.score}, scored(step)),
        ("rollout", "decode", {"sampling": sampling, "batch": None}, generated(step)),
        ("rollout", "prefill", {"sampling": scoring(sampling), "batch": None}, rescored(step)),
    ]
    for side, phase, more, measured in jobs:
        name = f"{side}/{phase}"
        spec = session.spec(side)
        if spec.engine == "vllm-http":
            observed.skipped.append((name, "a running server can't be looked into"))
            continue
        if spec.engine == "transformers" and phase == "decode":
            phase = "score"  # this engine reports the numbers of a teacher-forced forward
            name = f"{side}/{phase}"
        why = limits.allow(10, 0 if session.is_open(side) else 1)
        if why is not None:
            observed.skipped.append((name, why))
            continue
        output = f"captures/step{step}/boundaries/{side}-{phase}.safetensors"
        logprobs = session.case.path / f"captures/step{step}/boundaries/{side}-{phase}-logprobs.safetensors"
        task: dict[str, Any] = {
            "task": "capture",
            "phase": phase,
            "input": str(tokens),
            "samples": samples,
            "boundaries": None,
            "level": "full",
            "order": "given",
            "logprobs": str(logprobs),
            **more,
        }
        outcome = _attempt(session, f"step{step}/{side}/capture-{phase}", task, output, [tokens], step, side)
        if outcome.path is None:
            observed.skipped.append((name, outcome.reason or "it failed"))
            continue
        observed.boundaries[name] = outcome.path
        if logprobs.is_file() and (session.case.path / measured).is_file():
            observed.same_bits[name] = _same_bits(logprobs, session.case.path / measured)


def check(session: Session, observed: Observed, model: Path) -> None:
    """Judge every captured operator on its own inputs (`logdiff-operators/1`)."""
    if not observed.boundaries:
        return
    step = observed.step
    tokens = session.case.path / generated(step)
    files = list(observed.boundaries.values())
    task = {
        "task": "check_operators",
        "model": str(model),
        "dtype": session.run.dtype,
        "captures": [str(path) for path in files],
        "truth": str(tokens),
        "sampling": scoring(session.run.sampling.request()),
        "args": {side: session.spec(side).args for side in ("rollout", "train")},
        "seconds": CHECK_SECONDS,
    }
    output = f"captures/step{step}/boundaries/operators.json"
    outcome = _attempt(session, f"step{step}/check_operators", task, output, [tokens, *files], step)
    if outcome.path is None:
        observed.skipped.append(("operator checks", outcome.reason or "they failed"))
        return
    observed.operators = read_json(outcome.path)
    session.case.write_json(OPERATORS, observed.operators)


def choose_samples(session: Session, step: int, values_per_row: int) -> list[str]:
    """The samples to look into: those that hold most of d squared, then the longest, within a number of rows."""
    import numpy as np

    from logdiff.case.sequences import read_sequences

    one = read_sequences(session.case.path / generated(step))
    d = read_sequences(session.case.path / scored(step)).values() - one.values()
    squares = np.nan_to_num(d, nan=1e6, posinf=1e6, neginf=1e6) ** 2
    count = len(one.sample_ids)
    weight = [float(squares[one.span(i)].sum()) for i in range(count)]
    length = [len(one.prompt(i)) + len(one.response(i)) for i in range(count)]
    by_weight = sorted(range(count), key=lambda i: (-weight[i], i))
    by_length = sorted(range(count), key=lambda i: (-length[i], i))
    wanted = [i for pair in zip(by_weight, by_length, strict=True) for i in pair]
    budget = max(64, min(ROWS, VALUES // max(values_per_row, 1)))
    chosen: list[int] = []
    for i in dict.fromkeys(wanted):
        if len(one.response(i)) and (not chosen or sum(length[j] for j in chosen) + length[i] <= budget):
            chosen.append(i)
    return [one.sample_ids[i] for i in sorted(chosen)]


def values_per_row(config: dict[str, Any]) -> int:
    """About how many values a token leaves at all boundaries of a model, from its configuration."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)

    def number(name: str, default: int) -> int:
        value = text.get(name)
        return value if isinstance(value, int) and value > 0 else default

    hidden = number("hidden_size", 1024)
    heads = number("num_attention_heads", 16)
    head = number("head_dim", max(1, hidden // heads))
    experts = number("num_experts_per_tok", 0)
    inner = number("moe_intermediate_size", 0) * experts or number("intermediate_size", 4 * hidden)
    layer = 8 * hidden + 4 * heads * head + 6 * number("num_key_value_heads", heads) * head + 3 * inner
    return number("num_hidden_layers", 32) * layer + number("vocab_size", 32000)


def _attempt(
    session: Session,
    key: str,
    task: dict[str, Any],
    output: str,
    inputs: list[Path],
    step: int,
    side: str | None = None,
) -> Outcome:
    """A task of a side's engine, or of none, whose failure does not end the diagnosis; what ran it may be broken then,
    and is closed."""
    try:
        if side is None:
            return session.do_free(key, task, output=output, inputs=inputs)
        return session.do(key, side, session.spec(side), task, output=output, inputs=inputs, step=step, optional=True)
    except LogdiffError as error:
        session.check_cancel()
        if side is None:
            session.close_free()
        else:
            session.close(side)
        session.case.journal.append("experiment_failed", task=key, error=error.message[:2000])
        return Outcome(None, reason=error.message)


def _same_bits(captured: Path, measured: Path) -> bool:
    """Whether a captured pass gave the log-probabilities of the measured one, sample by sample where it kept some."""
    import numpy as np

    from logdiff.case.sequences import read_sequences

    one, other = read_sequences(captured), read_sequences(measured)
    place = {name: i for i, name in enumerate(other.sample_ids)}
    for i, name in enumerate(one.sample_ids):
        if name not in place:
            continue
        a = one.columns["logprobs"][one.span(i)]
        b = other.columns["logprobs"][other.span(place[name])]
        if len(a) != len(b) or not np.array_equal(a.view(np.uint32), b.view(np.uint32)):
            return False
    return True
