"""How a benchmark with limits ends: its rows as JSON where asked for, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def finish(benchmark: str, limits: dict[str, Any], rows: list[dict[str, Any]], target: str | None) -> int:
    """Write the rows to a file (`-`: standard output; None: nowhere); 1 where one is not `within_limit`."""
    if target:
        text = json.dumps({"benchmark": benchmark, "limits": limits, "rows": rows}, indent=2)
        if target == "-":
            print(text)
        else:
            Path(target).write_text(text + "\n", encoding="utf-8")
    return 1 if any(row.get("within_limit") is False for row in rows) else 0
