"""`logdiff kernels` on the real interpreter: what is listed, built and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from logdiff import actions
from logdiff.cli.app import run
from logdiff.errors import InputError


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["kernels", *arguments, "--json"])
    return code, json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("provider", ["twin", "ascendc"])
def test_providers_of_later_versions_are_refused_by_name(provider: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = said(capfd, "list", "--provider", provider)
    assert code == 2
    assert f"provider {provider} is not part of this version" in found["error"]["message"]


def test_an_npu_architecture_is_not_for_the_cpu() -> None:
    with pytest.raises(InputError, match="for NPU providers"):
        actions.kernels(what="list", arch="dav-2201")


def test_a_failed_law_is_exit_code_1_and_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    laws = [
        {"kernel": "linear", "law": "any order of rows", "ok": False, "detail": "3 of 9 values differ"},
        {"kernel": "rope", "law": "run to run", "ok": True, "detail": "holds"},
    ]
    answer = {"format": "logdiff-selftest/1", "provider": "aligned-cpu", "arch": "avx2", "laws": laws, "failed": 1}
    monkeypatch.setattr("logdiff.live.kernels", lambda *a, **k: answer)
    assert run(["kernels", "selftest"]) == 1
    shown = capfd.readouterr().out
    assert "linear: any order of rows FAILS: 3 of 9 values differ" in shown
    assert "1 of 2 laws hold" in shown


@pytest.mark.slow(seconds=60)
def test_the_kernels_of_this_interpreter_are_listed_built_and_hold_their_laws(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, built = said(capfd, "build")
    assert (code, len(built["sha256"])) == (0, 64)
    code, listed = said(capfd, "list")
    (provider,) = listed["providers"]
    assert (provider["name"], provider["contract"]) == ("aligned-cpu", "aligned/1")
    assert (provider["binary_hash"], provider["isa"]) == (built["sha256"], built["isa"])
    code, tested = said(capfd, "selftest")
    assert (code, tested["failed"]) == (0, 0)
    assert tested["arch"] == built["isa"]
