"""The task `probe_facts`: what is told while it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logdiff_kernels.cpu import build
from logdiff_kernels.probe_actions import probe_facts


def test_kernels_that_have_to_be_compiled_first_are_told_source_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    real = build.ensure_library

    def compiles(isa: build.Isa, on_done: Any = None) -> Path:
        if on_done is not None:
            on_done(0, 2, "")
            on_done(1, 2, "linear.cpp")
        return real(isa)

    monkeypatch.setattr(build, "ensure_library", compiles)
    told: list[tuple[Any, ...]] = []
    facts = probe_facts({}, lambda *step: told.append(step)).data
    assert told == [(0, 2, "source", "compiling the CPU kernels"), (1, 2, "source", "linear.cpp")]
    assert facts["aligned"]["contract"]


def test_no_kernel_is_built_for_probes_of_other_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    def builds(*_: Any, **__: Any) -> Path:
        raise AssertionError("built")

    monkeypatch.setattr(build, "ensure_library", builds)
    assert probe_facts({"aligned": False}, lambda *step: None).data["aligned"] is None
    with pytest.raises(AssertionError, match="built"):
        probe_facts({}, lambda *step: None)
