"""Whole runs on the fake runner of tests/server/target: what is captured, resumed, refused and measured."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from logdiff.case import Case
from logdiff.case.sequences import read_sequences
from logdiff.errors import CancelledError, CaseError, EngineError, InputError
from logdiff.live import RunFile, run
from logdiff.live.floor import BUDGET
from logdiff.target import Timeouts

from tests.server.target.fakes import fake_run, gone, kill_quietly

FAST = Timeouts(hello=30, start=30, task=30, stop=1.0)


def make(here, *args, **kwargs):
    return RunFile.from_dict(fake_run(here, *args, **kwargs))


def counts(here):
    return {p.name: p.stat().st_size for p in (here / "count").iterdir()}


def measured(case):
    return case.read_result("measure")


TOKENS = 1 + 2 + 3 + 4 + 1  # the fake answers prompt i with 1 + i % 4 tokens


def test_both_sides_are_captured_measured_and_sealed(here):
    seen = []
    case = run(make(here), here / "case", on_progress=seen.append, timeouts=FAST)
    assert case.is_complete
    Case.open(here / "case", verify=True).close()
    result = measured(case)
    assert result["format"] == "logdiff-measure/1"
    # the fake's train side is 1/4 lower at every token, its rescore equal to its decode
    assert result["measure"]["tokens"] == TOKENS
    assert (result["measure"]["mean"], result["measure"]["max_abs"]) == (-0.25, 0.25)
    assert result["pairs"]["decode_rescore"]["mismatched_tokens"] == 0
    assert result["pairs"]["rescore_train"]["mismatched_tokens"] == TOKENS
    assert {g["gate"]: g["ok"] for g in result["gates"]}["weights"] is True
    assert any(p.task == "step0/rollout/generate" and p.done for p in seen)
    batch = next(iter(case.batches()))
    assert batch.sample_id == ["p0000", "p0001", "p0002", "p0003", "p0004"]
    assert batch.token_ids.tolist() == [i * 5 % 23 for i in range(TOKENS)]
    assert set(batch.prompt_ids.tolist()) <= set(range(23)) - {2}
    assert case.meta.get("vocab_size") == 23
    for name in ("sides/rollout/fingerprint.json", "sides/train/weights-step0.json", "sides/rollout/token_text.json"):
        assert (case.path / name).is_file()


def test_engines_run_one_after_the_other(here):
    run(make(here), here / "case", timeouts=FAST)
    events = [(r["event"], r.get("task") or r.get("engine")) for r in Case.open(here / "case").journal.read()]
    started = events.index(("engine_starting", "train"))
    assert events.index(("output", "step0/rollout/rescore")) < started
    assert counts(here)["start-vllm"] == counts(here)["start-transformers"] == 1


def test_a_sealed_case_of_the_same_run_is_returned_without_any_work(here):
    run(make(here), here / "case", timeouts=FAST)
    before = counts(here)
    assert measured(run(make(here), here / "case", timeouts=FAST))["measure"]["tokens"] == TOKENS
    assert counts(here) == before


@pytest.mark.parametrize("change", ["seed", "model"])
def test_a_case_of_another_run_is_refused(here, change):
    run(make(here), here / "case", timeouts=FAST)
    other = make(here, sampling={"max_tokens": 4, "seed": 9}) if change == "seed" else make(here)
    if change == "model":
        (here / "model" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(CaseError, match="another run file, model"):
        run(other, here / "case", timeouts=FAST)
    with pytest.raises(CaseError, match="holds a case"):
        run(make(here), here / "case", timeouts=FAST, resume=False)


def test_a_corrected_run_file_may_use_the_folder_of_a_run_that_captured_nothing(here):
    with pytest.raises(InputError, match="enforce_eagre"):
        run(make(here, rollout={"start": "refuse"}), here / "case", timeouts=FAST)
    case = run(make(here), here / "case", timeouts=FAST)
    assert case.is_complete
    assert case.manifest.inputs["run"]["rollout"]["args"] == {}


def test_a_failure_says_where_the_captured_evidence_is(here):
    with pytest.raises(EngineError) as error:
        run(make(here, train={"exit_at": "score"}), here / "case", timeouts=FAST)
    assert str(here / "case") in error.value.hint
    with pytest.raises(CaseError, match="another run file"):
        run(make(here), here / "case", timeouts=FAST)


def test_a_folder_with_something_else_is_refused(here):
    (here / "case").mkdir()
    (here / "case" / "notes.txt").write_text("mine")
    with pytest.raises(CaseError, match=r"notes\.txt"):
        run(make(here), here / "case", timeouts=FAST)


def test_a_failed_train_side_leaves_a_case_that_goes_on_without_the_rollout(here, monkeypatch):
    monkeypatch.setenv("FAKE_START", "")
    spec = make(here, train={"exit_at": "score"})
    with pytest.raises(EngineError, match="exited with code 7"):
        run(spec, here / "case", timeouts=FAST)
    with Case.open(here / "case") as case:
        assert not case.is_complete
        assert any("measure" in sentence for sentence in case.missing())
    first = counts(here)
    with pytest.raises(EngineError):
        run(spec, here / "case", timeouts=FAST)
    again = counts(here)
    assert (again["generate"], again["rescore"], again["start-vllm"]) == (1, 1, 1)
    assert again["start-transformers"] == first["start-transformers"] + 1


def test_a_changed_capture_is_captured_again_with_what_stands_on_it(here, monkeypatch):
    spec = make(here, train={"exit_at": "weights"})
    with pytest.raises(EngineError):
        run(spec, here / "case", timeouts=FAST)
    assert counts(here)["score"] == 1
    path = here / "case/captures/step0/generate.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    monkeypatch.setenv("FAKE_OFFSET", "0.5")  # another run of an engine gives other numbers
    with pytest.raises(EngineError):
        run(spec, here / "case", timeouts=FAST)
    assert (counts(here)["generate"], counts(here)["rescore"], counts(here)["score"]) == (2, 2, 2)


SCRIPT = """
import json, sys
from logdiff.live import RunFile, run
from logdiff.target import Timeouts
def told(p):
    print(p.task, flush=True)
case = run(RunFile.from_dict(json.loads(sys.argv[1])), sys.argv[2], floor="quick", on_progress=told,
           timeouts=Timeouts(30, 30, 30, 1.0))
"""


def start_process(here, spec):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(spec), str(here / "case")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "point",
    [
        "step0/rollout/generate",
        "step0/rollout/rescore",
        "floor/rescore/batch=2",
        "train",
        "step0/train/score",
        "floor/train/layout=single",
        "measure",
    ],
)
def test_a_kill_at_any_moment_leaves_a_case_that_resumes_to_the_same_numbers(here, point):
    spec = fake_run(here)
    process = start_process(here, spec)
    try:
        for line in process.stdout:
            if line.strip() == point:
                break
        else:
            pytest.fail(f"never came to {point}: {process.stderr.read()}")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert all(gone(child.pid) for child in children)
    finally:
        kill_quietly(process.pid)
        process.stdout.close()
        process.stderr.close()
        process.wait()
    before = counts(here)
    case = run(RunFile.from_dict(spec), here / "case", floor="quick", timeouts=FAST)
    result = measured(case)
    assert case.is_complete
    assert (result["measure"]["tokens"], result["measure"]["mean"]) == (TOKENS, -0.25)
    assert result["floor"]["max_abs"] == 0
    after = counts(here)
    if point != "step0/rollout/generate":
        assert after["generate"] == before["generate"] == 1
    if point == "measure":
        assert after == before


def test_a_case_in_use_is_refused(here):
    process = start_process(here, fake_run(here, rollout={"slow_at": "rescore", "slow": 20}))
    try:
        for line in process.stdout:
            if line.strip() == "step0/rollout/generate":
                break
        with pytest.raises(CaseError, match="another process"):
            run(make(here, rollout={"slow_at": "rescore", "slow": 20}), here / "case", timeouts=FAST)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        process.stdout.close()
        process.stderr.close()


def test_cancelling_stops_soon_ends_the_engine_and_stays_resumable(here):
    cancel = threading.Event()
    pids = []

    def told(progress):
        if progress.task == "step0/rollout/generate":
            pids.extend(c.pid for c in psutil.Process().children(recursive=True))
            cancel.set()

    spec = make(here, rollout={"slow_at": "rescore", "slow": 5})
    begin = time.monotonic()
    with pytest.raises(CancelledError):
        run(spec, here / "case", on_progress=told, cancel_token=cancel, timeouts=FAST)
    assert time.monotonic() - begin < 10
    assert pids
    assert all(gone(pid) for pid in pids)
    assert not Case.open(here / "case").is_complete


def test_what_the_engine_can_not_do_is_null_with_its_reason(here):
    case = run(
        make(here, rollout={"unsupported": ["rescore", "force", "weights"]}),
        here / "case",
        floor="quick",
        timeouts=FAST,
    )
    result = measured(case)
    assert result["pairs"]["decode_rescore"] is None
    assert result["pairs"]["rescore_train"] is None
    assert "rescore can't be had here" in result["unavailable"]["decode_rescore"]
    assert {g["gate"]: g["ok"] for g in result["gates"]}["weights"] is None
    skipped = {(s["side"], s["axis"]) for s in result["floor"]["skipped"]}
    assert skipped == {("rollout", "rerun"), ("rescore", "rerun")}
    assert set(result["floor"]["by_side"]) == {"train"}


def test_the_quick_floor_has_every_axis_of_each_side(here):
    case = run(make(here), here / "case", floor="quick", timeouts=FAST)
    axes = {(a["side"], a["axis"], a["value"]) for a in measured(case)["floor"]["axes"]}
    shapes = {
        ("rerun", "same"),
        ("batch", 1),
        ("batch", 2),
        ("batch", 4),
        ("order", "reversed"),
        ("order", "shuffled:1"),
    }
    scoring = {
        ("rerun", "same"),
        ("micro_batch_size", 1),
        ("order", "reversed"),
        ("padding_side", "left"),
        ("layout", "single"),
    }
    assert axes == {(s, *a) for s in ("rollout", "rescore") for a in shapes} | {("train", *a) for a in scoring}


def test_a_difference_between_shapes_is_the_floor(here):
    case = run(make(here, rollout={"batch_offset": 0.125}), here / "case", floor="quick", timeouts=FAST)
    floor = measured(case)["floor"]
    assert floor["max_abs"] == 0.125
    assert floor["by_side"]["rollout"]["mismatched_tokens"] == TOKENS
    assert floor["by_side"]["train"]["max_abs"] == 0
    by_axis = {(a["side"], a["axis"], a["value"]): a["max_abs"] for a in floor["axes"]}
    assert by_axis["rollout", "batch", 1] == 0.125
    assert by_axis["rollout", "batch", 2] == 0


def test_the_floor_can_be_added_to_a_sealed_case_without_capturing_the_run_again(here):
    assert measured(run(make(here), here / "case", timeouts=FAST))["floor"] == {}
    case = run(make(here), here / "case", floor="quick", timeouts=FAST)
    assert case.is_complete
    assert measured(case)["floor"]["level"] == "quick"
    assert counts(here)["generate"] == 1
    assert measured(run(make(here), here / "case", timeouts=FAST))["floor"]["level"] == "quick"


def test_the_floor_takes_whole_samples_up_to_its_budget(here):
    prompts = {"random": {"count": 3, "lengths": [2]}}
    spec = make(here, prompts=prompts, sampling={"max_tokens": 5000})
    # the fake's lengths would be 1, 2, 3: make them long through the file of prompts
    case = run(spec, here / "case", timeouts=FAST)
    assert BUDGET == 4096
    from logdiff.live import floor

    whole = read_sequences(case.path / "captures/step0/generate.safetensors")
    assert whole.tokens == 6
    original, floor.BUDGET = floor.BUDGET, 3
    try:
        case = run(spec, here / "case", floor="quick", timeouts=FAST)
    finally:
        floor.BUDGET = original
    on = measured(case)["floor"]["measured_on"]
    assert (on["samples"], on["of_samples"], on["tokens"], on["of_tokens"]) == (2, 3, 3, 6)
    assert all(a["tokens"] == 3 for a in measured(case)["floor"]["axes"])


def test_the_full_floor_restarts_the_engines_and_keeps_refusals_with_their_words(here, monkeypatch):
    case = run(make(here), here / "case", floor="full", timeouts=FAST)
    floor = measured(case)["floor"]
    names = {(a["axis"], str(a["value"])) for a in floor["axes"] if a["side"] == "rollout"}
    assert {
        ("restart", "same"),
        ("enable_chunked_prefill", "True"),
        ("block_size", "32"),
        ("enforce_eager", "True"),
    } <= names
    assert floor["level"] == "full"
    starts = counts(here)["start-vllm"]
    # restart, chunked prefill on (small) and off, prefix caching off, block size, eager: the fake runs with
    # prefix caching on and blocks of 16
    assert starts == 1 + 6
    assert case.meta.get("block_size") == 16
    assert case.meta.get("chunk_size") == 512


def test_an_axis_that_the_engine_refuses_is_skipped_with_its_words(here):
    case = run(make(here, rollout={"refuse_block_size": 32}), here / "case", floor="full", timeouts=FAST)
    floor = measured(case)["floor"]
    skipped = {(s["side"], s["axis"]): s["reason"] for s in floor["skipped"]}
    assert set(skipped) == {("rollout", "block_size"), ("rescore", "block_size")}
    assert "block_size 32 is no good" in skipped["rescore", "block_size"]
    assert case.is_complete


def test_several_steps_update_sync_and_checksum_each_time(here):
    case = run(make(here, steps=3), here / "case", timeouts=FAST)
    result = measured(case)
    gates = {g["gate"]: g["ok"] for g in result["gates"]}
    assert (gates["weights"], gates["update"]) == (True, True)
    assert result["measure"]["tokens"] == 3 * TOKENS
    assert counts(here)["start-vllm"] == counts(here)["start-transformers"] == 1
    assert (counts(here)["update"], counts(here)["reload"]) == (2, 2)
    assert sorted({int(s) for b in case.batches() for s in b.step}) == [0, 1, 2]
    assert not (case.path / ".work").exists()


def test_a_floor_added_to_a_sealed_run_of_several_steps_updates_nothing_again(here):
    run(make(here, steps=2), here / "case", timeouts=FAST)
    before = counts(here)
    case = run(make(here, steps=2), here / "case", floor="quick", timeouts=FAST)
    assert measured(case)["floor"]["max_abs"] == 0
    after = counts(here)
    assert (after["update"], after["generate"]) == (before["update"], before["generate"]) == (1, 2)


def test_secrets_in_engine_arguments_are_not_written_down(here):
    run(make(here, rollout={"hf_token": "s3cret", "nested": {"password": "s3cret"}}), here / "case", timeouts=FAST)
    texts = [p.read_bytes() for p in (here / "case").rglob("*") if p.is_file()]
    assert not any(b"s3cret" in text for text in texts)
    assert any(b'"hf_token": "***"' in text for text in texts)


def test_a_rollout_without_reload_is_restarted_on_the_checkpoint_and_that_is_recorded(here):
    case = run(make(here, rollout={"unsupported": ["reload"]}, steps=2), here / "case", timeouts=FAST)
    synced = [r for r in case.journal.read() if r["event"] == "weights_synced"]
    assert [r["step"] for r in synced] == [1]
    assert "restart on the checkpoint: " in synced[0]["how"]
    assert counts(here)["start-vllm"] == 2


def test_steps_resume_from_the_last_checkpoint(here):
    broken = fake_run(here, steps=3)
    process = start_process(here, broken)
    try:
        for line in process.stdout:
            if line.strip() == "step2/rollout/generate":
                break
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    finally:
        kill_quietly(process.pid)
        process.stdout.close()
        process.stderr.close()
        process.wait()
    assert counts(here)["update"] == 2
    case = run(RunFile.from_dict(broken), here / "case", floor="quick", timeouts=FAST)
    assert case.is_complete
    assert counts(here)["update"] == 2
    assert counts(here)["generate"] in (3, 4)


def test_text_prompts_are_tokenised_by_the_rollout_engine(here):
    (here / "t.txt").write_text("ab\nc\n")
    case = run(make(here, prompts={"text": str(here / "t.txt")}), here / "case", timeouts=FAST)
    prompts = read_sequences(case.path / "captures/prompts.safetensors")
    assert [prompts.prompt(i).tolist() for i in range(2)] == [[10, 11], [12]]
    assert prompts.sample_ids == ["p0000", "p0001"]


def test_the_floor_of_a_rollout_that_scores_varies_its_layout(here):
    spec = fake_run(here)
    spec["rollout"]["engine"] = "transformers"
    floor = measured(run(RunFile.from_dict(spec), here / "case", floor="quick", timeouts=FAST))["floor"]
    axes = {a["axis"] for a in floor["axes"] if a["side"] == "rollout"}
    assert axes == {"rerun", "micro_batch_size", "order", "padding_side", "layout"}


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_greedy_sampling_scores_at_temperature_one(here, temperature):
    case = run(make(here, sampling={"max_tokens": 2, "temperature": temperature}), here / "case", timeouts=FAST)
    header = json.loads((case.path / "logs").glob("*train*.request.json").__next__().read_text())
    assert header["sampling"]["temperature"] == temperature
    from logdiff.live.capture import scoring

    assert scoring({"temperature": temperature})["temperature"] == (temperature or 1.0)


def test_a_model_without_a_tokenizer_is_measured_without_token_texts(here):
    case = run(make(here, train={"bad_input": ["decode_text"]}), here / "case", timeouts=FAST)
    assert not (case.path / "sides/rollout/token_text.json").exists()
    assert [r["task"] for r in case.journal.read() if r["event"] == "unsupported"] == ["step0/rollout/text"]
    with pytest.raises(InputError, match="bad input for score"):
        run(make(here, train={"bad_input": ["score"]}), here / "other", timeouts=FAST)


def test_a_bad_model_is_refused_before_anything_is_started(here):
    (here / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        run(make(here), here / "case", timeouts=FAST)
    assert not (here / "case").exists()
    assert counts(here) == {}


def test_an_unknown_engine_argument_is_passed_on_in_the_engines_words(here):
    with pytest.raises(InputError, match="enforce_eagre") as error:
        run(make(here, rollout={"start": "refuse"}), here / "case", timeouts=FAST)
    assert error.value.exit_code == 2


def test_logprobs_keep_their_bits_on_the_way_to_the_table(here):
    case = run(make(here), here / "case", timeouts=FAST)
    captured = read_sequences(case.path / "captures/step0/score.safetensors").columns["logprobs"]
    table = np.concatenate([b.logprob["train"] for b in case.batches()])
    assert table.tobytes() == captured.tobytes()


def test_no_process_is_left(here):
    before = {c.pid for c in psutil.Process(os.getpid()).children(recursive=True)}
    run(make(here), here / "case", floor="quick", timeouts=FAST)
    assert {c.pid for c in psutil.Process(os.getpid()).children(recursive=True)} <= before
