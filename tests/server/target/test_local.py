import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from logdiff.errors import CancelledError, EngineError, InputError
from logdiff.target import EngineSpec, Timeouts, UnsupportedError
from logdiff.target.local import LocalRunner
from logdiff.target.streams import BoundedLog

from tests.server.target.fakes import fake_python, gone, kill_quietly

FAST = Timeouts(hello=30, start=30, task=30, stop=1.0)


@pytest.fixture
def start(tmp_path):
    started = []

    def make(timeouts=FAST, cancel=None, env=None, on_progress=None, **args):
        spec = EngineSpec(
            engine="vllm",
            side="rollout",
            model="/m",
            dtype="float32",
            args=args,
            env=env or {},
            python=fake_python(tmp_path),
        )
        runner = LocalRunner.start(
            spec, log=tmp_path / "logs" / "rollout.log", timeouts=timeouts, cancel=cancel, on_progress=on_progress
        )
        started.append(runner)
        return runner

    yield make
    for runner in started:
        runner.close()


def test_a_task_is_answered_with_its_data_and_progress(start):
    seen = []
    engine = start()
    result = engine.run({"task": "hello", "id": "a"}, seen.append)
    assert result.data["task"] == {"task": "hello", "id": "a"}
    assert [(p.task, p.done, p.total, p.unit) for p in seen] == [("a", 1, 2, "samples")]


def test_the_side_environment_reaches_the_child_on_top_of_ours(start, monkeypatch):
    monkeypatch.setenv("FROM_PARENT", "1")
    env = start(env={"FROM_SIDE": "2"}).run({"task": "hello"}).data["env"]
    assert (env["FROM_PARENT"], env["FROM_SIDE"]) == ("1", "2")


def test_the_child_leads_its_own_process_group(start):
    engine = start()
    assert os.getpgid(engine.pid) == engine.pid != os.getpgid(0)


def test_close_ends_the_child_and_may_be_called_twice(start):
    engine = start()
    engine.close()
    engine.close()
    assert not psutil.pid_exists(engine.pid)
    with pytest.raises(EngineError, match="has ended"):
        engine.run({"task": "hello"})


def test_unsupported_tasks_raise_their_type_and_the_engine_lives_on(start):
    engine = start(unsupported=["force"])
    with pytest.raises(UnsupportedError, match="force can't be had here") as error:
        engine.run({"task": "force"})
    assert error.value.hint == "use another engine"
    assert engine.run({"task": "hello"}).data["pid"] == engine.pid


def test_an_engine_argument_that_is_refused_is_an_input_error_in_the_engines_words(start):
    with pytest.raises(InputError, match="unexpected keyword argument 'enforce_eagre'"):
        start(start="refuse")


def test_a_death_at_start_quotes_the_exit_code_and_the_last_words(start):
    with pytest.raises(EngineError, match=r"exited with code 5(?s:.*)ImportError: no module named nothing"):
        start(start="die")


def test_a_death_in_a_task_quotes_the_exit_code(start):
    engine = start(exit_at="generate")
    with pytest.raises(EngineError, match="exited with code 7"):
        engine.run({"task": "generate"})


def test_a_killed_engine_names_the_signal_and_hints_at_memory(start):
    engine = start(kill_at="generate")
    with pytest.raises(EngineError, match="SIGKILL") as error:
        engine.run({"task": "generate"})
    assert "memory" in error.value.hint


def test_an_out_of_memory_message_in_the_log_becomes_the_hint(start):
    engine = start(oom_at="generate")
    with pytest.raises(EngineError) as error:
        engine.run({"task": "generate"})
    assert "ran out of memory" in error.value.hint


def test_a_banner_on_standard_output_is_logged_and_ignored(start, tmp_path):
    engine = start(start="banner")
    assert engine.run({"task": "hello"}).data
    engine.close()
    assert "[standard output] welcome to this machine" in (tmp_path / "logs/rollout.log").read_text()


def test_endless_garbage_on_standard_output_is_an_error(start):
    with pytest.raises(EngineError, match="no events"):
        start(start="garbage")


def test_a_huge_line_is_an_error_and_not_kept_in_memory(start):
    before = psutil.Process().memory_info().rss
    with pytest.raises(EngineError, match="a line of more than"):
        start(start="huge")
    assert psutil.Process().memory_info().rss - before < 48 << 20


def test_another_protocol_is_refused(start):
    with pytest.raises(EngineError, match="another protocol") as error:
        start(start="old")
    assert error.value.value == "logdiff-request/9"


def test_a_silent_engine_runs_into_the_time_limit(start):
    with pytest.raises(CancelledError, match=r"within 0\.5 seconds"):
        start(Timeouts(hello=0.5, start=1, task=1, stop=0.5), start="silent")


def test_a_stuck_task_runs_into_its_time_limit_and_the_child_is_ended(start):
    engine = start(Timeouts(hello=30, start=30, task=0.5, stop=0.5), hang_at="generate")
    with pytest.raises(CancelledError):
        engine.run({"task": "generate"})
    assert gone(engine.pid)


def test_a_child_that_a_cancel_ended_is_no_engine_failure(start, monkeypatch):
    """The cancel comes after the loop looked for one, and the child is gone before it looks for that."""
    engine = start(hang_at="generate")
    waited = engine._events.get

    def cancelled_meanwhile(seconds):
        engine.cancel()
        engine._child.wait(10)
        return waited(seconds)

    monkeypatch.setattr(engine._events, "get", cancelled_meanwhile)
    with pytest.raises(CancelledError):
        engine.run({"task": "generate"})


def test_cancel_from_another_thread_ends_the_task_and_the_child(start):
    engine = start(hang_at="generate")
    threading.Timer(0.3, engine.cancel).start()
    begin = time.monotonic()
    with pytest.raises(CancelledError):
        engine.run({"task": "generate"})
    assert time.monotonic() - begin < 5
    assert gone(engine.pid)


def test_a_cancel_event_ends_a_start(start):
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(CancelledError):
        start(cancel=cancel, start="silent")


@pytest.mark.parametrize("session", ["group", "session"])
def test_grandchildren_are_ended_even_outside_the_group_when_sigterm_is_ignored(start, tmp_path, session):
    pid_file = tmp_path / "pid"
    env = {"FAKE_CHILD": session, "FAKE_CHILD_PID": str(pid_file), "FAKE_IGNORE_TERM": "1", "FAKE_IGNORE_EOF": "1"}
    engine = start(Timeouts(hello=30, start=30, task=0.5, stop=0.3), env=env, hang_at="generate")
    grandchild = int(pid_file.read_text())
    assert psutil.pid_exists(grandchild)
    with pytest.raises(CancelledError):
        engine.run({"task": "generate"})
    assert gone(engine.pid)
    assert gone(grandchild)


def test_the_log_keeps_head_and_tail_of_a_flood(start, tmp_path):
    engine = start(start="noise")
    engine.close()
    log = (tmp_path / "logs/rollout.log").read_bytes()
    assert len(log) < (5 << 20) + 200
    assert log.startswith(b"line 0 ")
    assert b"line 199999 " in log[-100:]
    assert b"bytes left out" in log


def test_a_bounded_log_keeps_exactly_head_and_tail(tmp_path):
    log = BoundedLog(tmp_path / "x.log", head=10, tail=4)
    log.write(b"0123456789ab")
    log.write(b"cdefgh\nlast")
    log.close()
    assert (tmp_path / "x.log").read_bytes() == b"0123456789\n[... 9 bytes left out ...]\nlast"


def test_a_missing_interpreter_is_an_input_error(tmp_path):
    spec = EngineSpec(engine="vllm", side="rollout", model="/m", dtype="float32", python=str(tmp_path / "none"))
    with pytest.raises(InputError, match="can't be run"):
        LocalRunner.start(spec, log=tmp_path / "x.log")


def test_a_program_that_is_no_python_is_an_input_error(tmp_path):
    spec = EngineSpec(engine="vllm", side="rollout", model="/m", dtype="float32", python="true")
    with pytest.raises(InputError, match="does not run"):
        LocalRunner.start(spec, log=tmp_path / "x.log")


PARENT = """
import sys, time, signal
from pathlib import Path
from logdiff.target import EngineSpec, Timeouts, end_children_on_signals
from logdiff.target.local import LocalRunner
if sys.argv[3] == "handlers":
    end_children_on_signals()
engine = LocalRunner.start(
    EngineSpec(engine="vllm", side="rollout", model="/m", dtype="float32", python=sys.argv[1], args={"hang_at": "x"}),
    log=Path(sys.argv[2]) / "x.log", timeouts=Timeouts(stop=1.0),
)
print(engine.pid, flush=True)
if sys.argv[4] == "exit":
    sys.exit(0)
if sys.argv[4] == "raise":
    raise RuntimeError("no")
engine.run({"task": "x"})
"""


@pytest.mark.parametrize(
    ("handlers", "then", "sent"),
    [
        ("none", "exit", None),
        ("none", "raise", None),
        ("none", "run", signal.SIGINT),
        ("handlers", "run", signal.SIGTERM),
        ("none", "run", signal.SIGTERM),
        ("none", "run", signal.SIGKILL),
    ],
)
def test_no_child_outlives_its_parent(tmp_path, handlers, then, sent):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, fake_python(tmp_path), str(tmp_path), handlers, then],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    child = int(parent.stdout.readline())
    try:
        if sent is not None:
            time.sleep(0.2)
            parent.send_signal(sent)
        parent.wait(15)
        assert gone(child)
    finally:
        kill_quietly(parent.pid)
        kill_quietly(child)
        parent.stdout.close()
        parent.wait()


def test_the_real_runner_answers_without_an_engine(tmp_path: Path):
    runner = LocalRunner.start(None, log=tmp_path / "tools.log", timeouts=FAST)
    try:
        assert "models" in runner.run({"task": "list_models"}).data
        with pytest.raises(UnsupportedError):
            runner.run({"task": "generate"})
    finally:
        runner.close()
