"""`logdiff audit` at the command line: one JSON object, exit codes, and a text that a person can act on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logdiff.cli.app import run

EXAMPLE = str(Path(__file__).resolve().parents[3] / "examples" / "audit")
CLEAN = str(Path(__file__).resolve().parents[1] / "audit" / "clean" / "verl09_ascend023")
FIELDS = {"rule", "severity", "side", "key", "value", "where", "consequence", "fix"}


def test_findings_give_one_and_one_json_object(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", EXAMPLE, "--json"]) == 1
    data = json.loads(capfd.readouterr().out)
    assert data["format"] == "logdiff-audit/1"
    assert all(set(finding) >= FIELDS for finding in data["findings"])
    found = {f["rule"]: f for f in data["findings"]}
    assert found["top-p-renormalises"]["value"] == 0.95
    assert found["top-p-renormalises"]["where"].endswith("run.sh:19")
    assert found["near-miss"]["key"] == "HCCL_DETERMINSTIC"
    assert data["unread"] == []


def test_a_clean_launch_gives_zero(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", CLEAN, "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert not [f for f in data["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize("arguments", [["/nowhere/x.sh"], [], [__file__]])
def test_what_cannot_be_read_gives_two(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", *arguments, "--json"]) == 2
    error = json.loads(capfd.readouterr().out)["error"]
    assert error["type"] == "InputError"
    assert error["message"]


def test_the_text_names_key_place_consequence_and_fix(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", EXAMPLE]) == 1
    text = capfd.readouterr().out
    place = text.index("top-p with processed log-probabilities")
    block = text[place : place + 900]
    for words in ("actor_rollout_ref.rollout.top_p = 0.95", "run.sh:19", "whole vocabulary", "Set top_p to 1."):
        assert words in block
    assert text.index("error") < text.index("warning") < text.index("notes")


def test_effective_settings_go_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "effective.json"
    run(["audit", EXAMPLE, "--effective", str(target), "--json"])
    assert json.loads(capfd.readouterr().out)["effective"] == str(target)
    rows = {(r["side"], r["key"]): r for r in json.loads(target.read_text())["settings"]}
    assert rows["rollout", "tensor_parallel_size"]["value"] == 4
    assert rows["rollout", "calculate_log_probs"]["origin"] == "default"


def test_a_folder_that_is_no_case_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert run(["audit", EXAMPLE, "--case", str(tmp_path), "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["type"] == "CaseError"
