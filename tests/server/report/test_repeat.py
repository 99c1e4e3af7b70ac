from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from logdiff.case.query import query
from logdiff.report.files import CaseFiles
from logdiff.report.repeat import repeat
from report_cases import MakeCase, Sample


def _commands(manifest: dict[str, Any], path: str = "/cases/one") -> list[str]:
    files = CaseFiles("case", manifest=manifest)
    return [c.command for c in repeat(Path(path), Path("/out/my report.html"), files, ("rollout", "train"))]


def test_paths_with_spaces_and_quotes_reach_the_shell_as_one_word() -> None:
    path = "/cases/it's $HOME; rm -rf x"
    report, ask = _commands({}, path)
    assert shlex.split(report) == ["logdiff", "report", path, "-o", "/out/my report.html"]
    assert shlex.split(ask)[:3] == ["logdiff", "query", path]


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (
            {"kind": "measure", "inputs": {"files": [{"path": "/a b.jsonl"}, {"path": "/c"}]}},
            ["measure", "/a b.jsonl", "/c"],
        ),
        (
            {"kind": "import", "inputs": {"format": "verl", "paths": ["/d"]}},
            ["import", "verl", "/d", "--case", "NEW_FOLDER"],
        ),
        (
            {"kind": "demo", "inputs": {"run": {"model": "builtin:qwen3", "rollout": {"engine": "vllm"}}}},
            ["demo", "--model", "dense", "--rollout", "vllm"],
        ),
    ],
)
def test_evidence_is_made_again_by_the_command_of_its_kind(manifest: dict[str, Any], words: list[str]) -> None:
    assert shlex.split(_commands(manifest)[0]) == ["logdiff", *words]


def test_a_run_comes_with_its_run_file() -> None:
    run = {"format": "logdiff-run/1", "model": "m", "sampling": {"seed": 7}}
    files = CaseFiles("case", manifest={"kind": "run", "inputs": {"run": run}})
    first = repeat(Path("/c"), Path("/o"), files, ("rollout", "train"))[0]
    assert first.command == "logdiff run run.yaml"
    assert yaml.safe_load(first.file) == run


def test_the_query_of_the_worst_tokens_answers_with_them(make_case: MakeCase) -> None:
    sides = {"rollout": [-1.0, -2.0, -3.0], "train": [-1.5, -2.0, -1.0]}
    case = make_case([Sample([11, 12, 13], sides, mask=[1, 1, 1])])
    command = repeat(case.path, Path("/o"), CaseFiles("case"), ("rollout", "train"))[-1].command
    rows = query(case, shlex.split(command)[-1])["rows"]
    assert [(row[4], row[5]) for row in rows] == [(13, 2.0), (11, -0.5), (12, 0.0)]
