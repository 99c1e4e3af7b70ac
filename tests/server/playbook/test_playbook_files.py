"""Reading: cases with broken files, workspaces of all kinds, the command line, the skill's references."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from logdiff.cli.app import run
from logdiff.playbook import calls_for, look, read_state, survey
from logdiff.playbook.survey import MOST_ENTRIES

ROOT = Path(__file__).resolve().parents[3]
PAIRS = [
    {"format": "logdiff-pair/1", "meta": {"model": "m"}},
    {"sample_id": "a", "prompt_token_ids": [1], "response_token_ids": [5, 6], "rollout_logprobs": [-0.5, -1.0],
     "train_logprobs": [-0.5, -1.25]},
]  # fmt: skip
RUN = {"format": "logdiff-run/1", "model": "builtin:qwen3", "prompts": {"random": {"count": 1, "lengths": [4]}},
       "rollout": {"engine": "transformers-generate"}, "train": {"engine": "transformers"}}  # fmt: skip


def write_pairs(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in PAIRS))


def write_case(folder: Path, **results: Any) -> Path:
    (folder / "results").mkdir(parents=True)
    manifest = {"format": "logdiff-case/1", "kind": "measure", "state": "complete", "inputs": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name, data in results.items():
        (folder / "results" / f"{name}.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return folder


def test_a_workspace_is_surveyed_by_format_and_not_by_name(tmp_path: Path) -> None:
    write_pairs(tmp_path / "dump.jsonl")
    (tmp_path / "other.jsonl").write_text('{"text": "logdiff-pair/1 is a format"}\n')
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as stream:
        stream.write(json.dumps(PAIRS[0]) + "\n")
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8b garbage")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(RUN))
    (tmp_path / "values.yaml").write_text("a: 1\n")
    case = write_case(tmp_path / "runs" / "x")
    write_pairs(case / "inside.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "dump.jsonl")
    (tmp_path / ".hidden").mkdir()
    write_pairs(tmp_path / ".hidden" / "p.jsonl")
    found = survey(tmp_path)
    assert set(found.pairs) == {"dump.jsonl", "more.jsonl.gz"}
    assert found.run_files == ("job.yaml",)
    assert found.cases == ("runs/x",)
    assert not found.truncated


def test_a_survey_of_a_huge_workspace_ends_and_says_so(tmp_path: Path) -> None:
    for i in range(MOST_ENTRIES + 1):
        (tmp_path / f"{i}.txt").touch()
    assert survey(tmp_path).truncated


def test_evidence_that_is_newer_than_every_case_comes_first(tmp_path: Path) -> None:
    case = write_case(tmp_path / "c")
    write_pairs(tmp_path / "p.jsonl")
    os.utime(case / "manifest.json", (1000, 1000))
    assert not survey(tmp_path).case_is_newer
    os.utime(tmp_path / "p.jsonl", (500, 500))
    assert survey(tmp_path).case_is_newer


def test_a_parquet_pair_file_is_known_by_its_footer(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"rollout_logprobs": [[0.5]], "sample_id": ["a"]}), tmp_path / "p.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "q.parquet")
    assert survey(tmp_path).pairs == ("p.parquet",)


@pytest.mark.parametrize("broken", ["{", "[]", "null", '{"measure": 3, "gates": {"a": 1}, "pairs": [], "floor": "x"}'])
def test_a_broken_result_is_told_or_left_out_and_never_fatal(tmp_path: Path, broken: str) -> None:
    state = read_state(write_case(tmp_path / "c", measure=broken, verdict=broken, operators=broken))
    assert not state.numbers
    assert state.verdict is None
    assert len(state.problems) == (0 if broken.startswith('{"') else 3)


def test_the_run_file_of_a_live_case_is_found_by_what_it_says(tmp_path: Path) -> None:
    from logdiff.live import load_run_file

    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**RUN, "dtype": "float32"}))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(RUN))
    case = write_case(tmp_path / "runs" / "x")
    run_ = load_run_file(tmp_path / "mine.yaml").with_align(ops="all").public()
    manifest = {"format": "logdiff-case/1", "kind": "run", "state": "complete", "inputs": {"run": run_}}
    (case / "manifest.json").write_text(json.dumps(manifest))
    found = look(tmp_path, case)
    assert (found.run_file, found.same_run) == ("mine.yaml", False)
    assert "run_file" not in calls_for(found)[0].arguments, "another alignment: the case can't be gone on with"
    manifest["inputs"] = {"run": load_run_file(tmp_path / "mine.yaml").public()}
    (case / "manifest.json").write_text(json.dumps(manifest))
    assert look(tmp_path, case).same_run
    assert calls_for(look(tmp_path, case))[0].arguments["run_file"] == "mine.yaml"
    (tmp_path / "mine.yaml").unlink()
    assert look(tmp_path, case).run_file is None


def test_the_command_shows_a_page_and_its_json_the_same_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "p.jsonl")
    assert run(["playbook"]) == 0
    assert '{"pairs": ["p.jsonl"]}' in capfd.readouterr().out
    assert run(["measure", "p.jsonl", "--case", "c"]) == 1
    capfd.readouterr()
    assert run(["playbook", "c", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert (data["format"], data["name"], data["situation"]) == ("logdiff-playbook/1", "triangle", "differs")
    assert data["next_steps"][0]["command"] == "logdiff diagnose c"
    assert "1 of 2 tokens differ" in data["page"]
    assert run(["playbook", "weights-first", "c", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["name"] == "weights-first"


def test_causes_are_listed_and_shown_and_what_is_not_there_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["playbook", "causes"]) == 0
    assert "norm-eps" in capfd.readouterr().out
    assert run(["playbook", "causes", "norm-eps"]) == 0
    assert "Fix" in capfd.readouterr().out
    for wrong in (["playbook", "nope"], ["playbook", "causes", "nope"], ["playbook", "triage", "nowhere"]):
        assert run([*wrong, "--json"]) == 2
        assert json.loads(capfd.readouterr().out)["error"]["type"] == "InputError"


def test_the_skills_references_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "skill_references.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
