"""The contract's operators for torch: one public function each, with autograd and fake implementations.

Operators that are called outside torch.compile and need no gradient go straight to their kernel.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "linear": ("linear", "linear_row", "linear_row_partial", "tree_combine", "grouped_linear", "lm_head"),
    "embedding": ("embedding",),
    "norm": ("rms_norm", "add_rms_norm"),
    "rope": ("rope", "rope_table"),
    "activation": ("swiglu", "geglu_tanh", "swiglu_clamped"),
    "router": ("router",),
    "moe": ("moe", "moe_rows", "moe_combine", "moe_combine_slots"),
    "logprob": ("logprob", "log_softmax", "logprob_partial", "logprob_merge"),
    "attention": ("attention", "paged_attention", "store_kv"),
}
_missing: dict[str, Exception] = {}

for _module, _names in _HOMES.items():
    try:
        _found = importlib.import_module(f"logdiff_kernels.ops.{_module}")
        for _name in _names:
            globals()[_name] = getattr(_found, _name)
    except Exception as error:
        _missing.update(dict.fromkeys(_names, error))


def __getattr__(name: str) -> Any:
    if name in _missing:
        raise _missing[name]
    raise AttributeError(name)
