"""Findings from the gates: log-probabilities of another quantity, other tokens, another dtype."""

from __future__ import annotations

from typing import Any

from logdiff.localize.finding import CONFIG, DATA, PROCESSING, Finding
from logdiff.verdict.records import Evidence

SOURCE = "results/measure.json"

_QUANTITY = (
    ("raw log-probabilities at", "temperature-missing-rollout-raw-logprobs", "rollout", "logprobs_mode"),
    ("normalises over what is left", "truncation-renormalised", "rollout", "top_p"),
    ("reports logits", "logprob-not-normalised", "rollout", "logprobs_mode"),
    ("penalty", "penalty-one-side", "rollout", "penalties"),
    ("min_p", "truncation-renormalised", "rollout", "min_p"),
    ("temperature", "temperature-differs", "unknown", "temperature"),
)
"""Words of the configuration gate -> cause, side, component."""


def gate_findings(gates: list[dict[str, Any]]) -> list[Finding]:
    """Findings from failed identity gates of `logdiff-measure/1`, model configuration and weights left to others."""
    found = []
    for gate in gates:
        if gate["ok"] is not False:
            continue
        evidence = (Evidence(f"gate {gate['gate']}: {gate['detail']}", None, None, SOURCE),)
        if gate["gate"] == "config":
            found += [_quantity(text, evidence) for text in (gate.get("data") or {}).get("different", [])]
        elif gate["gate"] in ("ids", "lengths", "masks", "duplicates", "vocabulary"):
            cause = {"ids": "ids-differ", "masks": "mask-misaligned", "lengths": "ids-differ"}.get(gate["gate"])
            found.append(
                Finding(
                    "data", cause, "unknown", gate["gate"], 0.97, DATA, f"{gate['gate']}: {gate['detail']}", evidence
                )
            )
    return [f for f in found if f is not None]


def _quantity(text: str, evidence: tuple[Evidence, ...]) -> Finding | None:
    if text.startswith("model ") or "more keys of the model" in text:
        return None
    for words, cause, side, component in _QUANTITY:
        if words in text:
            if component == "top_p" and "top_p" not in text:
                component = "top_k"
            return Finding("sampling-processing", cause, side, component, 0.97, PROCESSING, text, evidence)
    return Finding(
        "framework-config", "model-config-differs", "unknown", text.split(" ")[0], 0.9, CONFIG, text, evidence
    )


def dtype_findings(dtypes: dict[str, str], asked: str) -> list[Finding]:
    """A side that computes in another dtype than the run asks for.

    Args:
        dtypes: side -> dtype of its parameters.
        asked: dtype of the run.
    """
    if len(set(dtypes.values())) < 2:
        return []
    wrong = [side for side, dtype in dtypes.items() if dtype != asked]
    side = wrong[0] if len(wrong) == 1 else "unknown"
    text = ", ".join(f"{dtype} on {side}" for side, dtype in dtypes.items())
    evidence = (Evidence(f"dtype: {text}; the run asks for {asked}", text, asked, "fingerprints"),)
    return [Finding("framework-config", "dtype-differs", side, "dtype", 0.9, CONFIG, f"dtype is {text}", evidence)]
