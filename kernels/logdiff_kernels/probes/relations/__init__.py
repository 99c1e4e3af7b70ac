"""Which change of shape must leave a row's bits alone: names, and the trials of each kind of family."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logdiff_kernels.probes.records import Family, Impl, Problem
from logdiff_kernels.probes.relations import row_trials, sequence_trials
from logdiff_kernels.probes.relations.trial import Trial

INVARIANCES = {
    "batch": "a row alone = the same row in a batch",
    "order": "any order of rows or sequences",
    "neighbours": "any values, NaN too, in the other rows or sequences of the call",
    "padding": "no padding = padding before or after",
    "chunking": "a sequence at once = in pieces of any length, a cached prefix included",
    "decode": "a row of a prefill = the same token decoded alone",
    "page_size": "pages of any size",
    "rerun": "run to run",
    "threads": "any number of threads",
    "micro_batch": "one call = several calls of fewer rows or sequences",
    "tp": "one rank = the parts of 2 or 4 tensor-parallel ranks put together",
    "packing": "sequences packed one after the other = one at a time; [rows, n] = [batch, rows, n]",
    "strides": "contiguous = strided inputs",
    "compile": "eager = torch.compile",
}
"""Relations I: only shape or placement varies, compared bit by bit."""

GRADIENT_INVARIANCES = (
    "batch", "order", "neighbours", "padding", "rerun", "threads", "micro_batch", "packing", "strides",
)  # fmt: skip
"""Relations I that gradients of a row's inputs are held to as well."""

ACCURACY = "A"
PROVIDERS = "P"
GRADIENT = "grad-"


def names() -> tuple[str, ...]:
    """Every relation as results name it."""
    plain = tuple(f"I:{name}" for name in INVARIANCES)
    gradients = tuple(f"{GRADIENT}I:{name}" for name in GRADIENT_INVARIANCES)
    return (*plain, ACCURACY, PROVIDERS, *gradients, f"{GRADIENT}{ACCURACY}")


def trials(name: str, family: Family, impl: Impl, problem: Problem) -> Iterator[Trial]:
    """The trials of relation I `name` for one problem; none where the problem leaves nothing to vary."""
    table: dict[str, Callable[[Impl, Problem], Iterator[Trial]]] = (
        row_trials.TRIALS if family.kind == "rows" else sequence_trials.TRIALS
    )
    return table[name](impl, problem)


def possible(name: str, family: Family, impl: Impl) -> str:
    """Empty where relation I `name` can be asked of an implementation, else why not."""
    if name in impl.refuses:
        return impl.refuses[name]
    if name == "tp" and impl.split is None:
        return "this provider has no tensor-parallel form of it here"
    if name == "compile" and impl.base is None:
        return "compiled forms are tried where the provider's function is plain torch"
    if family.kind == "rows":
        return "" if name != "packing" or impl.leading else "its call takes rows only, without a batch dimension"
    return sequence_trials.possible(name, impl)
