"""`logdiff diagnose` on recorded tokens: exit codes, one JSON object, the case that it leaves, its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logdiff.cli.app import run

Rows = list[dict[str, Any]]


def rows(seed: int = 0, samples: int = 12, tokens: int = 40) -> Rows:
    rng = np.random.default_rng(seed)
    out = []
    for i in range(samples):
        x = (-rng.gamma(0.6, 1.5, tokens)).astype(np.float32).astype(float).tolist()
        ids = rng.integers(0, 99, tokens).tolist()
        out.append(
            {
                "sample_id": str(i),
                "prompt_token_ids": [i, 7, 9],
                "response_token_ids": ids,
                "rollout_logprobs": x,
                "train_logprobs": list(x),
            }
        )
    return out


def pair_file(path: Path, records: Rows) -> Path:
    lines = [{"format": "logdiff-pair/1", "meta": {}}, *records]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return path


def diagnosed(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["diagnose", *arguments, "--json"])
    return code, json.loads(capfd.readouterr().out)


def test_equal_columns_exit_with_0(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = pair_file(tmp_path / "a.jsonl", rows())
    code, data = diagnosed(capfd, str(file), "--case", str(tmp_path / "case"))
    assert (code, data["format"], data["verdict"]["class"]) == (0, "logdiff-verdict/1", "none")
    assert data["measure"]["tokens"] == 12 * 40


def test_a_fault_exits_with_1_and_the_case_can_be_diagnosed_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = rows()
    for record in records:
        record["train_logprobs"] = [*record["train_logprobs"][1:], -1.0]
    folder = tmp_path / "case"
    code, data = diagnosed(capfd, str(pair_file(tmp_path / "a.jsonl", records)), "--case", str(folder))
    assert (code, data["verdict"]["class"], data["verdict"]["cause"]) == (1, "data", "shifted-by-one")
    assert json.loads((folder / "results/verdict.json").read_text()) == data
    again, second = diagnosed(capfd, str(folder))
    assert again == 1
    assert second["verdict"] == data["verdict"]
    assert run(["measure", str(folder), "--json"]) == 1  # the case is sealed and whole
    capfd.readouterr()


@pytest.mark.parametrize("spoil", ["mask", "nan", "absent", "nothing"])
def test_broken_evidence_is_a_verdict_and_exits_with_2(
    spoil: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = rows()
    for record in records:
        if spoil == "mask":
            record["response_mask"] = [0] * 40
        elif spoil == "nan":
            record["train_logprobs"] = [float("nan")] * 40
        elif spoil == "absent":
            record["train_logprobs"] = [None] * 40
    file = pair_file(tmp_path / "a.jsonl", [] if spoil == "nothing" else records)
    code, data = diagnosed(capfd, str(file), "--case", str(tmp_path / "case"))
    assert (code, data["format"]) == (2, "logdiff-verdict/1")
    assert (data["verdict"]["class"], data["verdict"]["path"]) == ("invalid-evidence", "invalid")
    assert data["next_experiments"]


def test_unreadable_input_is_an_error_and_no_verdict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("no json\n")
    code, data = diagnosed(capfd, str(file), "--case", str(tmp_path / "case"))
    assert (code, data["format"]) == (2, "logdiff-error/1")
    code, data = diagnosed(capfd, str(tmp_path), str(file))
    assert (code, data["format"]) == (2, "logdiff-error/1")
    assert "alone" in data["error"]["message"]


def test_the_table_says_what_to_do_next(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records, rng = rows(samples=16), np.random.default_rng(1)
    for record in records:
        x = np.array(record["rollout_logprobs"])
        record["train_logprobs"] = np.minimum(x + 0.01 * rng.normal(0, 1, 40) * np.abs(x), 0).tolist()
    assert run(["diagnose", str(pair_file(tmp_path / "a.jsonl", records)), "--case", str(tmp_path / "case")]) == 1
    shown = capfd.readouterr().out
    assert shown.startswith("undetermined")
    assert "next:" in shown
    assert "logdiff run RUN.yaml --floor quick" in shown
