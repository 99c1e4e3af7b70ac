"""Records as a pair file, and its diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logdiff.case.readers import read_pairs
from logdiff.verdict.offline import diagnose_pairs
from logdiff.verdict.records import Diagnosis


def write(path: Path, meta: dict[str, Any], rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps({"format": "logdiff-pair/1", "meta": meta}), *(json.dumps(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def diagnosis(path: Path, meta: dict[str, Any], rows: list[dict[str, Any]]) -> Diagnosis:
    facts, batches = read_pairs([write(path, meta, rows)])
    found, _ = diagnose_pairs(facts, batches)
    return found
