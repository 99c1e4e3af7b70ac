"""Fixture: cases in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logdiff.case import Case
from report_cases import MakeCase, build_case


@pytest.fixture
def make_case(tmp_path: Path) -> MakeCase:
    made = 0

    def make(samples: Any, **parts: Any) -> Case:
        nonlocal made
        made += 1
        return build_case(tmp_path / f"case-{made}", samples, **parts)

    return make
