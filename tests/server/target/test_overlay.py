import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import logdiff
import pytest
from logdiff.target import overlay as overlays
from logdiff.target.local import LocalRunner


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def bare():
    """An interpreter without this environment's packages."""
    path = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if sys.prefix == sys.base_prefix or not path.is_file():
        pytest.skip("the tests run in the base interpreter itself")
    return str(path)


def test_the_running_interpreter_needs_no_overlay():
    assert "PYTHONPATH" not in overlays.runner_env(sys.executable, {})


def test_the_overlay_holds_the_package_and_its_entry_point_and_nothing_else(cache):
    folder = overlays.overlay()
    assert folder.parent == cache / "logdiff"
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["logdiff_kernels", f"logdiff_kernels-{logdiff.__version__}.dist-info"]
    found = importlib.metadata.PathDistribution(folder / names[1])
    entry = next(e for e in found.entry_points if e.group == "vllm.general_plugins")
    assert (entry.name, entry.value) == ("logdiff", "logdiff_kernels.engines.vllm.plugin:register")
    assert overlays.overlay() == folder


def test_a_bare_interpreter_runs_the_runner_and_sees_the_entry_point(bare, tmp_path):
    env = overlays.runner_env(bare, {"PYTHONPATH": "/somewhere"})
    assert env["PYTHONPATH"].split(os.pathsep) == [str(overlays.overlay()), "/somewhere"]
    code = "import importlib.metadata as m; print([e.name for e in m.entry_points(group='vllm.general_plugins')])"
    told = subprocess.run([bare, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['logdiff']"
    runner = LocalRunner.start(None, log=tmp_path / "x.log", python=bare)
    try:
        assert runner.hello["python"] == ".".join(map(str, sys.version_info[:3]))
    finally:
        runner.close()


def test_our_site_packages_never_reach_another_interpreter(bare, tmp_path):
    env = overlays.runner_env(bare, {})
    code = "import sys, importlib.util as u; print(u.find_spec('logdiff')); print(*sys.path, sep='\\n')"
    told = subprocess.run([bare, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    found, *paths = told.stdout.splitlines()
    assert found == "None"
    assert not [p for p in paths if p.startswith(sys.prefix)]


def test_an_overlay_whose_package_has_gone_is_made_again(monkeypatch):
    folder = overlays.overlay()
    (folder / "logdiff_kernels").unlink()
    (folder / "logdiff_kernels").symlink_to("/gone")
    assert (overlays.overlay() / "logdiff_kernels" / "runner.py").is_file()


def test_without_a_writable_cache_the_overlay_lies_in_a_temporary_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    folder = overlays.overlay()
    assert (folder / "logdiff_kernels" / "runner.py").is_file()
    assert "/dev/null" not in str(folder)
