"""The audit's own tables: YAML files that travel with the package."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast loader of plain data where it was built."""


def packaged(path: str) -> Any:
    """What a file below this package's folder says, such as `rules/matrix.yaml`."""
    return yaml.load(files("logdiff.audit").joinpath(path).read_text(encoding="utf-8"), Loader=LOADER)
