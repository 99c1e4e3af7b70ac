"""Keeping secrets out of what is written down."""

from __future__ import annotations

import re
from typing import Any

_SECRET = re.compile(r"(^|_)(token|api_key|password|passwd|secret|credentials?)$", re.IGNORECASE)


def redacted(value: Any) -> Any:
    """The same plain data with every text under a key that names a secret replaced by "***"."""
    if isinstance(value, dict):
        return {k: "***" if isinstance(v, str) and _SECRET.search(str(k)) else redacted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [redacted(v) for v in value]
    return value
