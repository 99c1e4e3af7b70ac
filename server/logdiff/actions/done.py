"""What every action returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Done:
    """A result in the form that `--json` prints, and the exit code that goes with it."""

    data: dict[str, Any]
    exit_code: int = 0
