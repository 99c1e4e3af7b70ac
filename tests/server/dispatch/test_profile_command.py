"""`logdiff dispatch --profile`: exit codes, the JSON contract, the case and what a reader sees."""

from __future__ import annotations

import json
from pathlib import Path

import make_profile as made
import pytest
from logdiff.cli.app import run

OP = made.Op("MatMulV2", times=3, torch_op="aten::mm", module="Linear_0")


def test_two_profiles_give_1_where_they_differ_and_0_where_they_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(made.database(tmp_path / "a.db", [OP]))
    two = str(made.database(tmp_path / "b.db", [OP.but(formats="ND;FRACTAL_NZ")]))
    assert run(["dispatch", "--profile", one, "--profile", one]) == 0
    assert "same: the same operators" in capsys.readouterr().out
    assert run(["dispatch", "--profile", one, "--profile", two]) == 1
    shown = capsys.readouterr().out
    assert "FRACTAL_NZ" in shown
    assert "aten::mm" in shown
    assert "Linear_0" in shown
    assert run(["dispatch", "--profile", one]) == 0


def test_the_result_is_a_document_of_the_contract_and_kept_in_a_case(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = str(made.database(tmp_path / "a.db", [OP]))
    case = tmp_path / "case"
    assert run(["dispatch", "--profile", one, "--case", str(case), "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert (data["format"], data["source"]) == ("logdiff-dispatch/1", "ascend-profile")
    assert json.loads((case / "manifest.json").read_text())["state"] == "complete"
    kept = json.loads((case / "results" / "dispatch-profile.json").read_text())
    assert kept["profile"] == data["profile"]


@pytest.mark.parametrize("rest", [[], ["run.yaml", "--profile", "x"], ["--profile", "x", "--side", "train"]])
def test_a_run_file_and_a_profile_are_one_or_the_other(rest: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["dispatch", *rest, "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["type"] == "InputError"


def test_three_profiles_are_too_many_and_a_missing_one_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    absent = str(tmp_path / "absent")
    assert run(["dispatch", *["--profile", absent] * 3, "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["value"] == 3
    assert run(["dispatch", "--profile", absent, "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["value"] == absent


def test_the_report_shows_what_ran_on_the_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(made.database(tmp_path / "a.db", [OP]))
    two = str(made.database(tmp_path / "b.db", [OP.but(formats="ND;FRACTAL_<NZ>")]))
    case, page = tmp_path / "case", tmp_path / "r.html"
    assert run(["dispatch", "--profile", one, "--profile", two, "--case", str(case)]) == 1
    assert run(["report", str(case), "-o", str(page)]) == 0
    text = page.read_text()
    assert "What ran on the NPUs" in text
    assert "FRACTAL_&lt;NZ&gt;" in text
    assert "aten::mm in Linear_0" in text
    result = case / "results" / "dispatch-profile.json"
    result.write_text('{"format": "logdiff-dispatch/1", "profile": {"sides": 3}}')
    assert run(["report", str(case), "-o", str(page)]) == 2  # a sealed case that was changed is refused
