"""Finding CANN: which place counts, what is read of it, and what is said when a part is missing."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from fake_cann import FakeCann, install
from logdiff_kernels.build.cann import find_cann
from logdiff_kernels.errors import UnsupportedError


def test_variable_leads_to_home_version_compiler_and_headers(fake: FakeCann) -> None:
    found = find_cann()
    assert (found.home, found.found_by) == (fake.home, "ASCEND_HOME_PATH")
    assert (found.version, found.release) == ("8.5.0", (8, 5))
    assert (found.bisheng, found.compiler) == (fake.bisheng, "bisheng 15.0.5 (stand-in)")
    assert found.includes == (fake.home / "compiler/tikcpp/include",)


def test_variables_come_before_path_and_path_before_the_customary_folder(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {name: install(nowhere / name) for name in ("home", "toolkit", "path", "usr-local/cann")}
    assert find_cann().home == homes["usr-local/cann"].home
    monkeypatch.setenv("PATH", f"{homes['path'].bisheng.parent}:/usr/bin:/bin")
    assert (find_cann().home, find_cann().found_by) == (homes["path"].home, "PATH")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(homes["toolkit"].home))
    assert (find_cann().home, find_cann().found_by) == (homes["toolkit"].home, "ASCEND_TOOLKIT_HOME")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(homes["home"].home))
    assert find_cann().home == homes["home"].home


def test_without_cann_the_error_names_the_variables_and_what_the_twin_can_do(nowhere: Path) -> None:
    with pytest.raises(UnsupportedError, match="not installed") as caught:
        find_cann()
    assert "ASCEND_HOME_PATH not set and ASCEND_TOOLKIT_HOME not set, no bisheng on PATH" in caught.value.value
    assert "set ASCEND_HOME_PATH" in caught.value.hint
    assert "kernels selftest --provider twin" in caught.value.hint


def test_variable_that_leads_nowhere_is_an_error_whatever_else_is_there(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(nowhere / "usr-local" / "cann")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(nowhere / "gone"))
    with pytest.raises(UnsupportedError, match="ASCEND_HOME_PATH names no folder") as caught:
        find_cann()
    assert caught.value.value == str(nowhere / "gone")


def test_compiler_of_another_cann_is_not_borrowed(fake: FakeCann, monkeypatch: pytest.MonkeyPatch) -> None:
    other = install(fake.home.parent / "other")
    monkeypatch.setenv("PATH", f"{other.bisheng.parent}:/usr/bin:/bin")
    fake.bisheng.unlink()
    with pytest.raises(UnsupportedError, match=r"no bisheng; the one on PATH, .*other.* belongs to another CANN"):
        find_cann()


@pytest.mark.parametrize("place", ["tools/bisheng_compiler/bin", "compiler/ccec_compiler/bin", "some/new/place"])
def test_compiler_is_found_in_every_layout_that_path_or_custom_knows(
    place: str, fake: FakeCann, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = fake.home / place / "bisheng"
    moved.parent.mkdir(parents=True)
    fake.bisheng.rename(moved)
    if place == "some/new/place":
        monkeypatch.setenv("PATH", f"{moved.parent}:/usr/bin:/bin")
    assert find_cann().bisheng == moved


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("version.info", "Version=9.0.0-beta.2\n", "9.0.0-beta.2"),
        (f"{platform.machine()}-linux/ascend_toolkit_install.info", "package_name=x\nversion=8.5.0\n", "8.5.0"),
        ("compiler/version.info", "Version=7.8.0.1.2\nversion_dir=8.5.RC1\n", "8.5.RC1"),
        (
            "version.cfg",
            "# version: 1.0\nruntime_running_version=[7.8.0:8.6.0]\ntoolkit_running_version=[7.8.1:8.5.RC1]\n",
            "8.5.RC1",
        ),
    ],
)
def test_version_is_read_from_whichever_file_there_is(file: str, text: str, version: str, fake: FakeCann) -> None:
    (fake.home / "version.info").unlink()
    path = fake.home / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert find_cann().version == version


def test_folder_name_tells_the_version_where_no_file_does(fake: FakeCann) -> None:
    (fake.home / "version.info").unlink()
    assert find_cann().version == "8.5.0"


def test_unreadable_version_and_one_that_is_too_old_are_refused(fake: FakeCann, nowhere: Path) -> None:
    (fake.home / "version.info").write_text("Version=8.2.RC1\n")
    with pytest.raises(UnsupportedError, match=r"CANN 8\.2\.RC1 is too old") as caught:
        find_cann()
    assert "8.5" in caught.value.hint
    (fake.home / "version.info").write_text("nothing\n")
    fake.home.rename(nowhere / "moved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_HOME_PATH", str(nowhere / "moved"))
        with pytest.raises(UnsupportedError, match="version of CANN can't be read") as caught:
            find_cann()
    assert f"{platform.machine()}-linux/ascend_toolkit_install.info" in caught.value.value


def test_compiler_that_does_not_start_is_named(fake: FakeCann) -> None:
    fake.bisheng.write_text("#!/bin/sh\necho libfoo.so: not found >&2\nexit 127\n")
    with pytest.raises(UnsupportedError, match=r"bisheng does not start: libfoo\.so: not found") as caught:
        find_cann()
    assert caught.value.value == str(fake.bisheng)
