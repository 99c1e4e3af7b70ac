"""What to do next: the cheapest experiments that split what the evidence leaves standing."""

from __future__ import annotations

from collections.abc import Sequence

from logdiff.verdict.causes import causes
from logdiff.verdict.features import Features
from logdiff.verdict.records import Candidate, NextExperiment

MOST = 6


def next_experiments(f: Features, class_: str, candidates: Sequence[Candidate]) -> tuple[NextExperiment, ...]:
    """Experiments by what they cost: more of the same dump, a look at a configuration, one run, more runs.

    Args:
        f: the evidence.
        class_: class of the verdict.
        candidates: what stands, strongest first.
    """
    if class_ == "none":
        return ()
    if class_ == "invalid-evidence":
        return (
            NextExperiment(
                "Record finite log-probabilities of both sides for the same response tokens, with a mask that leaves "
                "some, and measure again.",
                "logdiff measure PAIRS...",
                ("invalid-evidence",),
            ),
        )
    standing = [c for c in candidates if c.score >= 0.1]
    names = tuple(dict.fromkeys(c.cause or c.class_ for c in standing))[:4]
    classes = {c.class_ for c in standing[:4]} | {class_}
    found: list[NextExperiment] = []
    found += _of_the_dump(f, classes, names)
    found += _of_the_run(f, classes, names)
    for candidate in standing[:3]:
        if candidate.cause is not None:
            entry = causes()[candidate.cause]
            rest = tuple(n for n in names if n != candidate.cause)[:2]
            found.append(
                NextExperiment(entry.experiment.what, _here(entry.experiment.command, f), (candidate.cause, *rest))
            )
    return _distinct(found)


def _here(command: str, f: Features) -> str:
    """The command on this evidence, where it has a place for it."""
    if command.endswith("PAIRS...") and f.repeat.startswith("logdiff diagnose "):
        return command.replace("PAIRS...", f.repeat.removeprefix("logdiff diagnose "))
    return command


def _of_the_dump(f: Features, classes: set[str], names: tuple[str, ...]) -> list[NextExperiment]:
    out = []
    ids = f.gate("ids")
    if (ids is None or ids.ok is None) and classes & {"data", "framework-implementation"} and f.mean_abs > f.rounding:
        out.append(
            NextExperiment(
                "Add the ids that the trainer scored (train_token_ids) to the dump: a difference is the cause, "
                "equality rules data out.",
                "logdiff measure PAIRS...",
                names or ("data",),
            )
        )
    if "sampling-processing" in classes and "rollout" not in f.table.topk:
        out.append(
            NextExperiment(
                "Add top-k lists of both sides (rollout_topk, train_topk): one factor between them is a temperature, "
                "equal lists with other values are processing.",
                "logdiff measure PAIRS...",
                names or ("sampling-processing",),
            )
        )
    if "sampling-processing" in classes or "framework-config" in classes:
        out.append(
            NextExperiment(
                "Compare the effective configuration of both sides: temperature, logprobs_mode, truncation, attention "
                "implementation, dtype.",
                "logdiff audit PATH...",
                names or ("framework-config",),
            )
        )
    if len(f.steps) < 2 and classes & {"weights", "operator", "undetermined"}:
        out.append(
            NextExperiment(
                "Record several steps, the first before any update, with their number: stale or partly synced weights "
                "grow with steps, rounding does not.",
                "logdiff measure PAIRS...",
                ("weights", "operator"),
            )
        )
    return out


def _of_the_run(f: Features, classes: set[str], names: tuple[str, ...]) -> list[NextExperiment]:
    out = []
    unsplit = classes & {"undetermined", "operator", "weights", "framework-implementation"}
    if unsplit and "decode_rescore" not in f.pair_abs:
        out.append(
            NextExperiment(
                "Triangle and floor: decode against prefill of the rollout engine against the trainer on the same "
                "tokens, with checksums of all weights. The pair that agrees clears two of the three.",
                "logdiff run RUN.yaml --floor quick",
                tuple(sorted(unsplit - {"undetermined"})) or names,
            )
        )
    elif unsplit and "weights" in classes:
        out.append(
            NextExperiment(
                "Compare checksums of every tensor on both sides, before and after a sync.",
                "logdiff run RUN.yaml",
                ("weights", "operator"),
            )
        )
    if classes & {"undetermined", "framework-implementation", "operator", "routing"}:
        out.append(
            NextExperiment(
                "Judge each operator of both sides on its own inputs against fp64: rounding everywhere means "
                "operator, one far off names the component.",
                "logdiff localize RUN.yaml",
                names or ("operator", "framework-implementation"),
            )
        )
    return out


def _distinct(found: list[NextExperiment]) -> tuple[NextExperiment, ...]:
    seen: dict[str, NextExperiment] = {}
    for experiment in found:
        seen.setdefault(experiment.what, experiment)
    return tuple(seen.values())[:MOST]
