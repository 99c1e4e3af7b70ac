"""The tables that decide: steps, which of them a situation calls for, and which page explains it. Data alone.

`{slots}` in arguments and commands are filled from what is known (`calls.py`); a step with an open slot is shown on a
page with a placeholder, and never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORST_TOKENS = (
    "select r.sample_id, r.position, r.token_id, r.logprob as rollout, t.logprob as train, t.logprob - r.logprob as d "
    "from tokens r join tokens t using (sample_id, step, rank, position) "
    "where r.side = 'rollout' and t.side = 'train' and r.mask order by abs(t.logprob - r.logprob) desc limit 10"
)
BROKEN_TOKENS = (
    "select side, count(*) as tokens, count(*) filter (where logprob is null) as absent, "
    "count(*) filter (where isnan(logprob) or isinf(logprob)) as not_finite, "
    "count(*) filter (where logprob > 0) as positive, count(*) filter (where mask) as unmasked "
    "from tokens group by side"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step may show, what that means, and the page that it leads to."""

    seen: str
    means: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One call, or one thing to ask a person for (no `tool` then).

    Args:
        tool: MCP tool.
        arguments: of the tool; strings may be a slot, "{case}".
        command: the same as a command line.
        why: one sentence.
        outcomes: what may come of it.
        ask: what a person has to decide or do before the call; empty where nothing.
    """

    tool: str
    arguments: Mapping[str, Any]
    command: str
    why: str
    outcomes: tuple[Outcome, ...]
    ask: str = ""


_VERDICT = (
    Outcome("class operator", "same inputs, other rounding: align and prove", "operator-path"),
    Outcome("class routing", "other experts for some tokens", "moe-routing"),
    Outcome("class weights", "a side holds other weights", "weights-first"),
    Outcome("class data or sampling-processing", "other tokens, masks or logits processing", "sampling-and-data"),
    Outcome("class framework-*", "a side computes something else: its fix stands in the catalogue", "apply-and-prove"),
    Outcome("class none", "equal, or within what a side shows against itself", "no-mismatch"),
    Outcome("undetermined or invalid-evidence", "the evidence does not carry; an experiment is named", "triangle"),
)

_PROOF = (
    Outcome("0 mismatched tokens", "operators were all of it, proven", "apply-and-prove"),
    Outcome("fewer, not 0", "something beside the operators is left; the gate `aligned` names it", "apply-and-prove"),
    Outcome("refused", "the error names the module that has no aligned form: leave its operator out"),
)

STEPS: dict[str, Step] = {
    "ask-evidence": Step(
        "", {}, "", "nothing is here to measure yet",
        (
            Outcome("a run file", "both engines can be started here", "triage"),
            Outcome("a pair file", "recorded log-probabilities can be judged as far as they carry", "triage"),
        ),
        ask="ask for one of the kinds of evidence in the table, and put it into the workspace",
    ),
    "open-case": Step(
        "playbook_get", {"case": "{newest_case}"}, "logdiff playbook {newest_case}",
        "the newest case is newer than every file that could be measured: go on with it",
        (Outcome("its page", "what is known in that case and the next call"),),
    ),
    "diagnose-run": Step(
        "case_diagnose", {"run_file": "{run_file}"}, "logdiff diagnose {run_file}",
        "starts both engines on the same tokens, measures, looks into both, changes one thing, and gives a verdict",
        _VERDICT,
    ),
    "diagnose-pairs": Step(
        "case_diagnose", {"pairs": "{pairs}"}, "logdiff diagnose {pairs}",
        "judges the recorded log-probabilities as far as they carry; starts no engine",
        _VERDICT,
    ),
    "diagnose-live": Step(
        "case_diagnose", {"run_file": "{same_run_file}", "case": "{case}"},
        "logdiff diagnose {same_run_file} --case {case}",
        "goes on in this case: looks into both engines, changes one thing, and gives a verdict",
        _VERDICT,
    ),
    "diagnose-case": Step(
        "case_diagnose", {"case": "{case}"}, "logdiff diagnose {case}",
        "names the cause that this evidence supports, and what it excludes",
        _VERDICT,
    ),
    "diagnose-more": Step(
        "case_diagnose", {"run_file": "{same_run_file}", "case": "{case}", "max_seconds": 600, "max_starts": 12},
        "logdiff diagnose {same_run_file} --case {case} --max-seconds 600 --max-starts 12 --resume",
        "experiments were left out for lack of time or engine starts: give it more",
        _VERDICT,
    ),
    "diagnose-new-run": Step(
        "case_diagnose", {"run_file": "{new_run_file}"}, "logdiff diagnose {new_run_file}",
        "recorded numbers alone can't separate what is left; live engines can",
        _VERDICT,
        ask="ask for the model folder and the engine arguments of both sides, and write them into a run file",
    ),
    "measure-case": Step(
        "logdiff_measure", {"paths": ["{case}"]}, "logdiff measure {case}",
        "identity gates and statistics over the tokens of the case",
        (
            Outcome("equal", "no mismatch in this evidence", "no-mismatch"),
            Outcome("different", "how much, and beside which floor", "triangle"),
            Outcome("a failed gate", "what is not comparable, named", "sampling-and-data"),
        ),
    ),
    "measure-live": Step(
        "logdiff_run", {"run_file": "{same_run_file}", "case": "{case}"}, "logdiff run {same_run_file} --case {case}",
        "goes on with the run that was cut off; what was captured is not captured again",
        (Outcome("a measurement", "gates, statistics, floor, triangle", "triangle"),),
    ),
    "triangle-run": Step(
        "logdiff_run", {"run_file": "{run_file}"}, "logdiff run {run_file} --floor quick",
        "captures decode, prefill and training on the same tokens, and the floor of each",
        (
            Outcome("decode_rescore is the larger leg", "the rollout engine's decode is off, or its KV cache"),
            Outcome("rescore_train is the larger leg", "the engines differ: weights, configuration, operators"),
        ),
    ),
    "audit": Step(
        "config_audit", {"paths": ["{run_file}"]}, "logdiff audit {run_file}",
        "says which effective settings forbid equal log-probabilities; executes nothing",
        (
            Outcome("an error", "two columns are different quantities, or a switch does nothing: fix it first"),
            Outcome("no error", "the configuration allows equality: look at what really runs", "operator-path"),
        ),
        ask="add launch scripts, logs and package lists of both sides to the paths: rollout=PATH, train=PATH",
    ),
    "dispatch": Step(
        "dispatch_inspect", {"run_file": "{run_file}"}, "logdiff dispatch {run_file}",
        "declared is not executed: operators, kernels and patched functions of both sides, side by side",
        (
            Outcome("a finding", "a patched function, a wrong package or a switch without effect", "apply-and-prove"),
            Outcome("the sides differ", "other kernels for the same function: rounding is expected", "operator-path"),
        ),
    ),
    "localize": Step(
        "divergence_localize", {"case": "{case}"}, "logdiff localize {case}",
        "each operator alone, against fp64 on its own captured input, and where the sides part",
        (
            Outcome("an operator far off", "that side computes another function there", "apply-and-prove"),
            Outcome("inputs off", "it was fed other ids, positions, masks or cache rows", "attention-and-positions"),
            Outcome("all within rounding", "the difference is the operators'", "operator-path"),
        ),
    ),
    "worst-tokens": Step(
        "case_query", {"case": "{case}", "sql": WORST_TOKENS}, "logdiff query {case} {worst_tokens}",
        "shows whether a few tokens carry the difference or all of them do",
        (
            Outcome("few tokens", "structure: positions, packs, experts, placeholders"),
            Outcome("spread evenly", "compare with the floor"),
        ),
    ),
    "broken-tokens": Step(
        "case_query", {"case": "{case}", "sql": BROKEN_TOKENS}, "logdiff query {case} {broken_tokens}",
        "shows which side lacks values or carries NaN, infinite or positive log-probabilities",
        (
            Outcome("a side with bad values", "fix its dump or its log-probability setting"),
            Outcome("none", "read the failed gate's detail"),
        ),
    ),
    "report": Step(
        "report_render", {"case": "{case}"}, "logdiff report {case} -o report.html",
        "one HTML file for a person: what was seen, ruled out, changed, and what to do",
        (Outcome("path of report.html", "for a person to open"),),
    ),
    "align-run": Step(
        "logdiff_run", {"run_file": "{run_file}", "align": "all", "tokens": "{case}"},
        "logdiff run {run_file} --align all --tokens {case}",
        "runs both engines on aligned operators over the same tokens: the proof by intervention",
        _PROOF,
    ),
    "fix-page": Step(
        "playbook_get", {"name": "apply-and-prove", "case": "{case}"}, "logdiff playbook apply-and-prove {case}",
        "the fix of this cause by engine and version, and how to prove it",
        (Outcome("the page", "what to change, and the call that proves it", "apply-and-prove"),),
    ),
    "run-again": Step(
        "logdiff_run", {"run_file": "{run_file}", "tokens": "{case}"}, "logdiff run {run_file} --tokens {case}",
        "the same tokens after the fix; `logdiff compare` shows before and after",
        (
            Outcome("within the floor or equal", "the fix is proven", "no-mismatch"),
            Outcome("smaller, above the floor", "a second cause: diagnose the new case", "triangle"),
            Outcome("unchanged", "it did nothing, or was not loaded: look at what runs", "configuration-audit"),
        ),
        ask="make the fix in the run file (or in what it names) before this call, with the person's consent",
    ),
    "pairs-again": Step(
        "case_diagnose", {"pairs": ["{new_pairs}"]}, "logdiff diagnose {new_pairs}",
        "a new recording after the fix shows whether the difference is gone",
        _VERDICT,
        ask="ask for a recording of the same prompts after the fix",
    ),
    "align-plan": Step(
        "align_plan", {"source": "{plan_source}"}, "logdiff align plan {plan_source}",
        "says what would be switched on in the user's own engines, at what cost; changes nothing",
        (
            Outcome("planned", "apply it with its id"),
            Outcome("not-covered", "the named part can't be aligned: plan fewer operators"),
        ),
    ),
}  # fmt: skip

_DIAGNOSE = ("diagnose-live", "diagnose-case")
_FIX = ("fix-page", "run-again", "report")
_FIX_RECORDED = ("fix-page", "run-again", "pairs-again", "report")

NEXT: dict[str, tuple[str, ...]] = {
    "nothing": ("ask-evidence",),
    "evidence": ("diagnose-run", "diagnose-pairs"),
    "cases": ("open-case",),
    "results": ("report",),
    "unmeasured": ("measure-live", "measure-case"),
    "no-tokens": (*_DIAGNOSE, "broken-tokens", "report"),
    "failed-identity": (*_DIAGNOSE, "broken-tokens", "report"),
    "failed-weights": (*_DIAGNOSE, "report"),
    "failed-configuration": (*_DIAGNOSE, "audit", "report"),
    "differs": (*_DIAGNOSE, "worst-tokens", "report"),
    "within-floor": ("report", *_DIAGNOSE),
    "equal": ("report",),
    "aligned-zero": ("align-plan", "fix-page", "report"),
    "aligned-differs": ("worst-tokens", "report"),
    "none": ("report",),
    "operator": ("align-run", "diagnose-more", "localize", "report"),
    "routing": ("align-run", "diagnose-more", "localize", "report"),
    "weights": _FIX,
    "sampling-processing": _FIX,
    "data": _FIX,
    "framework-config": _FIX,
    "framework-implementation": _FIX,
    "undetermined": ("diagnose-more", "localize", "worst-tokens", "report"),
    "invalid-evidence": ("broken-tokens", "report"),
    "none-recorded": ("report",),
    "operator-recorded": ("diagnose-more", "diagnose-live", "diagnose-new-run", "worst-tokens", "report"),
    "routing-recorded": ("diagnose-more", "diagnose-live", "diagnose-new-run", "worst-tokens", "report"),
    "weights-recorded": _FIX_RECORDED,
    "sampling-processing-recorded": _FIX_RECORDED,
    "data-recorded": _FIX_RECORDED,
    "framework-config-recorded": _FIX_RECORDED,
    "framework-implementation-recorded": _FIX_RECORDED,
    "undetermined-recorded": ("diagnose-more", "diagnose-live", "diagnose-new-run", "worst-tokens", "report"),
    "invalid-evidence-recorded": ("broken-tokens", "report"),
}
"""Situation -> steps, the first one first."""

PAGE_OF: dict[str, str] = {
    "nothing": "triage",
    "evidence": "triage",
    "cases": "triage",
    "results": "triage",
    "unmeasured": "triage",
    "no-tokens": "sampling-and-data",
    "failed-identity": "sampling-and-data",
    "failed-weights": "weights-first",
    "failed-configuration": "configuration-audit",
    "differs": "triangle",
    "within-floor": "no-mismatch",
    "equal": "no-mismatch",
    "aligned-zero": "apply-and-prove",
    "aligned-differs": "apply-and-prove",
    "none": "no-mismatch",
    "operator": "operator-path",
    "routing": "moe-routing",
    "weights": "weights-first",
    "sampling-processing": "sampling-and-data",
    "data": "sampling-and-data",
    "framework-config": "configuration-audit",
    "framework-implementation": "apply-and-prove",
    "undetermined": "triangle",
    "invalid-evidence": "sampling-and-data",
}
"""Situation -> page; one with "-recorded" takes the page of the same name without."""


@dataclass(frozen=True, slots=True)
class Page:
    """A playbook.

    Args:
        title: for menus.
        about: one sentence for menus.
        own: situation -> steps where the page has another next step than the situation alone.
    """

    title: str
    about: str
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_PROVE = ("run-again", "report")
_PROVE_RECORDED = ("run-again", "pairs-again", "report")
_FIXED = ("weights", "sampling-processing", "data", "framework-config", "framework-implementation")
_LOOK = ("localize", "report")
_RUN_FIRST = {"nothing": ("diagnose-run",)}
_LOOKED = {
    "nothing": _LOOK,
    "operator": _LOOK, "routing": _LOOK, "framework-implementation": ("localize", "fix-page", "report"),
    "undetermined": ("localize", "diagnose-more", "report"),
}  # fmt: skip

PAGES: dict[str, Page] = {
    "triage": Page("Triage", "From a complaint to the evidence to ask for."),
    "configuration-audit": Page(
        "Configuration audit", "Do the effective settings of both sides allow equal log-probabilities?",
        {
            "nothing": ("audit", "dispatch"),
            "evidence": ("audit", "dispatch"),
            "differs": ("audit", "dispatch", *_DIAGNOSE),
            "failed-configuration": ("audit", "dispatch", *_DIAGNOSE),
            "framework-config": ("fix-page", "audit", "dispatch"),
        },
    ),
    "weights-first": Page(
        "Weights first", "Do both sides hold the same tensors, also after a weight sync?", _RUN_FIRST,
    ),
    "sampling-and-data": Page(
        "Sampling and data", "Do both columns speak of the same tokens, masks and distributions?",
        dict.fromkeys(("nothing", "evidence"), ("diagnose-pairs", "diagnose-run")),
    ),
    "triangle": Page(
        "The triangle", "Decode, prefill and training on the same tokens: which leg carries the difference?",
        dict.fromkeys(("nothing", "evidence"), ("triangle-run", "diagnose-pairs")),
    ),
    "operator-path": Page(
        "Operator path", "Same inputs, other bits: which operator, how much, and the proof.",
        {"nothing": ("align-run", "localize")},
    ),
    "moe-routing": Page("MoE routing", "Other experts for some tokens: near ties, precision, replay.", _RUN_FIRST),
    "attention-and-positions": Page(
        "Attention and positions", "Masks, windows, RoPE, packing, KV cache: is a row fed what it should be?", _LOOKED,
    ),
    "apply-and-prove": Page(
        "Apply and prove", "Make the fix, prove it on the same tokens, and be able to take it back.",
        {
            "nothing": ("align-plan",),
            "aligned-zero": ("align-plan", "report"),
            **dict.fromkeys(_FIXED, _PROVE),
            **dict.fromkeys((f"{name}-recorded" for name in _FIXED), _PROVE_RECORDED),
        },
    ),
    "no-mismatch": Page("No mismatch after all", "Equal, or within what a side shows against itself.",
                        {"nothing": ("report",)}),
}  # fmt: skip
"""Every playbook, in the order of a menu."""
