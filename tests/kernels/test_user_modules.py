"""Modules of the user's own stack are imported once, by path, in order."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest
from logdiff_kernels import modules
from logdiff_kernels.errors import InputError


def test_a_module_runs_once_and_its_bytes_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "counted_module.py"
    path.write_text("import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\n", encoding="utf-8")
    first = modules.load_modules([str(path)])
    again = modules.load_modules([str(path)])
    assert first == again == [{"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}]
    assert sys.counted == 1  # type: ignore[attr-defined]
    assert first[0] in modules.loaded()
    assert sys.modules["counted_module"].__file__ == str(path)


def test_a_module_never_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text("MINE = True\n", encoding="utf-8")
    import json

    modules.load_modules([str(path)])
    assert sys.modules["json"] is json


def test_a_module_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "failing_module.py"
    path.write_text("1 / 0\n", encoding="utf-8")
    before = set(sys.modules)
    with pytest.raises(InputError, match="ZeroDivisionError") as caught:
        modules.load_modules([str(path)])
    assert caught.value.value == str(path)
    assert set(sys.modules) == before


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        modules.load_modules([str(tmp_path / "absent.py")])


def test_child_processes_find_the_modules_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for name in ("first_of_two", "second_of_two"):
        path = tmp_path / f"{name}.py"
        path.write_text(f"NAME = {name!r}\n", encoding="utf-8")
        paths.append(str(path))
    monkeypatch.setenv(modules.VARIABLE, os.pathsep.join(paths))
    assert [entry["path"] for entry in modules.load_from_environment()] == paths
