"""JSON as every logdiff result uses it: non-finite numbers are the strings "nan", "inf", "-inf"."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Turn numpy scalars, arrays, paths and non-finite floats into plain JSON values, recursively.

    Half of a surrogate pair, which no UTF-8 file can hold, becomes its escape as text.
    """
    if isinstance(value, dict):
        return {_text(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _text(str(value))


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def dumps(value: Any, *, indent: int | None = None) -> str:
    """One JSON document of `plain(value)`, keys in the order given, no NaN tokens."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)
