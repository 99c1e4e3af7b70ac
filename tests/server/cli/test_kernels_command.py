"""`logdiff kernels` on the real interpreter: what is listed, built and refused."""

from __future__ import annotations

import json
import venv
from pathlib import Path
from typing import Any

import pytest
from logdiff.cli.app import run


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["kernels", *arguments, "--json"])
    return code, json.loads(capfd.readouterr().out)


@pytest.fixture
def no_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that find no CANN, whatever this machine has."""
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.setenv(variable, "/no/such/cann")


def test_build_without_cann_is_exit_code_2_with_what_the_twin_can_do(
    no_cann: None, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = said(capfd, "build", "--provider", "ascendc")
    assert (code, found["format"]) == (2, "logdiff-error/1")
    assert "ASCEND_HOME_PATH names no folder" in found["error"]["message"]
    assert found["error"]["value"] == "/no/such/cann"
    assert "--provider twin" in found["error"]["hint"]


def test_a_saved_report_takes_no_options_of_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for option in (["--quick"], ["--provider", "cpu"], ["--arch", "dav-3510"]):
        code, found = said(capfd, "selftest", "--report", str(tmp_path / "report.json"), *option)
        assert code == 2
        assert f"{option[0]} is for a run" in found["error"]["message"]


def test_list_shows_every_provider_and_what_is_missing(no_cann: None, capfd: pytest.CaptureFixture[str]) -> None:
    code, listed = said(capfd, "list")
    assert (code, listed["format"]) == (0, "logdiff-kernels/1")
    providers = {row["provider"]: row for row in listed["providers"]}
    assert list(providers) == ["cpu", "twin", "ascendc"]
    assert providers["cpu"]["available"]
    assert providers["twin"]["available"]
    npu = providers["ascendc"]
    assert not npu["available"]
    assert any("ASCEND_HOME_PATH names no folder" in gap for gap in npu["missing"])
    assert "--provider twin" in npu["instead"]
    assert any("not run on hardware" in limit for limit in npu["limits"])
    assert npu["binary_hash"] is None
    assert {row["contract"] for row in providers.values()} == {"aligned/1"}


def test_the_table_holds_every_limit_in_full(no_cann: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "list", "--provider", "ascendc"]) == 0
    words = " ".join(line.strip("│ ").split("│")[-1].strip() for line in capfd.readouterr().out.splitlines())
    _, listed = said(capfd, "list", "--provider", "ascendc")
    assert "; ".join(listed["providers"][0]["limits"]) in words


def test_an_interpreter_without_torch_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    code, found = said(capfd, "build", "--python", python)
    assert code == 2
    assert "No module named 'torch'" in found["error"]["message"]
    assert found["error"]["value"] == python
    assert "--python" in found["error"]["hint"]


def test_figures_of_the_cost_model_are_shown_as_such(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    row = {"case": "paged-decode", "shape": "B 1", "cores": 24, "cycles": 181317, "over_bound": 1.25, "balance": 0.5}
    answer = {
        "format": "logdiff-bench/1",
        "results": [],
        "skipped": [{"case": "paged-decode", "reason": "no time"}],
        "model": [{**row, "busy": {"aic.M": 0.25, "aic.MTE2": 0.875}}],
        "note": "cycles, not time",
    }
    asked: dict[str, Any] = {}
    monkeypatch.setattr("logdiff.live.kernels", lambda what, *a, **fields: asked.update(fields) or answer)
    assert run(["kernels", "bench", "--provider", "twin", "--arch", "dav-3510"]) == 0
    assert (asked["provider"], asked["arch"]) == ("twin", "dav-3510")
    shown = capfd.readouterr().out
    for words in ("181317", "1.250", "50.0%", "aic.MTE2 88%", "paged-decode skipped: no time", "cycles, not time"):
        assert words in shown
    assert "ratio" not in shown


def test_libraries_of_a_build_are_rows(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [
        {
            "kernel": "rope",
            "path": "/c/rope.so",
            "sha256": "a",
            "log": "/c/build.log",
            "seconds": 12.5,
            "cached": False,
        },
        {"kernel": "glu", "path": "/c/glu.so", "sha256": "b", "log": None, "seconds": 3.0, "cached": True},
    ]
    answer = {"provider": "aligned-ascendc", "arch": "dav-2201", "cann": "8.5.0", "kernels": rows}
    monkeypatch.setattr("logdiff.live.kernels", lambda *a, **k: answer)
    assert run(["kernels", "build", "--provider", "ascendc", "--arch", "dav-2201"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert any("cann" in line and "8.5.0" in line for line in lines)
    cells = [line.split() for line in lines]
    assert ["rope", "12.5", "/c/rope.so"] in cells
    assert ["glu", "cached", "/c/glu.so"] in cells


def test_kernels_that_are_not_built_are_listed_as_such(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    row = {
        "provider": "ascendc",
        "available": False,
        "missing": ["no CANN, no compiler", "no NPU"],
        "binary_hash": None,
    }
    monkeypatch.setattr("logdiff.live.kernels", lambda *a, **k: {"providers": [row]})
    assert run(["kernels", "list"]) == 0
    shown = capfd.readouterr().out
    assert "no CANN, no compiler; no NPU" in shown
    assert "not built" in shown


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


def test_selftest_of_an_npu_shows_its_parts_its_notes_and_what_differs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def report(order: str) -> dict[str, Any]:
        facts = {"Mmad/bfloat16": {"order": order}}
        part = {
            "name": "mmad",
            "matters": "sums differ",
            "checks": 9,
            "failed": 0,
            "fingerprint": order,
            "facts": facts,
        }
        head = {"format": "logdiff-selftest/1", "provider": "aligned-ascendc", "arch": "dav-2201"}
        return {**head, "laws": [], "failed": 0, "sections": [part], "notes": ["Div is not IEEE's"]}

    asked: dict[str, Any] = {}
    monkeypatch.setattr("logdiff.live.kernels", lambda *a, **fields: asked.update(fields) or report("ascending"))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(report("pairwise16")))
    assert run(["kernels", "selftest", "--provider", "ascendc", "--quick", "--compare", str(other)]) == 1
    assert (asked["provider"], asked["scope"]) == ("ascendc", "quick")
    shown = " ".join(capfd.readouterr().out.split())
    for words in (
        "mmad: 9 of 9 hold, fingerprint ascending",
        "note: Div is not IEEE's",
        "differs: Mmad/bfloat16: order: ascending here, pairwise16 there",
        "differs: what mmad means: sums differ",
        "the two reports differ",
    ):
        assert words in shown
    assert run(["kernels", "selftest", "--quick", "--full"]) == 2


@pytest.mark.slow(seconds=60)
def test_the_kernels_of_this_interpreter_are_listed_built_and_hold_their_laws(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, built = said(capfd, "build")
    assert (code, len(built["sha256"])) == (0, 64)
    code, listed = said(capfd, "list", "--provider", "cpu")
    provider = listed["providers"][0]
    assert (provider["name"], provider["contract"]) == ("aligned-cpu", "aligned/1")
    assert (provider["binary_hash"], provider["isa"]) == (built["sha256"], built["isa"])
    code, tested = said(capfd, "selftest")
    assert (code, tested["failed"]) == (0, 0)
    assert tested["arch"] == built["isa"]


@pytest.mark.slow(seconds=120)
def test_the_twin_of_npu_kernels_passes_its_selftest_and_agrees_with_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, tested = said(capfd, "selftest", "--provider", "twin", "--quick")
    assert (code, tested["failed"], tested["notes"]) == (0, 0, [])
    saved = tmp_path / "twin.json"
    saved.write_text(json.dumps(tested))
    code, compared = said(capfd, "selftest", "--provider", "twin", "--quick", "--compare", str(saved))
    assert (code, compared["compared"]) == (0, {"same": True, "differences": [], "remarks": []})
