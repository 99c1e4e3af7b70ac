"""Causes of the catalogue that an argument, an operator or a boundary stands for."""

from __future__ import annotations

from typing import Any

from logdiff.localize.budget import NOT_MEASURED, TOGETHER, UNEXPLAINED
from logdiff.localize.configuration import cause_of
from logdiff.localize.places import component
from logdiff.verdict.records import BudgetShare

ARGUMENT_CAUSES = {
    "kv_cache_dtype": "kv-cache-dtype",
    "quantization": "quantised-one-side",
    "quantization_config": "quantised-one-side",
    "dtype": "dtype-differs",
    "attn_implementation": "attention-implementation-drops",
    "attention_backend": "attention-implementation-drops",
    "compilation_config": "compiled-numerics",
}
"""Argument of an engine -> cause, where no operator says more."""


def argument_cause(argument: str) -> str | None:
    """The cause that an argument stands for; keys of a model's configuration through `localize.configuration`."""
    if argument in ARGUMENT_CAUSES:
        return ARGUMENT_CAUSES[argument]
    found = cause_of(argument, [])
    return None if found == "model-config-differs" else found


_OPERATORS = (
    ("norm", "norm-rounding"), ("rope", "rope-rounding"), ("attention", "attention-rounding"),
    ("act", "activation-rounding"), ("lm_head", "head-rounding"), ("logprob", "head-rounding"),
    ("proj", "linear-rounding"), ("linear", "linear-rounding"), ("swiglu", "activation-rounding"),
    ("moe", "linear-rounding"), ("router", "router-dtype"),
)  # fmt: skip


def rounding_cause(component: str | None) -> str:
    """The cause of the catalogue that belongs to an operator's rounding."""
    return next((cause for part, cause in _OPERATORS if component and part in component), "operator-rounding")


def first_divergence(operators: dict[str, Any]) -> str | None:
    """The first boundary whose bits differ between the sides, as a reader's component."""
    for entry in operators.get("divergence", []):
        if entry["pair"] in ("decode-score", "prefill-score") and (entry.get("bits_differ") or 0) > 0:
            return component([entry["boundary"]])
    return None


def largest(budget: list[BudgetShare]) -> str | None:
    """The operator with the largest share of a budget; None without one."""
    named = [b for b in budget if b.component not in (UNEXPLAINED, NOT_MEASURED, TOGETHER) and b.share > 0]
    return max(named, key=lambda b: b.share).component if named else None
