"""Aligned runs on the fake runner: which side is told, what it must report back, and tokens of an earlier case.

The fake's train side is 1/4 lower at every token, unless the overlay that its environment names is for its side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import logdiff_kernels.align
import pytest
from logdiff.case import Case
from logdiff.case.sequences import read_sequences
from logdiff.errors import CaseError, EvidenceError, InputError
from logdiff.live import RunFile, run
from logdiff.live.alignment import NUMERIC, engine_spec
from logdiff.live.tokens import earlier_tokens
from logdiff.target import Timeouts, alignment

from tests.server.target.fakes import fake_run

FAST = Timeouts(hello=30, start=30, task=30, stop=1.0)


def make(
    here: Path, align: dict[str, Any], rollout: dict[str, Any] | None = None, train: dict[str, Any] | None = None,
    **changes: Any,
) -> RunFile:  # fmt: skip
    return RunFile.from_dict(fake_run(here, rollout, train, align=align, **changes))


def mismatched(case: Case) -> int:
    return int(case.read_result("measure")["measure"]["mismatched_tokens"])


def gate(case: Case) -> tuple[Any, str] | None:
    found = [g for g in case.read_result("measure")["gates"] if g["gate"] == "aligned"]
    return (found[0]["ok"], found[0]["detail"]) if found else None


@pytest.mark.parametrize("name", ["OPERATORS", "CONTRACT", "PROVIDER", "FORMAT", "VARIABLE", "SIDES"])
def test_both_packages_name_the_same_operators_contract_and_variable(name: str) -> None:
    assert getattr(alignment, name) == getattr(logdiff_kernels.align, name)


@pytest.mark.parametrize("name", NUMERIC)
def test_the_sources_that_decide_a_resume_are_there(name: str) -> None:
    place = Path(logdiff_kernels.align.__file__).parent / name
    assert place.is_file() or any(place.rglob("*.py"))


def test_what_the_server_writes_is_what_the_engine_process_reads(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = run(make(here, {"ops": ["rope", "linear"], "sides": ["train"]}), here / "c", timeouts=FAST)
    monkeypatch.setenv("LOGDIFF_ALIGN", str(case.path / "align.json"))
    spec = logdiff_kernels.align.from_environment("train")
    assert spec is not None
    assert (spec.ops, spec.id) == (frozenset({"linear", "rope"}), case.manifest.id)
    assert logdiff_kernels.align.from_environment("rollout") is None


def test_a_native_run_differs_and_the_same_run_aligned_does_not(here: Path) -> None:
    assert mismatched(run(make(here, {}), here / "stock", timeouts=FAST)) == 11
    aligned = run(make(here, {"ops": "all"}), here / "aligned", timeouts=FAST)
    assert mismatched(aligned) == 0
    ok, detail = gate(aligned) or (None, "")
    assert ok is True
    assert f"{len(alignment.OPERATORS)} operators to aligned/1 by aligned-cpu" in detail


def test_only_the_named_side_is_told(here: Path) -> None:
    case = run(make(here, {"ops": "all", "sides": ["rollout"]}), here / "c", timeouts=FAST)
    assert mismatched(case) == 11
    ok, detail = gate(case) or (True, "")
    assert ok is None
    assert "on rollout alone; train is native" in detail


def test_a_shell_that_is_switched_on_does_not_align_a_run_file_that_is_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = here / "o.json"
    overlay.write_text(json.dumps(alignment.overlay_document(["linear"], ["train", "rollout"])))
    monkeypatch.setenv("LOGDIFF_ALIGN", str(overlay))
    said: list[str] = []
    case = run(make(here, {}), here / "c", timeouts=FAST, on_progress=lambda p: said.append(p.message))
    assert (mismatched(case), gate(case)) == (11, None)
    assert any("LOGDIFF_ALIGN of this shell is left out" in message for message in said)


def test_a_running_server_is_given_no_environment(here: Path) -> None:
    server = {"engine": "vllm-http", "args": {"url": "http://127.0.0.1:1", "model": "m"}}
    found = make(here, {"ops": "all", "sides": ["train"]}, rollout=None)
    run_file = RunFile.from_dict({**found.model_dump(), "rollout": server})
    assert engine_spec(run_file.spec("rollout"), run_file, here).env == {}
    assert engine_spec(run_file.spec("train"), run_file, here).env == {"LOGDIFF_ALIGN": str(here / "align.json")}


@pytest.mark.parametrize(
    ("rollout", "train", "words"),
    [
        ({}, {"deaf": True}, "train engine was to run aligned and does not say"),
        ({"deaf": True}, {}, "rollout engine was to run aligned and does not say"),
        ({"binary": "b1"}, {}, "binary hash b1 on rollout, b0 on train"),
    ],
)
def test_sides_that_do_not_run_one_definition_are_no_evidence(
    here: Path, rollout: dict[str, Any], train: dict[str, Any], words: str
) -> None:
    with pytest.raises(EvidenceError, match=words):
        run(make(here, {"ops": "all"}, rollout, train), here / "c", timeouts=FAST)
    assert not (here / "c" / "results" / "measure.json").exists()


def test_given_tokens_are_decoded_again_and_not_sampled(here: Path) -> None:
    stock = run(make(here, {}), here / "stock", timeouts=FAST)
    other = {"random": {"count": 2, "lengths": [1], "seed": 9}}  # not used: the tokens are given
    again = make(here, {"ops": "all", "tokens": str(stock.path)}, prompts=other)
    case = run(again, here / "again", timeouts=FAST)
    first, second = (read_sequences(c.path / "captures/step0/generate.safetensors") for c in (stock, case))
    assert first.sample_ids == second.sample_ids
    assert first.response_ids is not None
    assert second.response_ids is not None
    assert (first.prompt_ids.tolist(), first.response_ids.tolist()) == (
        second.prompt_ids.tolist(), second.response_ids.tolist(),
    )  # fmt: skip
    assert (here / "count" / "generate").stat().st_size == 1
    assert mismatched(case) == 0


def test_tokens_come_from_pair_files_too(here: Path) -> None:
    from logdiff import actions

    pairs = here / "p.jsonl"
    rows = [
        {"format": "logdiff-pair/1", "meta": {}},
        {"sample_id": "a", "prompt_token_ids": [4, 5], "response_token_ids": [7, 8], "rollout_logprobs": [-1.0, -1.0],
         "train_logprobs": [-1.0, -1.0]},
        {"sample_id": "b", "prompt_token_ids": [6], "response_token_ids": [9], "rollout_logprobs": [-1.0],
         "train_logprobs": [-1.0]},
    ]  # fmt: skip
    pairs.write_text("\n".join(json.dumps(row) for row in rows))
    measured = actions.measure(paths=[pairs], case=here / "pairs").data
    case = run(make(here, {"tokens": measured["case"]}), here / "c", timeouts=FAST)
    found = read_sequences(case.path / "captures/step0/generate.safetensors")
    assert found.sample_ids == ["a", "b"]
    assert found.prompt_ids.tolist() == [4, 5, 6]
    assert found.response_ids is not None
    assert found.response_ids.tolist() == [7, 8, 9]


def test_tokens_are_those_of_the_lowest_step(here: Path) -> None:
    from logdiff import actions

    pairs = here / "p.jsonl"
    samples = {"c": (3, [7]), "a": (1, [8, 9]), "d": (2, [5]), "b": (1, [6])}
    rows = [
        {"sample_id": name, "step": step, "prompt_token_ids": [4], "response_token_ids": ids,
         "rollout_logprobs": [-1.0] * len(ids), "train_logprobs": [-1.0] * len(ids)}
        for name, (step, ids) in samples.items()
    ]  # fmt: skip
    header = {"format": "logdiff-pair/1", "meta": {}}
    pairs.write_text("\n".join(json.dumps(row) for row in (header, *rows)))
    found = earlier_tokens(Path(actions.measure(paths=[pairs], case=here / "pairs").data["case"]))
    assert [found.response(i).tolist() for i in range(len(found.sample_ids))] == [[8, 9], [6]]


@pytest.mark.parametrize("change", ["ops", "sides", "tokens", "kernels"])
def test_a_case_of_another_alignment_is_not_resumed(here: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    stock = run(make(here, {}), here / "stock", timeouts=FAST)
    first: dict[str, Any] = {"ops": ["linear"]}
    run(make(here, first), here / "c", timeouts=FAST)
    before = (here / "count" / "start-vllm").stat().st_size
    run(make(here, first), here / "c", timeouts=FAST)
    assert (here / "count" / "start-vllm").stat().st_size == before, "the same run is returned without work"
    other = {
        "ops": {"ops": ["rope"]},
        "sides": {"ops": ["linear"], "sides": ["train"]},
        "tokens": {"ops": ["linear"], "tokens": str(stock.path)},
        "kernels": first,
    }[change]
    if change == "kernels":
        (here / "k").mkdir()
        (here / "k" / "align.py").write_text("another build")
        monkeypatch.setattr("logdiff.live.alignment.package_folder", lambda: here / "k")
    with pytest.raises(CaseError, match="another run file, model"):
        run(make(here, other), here / "c", timeouts=FAST)


def test_given_tokens_and_several_steps_do_not_go_together(here: Path) -> None:
    stock = run(make(here, {}), here / "stock", timeouts=FAST)
    with pytest.raises(InputError, match="given tokens are for one step"):
        make(here, {"tokens": str(stock.path)}, steps=2)


def test_the_command_line_takes_alignment_and_tokens_over_the_run_file(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import yaml
    from logdiff.cli.app import run as command

    file = here / "run.yaml"
    file.write_text(yaml.safe_dump(make(here, {}).model_dump(exclude={"align"}, exclude_none=True)))
    stock = here / "stock"
    assert command(["run", str(file), "--floor", "none", "--case", str(stock), "--json"]) == 1
    capfd.readouterr()
    aligned = ["--align", "all", "--tokens", str(stock), "--case", str(here / "aligned")]
    assert command(["run", str(file), "--floor", "none", "--json", *aligned]) == 0
    assert json.loads(capfd.readouterr().out)["measure"]["mismatched_tokens"] == 0
    wrong = ["run", str(file), "--align", "atention", "--json"]
    assert command(wrong) == 2
    assert "did you mean `attention`" in json.loads(capfd.readouterr().out)["error"]["message"]
