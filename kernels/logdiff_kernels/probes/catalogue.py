"""Every operator family and every provider, by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from logdiff_kernels.probes import relations
from logdiff_kernels.probes.records import Family, Provider

FAMILIES = (
    "linear", "norms", "rope", "activations", "attention", "logprob", "router", "moe", "embedding", "reductions",
    "collectives", "kv_cache", "recurrent",
)  # fmt: skip
"""Files of `families/`; each has `FAMILIES`."""

PROVIDERS = (
    "torch_eager", "torch_compiled", "sdpa", "transformers", "vllm", "torch_npu", "vllm_ascend",
    "cann_batch_invariant", "flash_attn_npu", "aligned",
)  # fmt: skip
"""Files of `providers/`; each has `PROVIDERS`."""


@cache
def families() -> dict[str, Family]:
    """Operator -> family, in the order in which lists show them."""
    found = [family for name in FAMILIES for family in _module("families", name).FAMILIES]
    return {family.op: family for family in found}


@cache
def providers() -> dict[str, Provider]:
    """Name -> provider, in the order in which lists show them."""
    found = [provider for name in PROVIDERS for provider in _module("providers", name).PROVIDERS]
    return {provider.name: provider for provider in found}


def _module(folder: str, name: str) -> Any:
    return import_module(f"logdiff_kernels.probes.{folder}.{name}")


def listed() -> dict[str, Any]:
    """What `logdiff probe list` shows: `operators`, `providers`, `relations`."""
    return {
        "operators": [
            {
                "op": family.op,
                "dims": list(family.dims),
                "relations": [f"I:{name}" for name in family.relations],
                "gradients": list(family.wrt),
                "dtypes": list(family.dtypes),
                "providers": [provider.name for provider in providers().values() if family.op in provider.ops],
            }
            for family in families().values()
        ],
        "providers": [
            {"provider": p.name, "devices": list(p.devices), "operators": sorted(p.ops), "note": p.note}
            for p in providers().values()
        ],
        "relations": {
            **{f"I:{name}": text for name, text in relations.INVARIANCES.items()},
            "A": "within rounding of fp64",
            "P": "the same bits as another provider",
            "grad-I:...": "the same, of the gradients of a row's inputs",
            "grad-A": "gradients within rounding of fp64",
        },
    }
