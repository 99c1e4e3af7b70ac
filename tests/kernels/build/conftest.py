"""A CANN of the test's own: nothing of this machine's is seen, nothing is written to its cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cann import FakeCann, install, write_sources
from logdiff_kernels.build import cann, compile


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without CANN."""
    for variable in cann.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(cann, "PLACES", (tmp_path / "usr-local" / "cann",))
    monkeypatch.setenv("LOGDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def fake(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCann:
    """A stand-in CANN 8.5.0 that ASCEND_HOME_PATH names, and two small sources instead of the kernels."""
    package = nowhere / "package"
    write_sources(package)
    monkeypatch.setattr(compile, "PACKAGE", package)
    monkeypatch.setattr(compile, "SOURCES", package / "ascendc" / "csrc")
    found = install(nowhere / "cann-8.5.0")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(found.home))
    return found
