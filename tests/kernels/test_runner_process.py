"""The runner as a child process: events, tasks, errors, and that it never outlives its parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., "subprocess.Popen[str]"]


def request(**fields: Any) -> dict[str, Any]:
    return {"format": "logdiff-request/1", "engine": None, **fields}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a runner on a request (a dict or raw text) in its own process group; all are killed in the end."""
    children: list[subprocess.Popen[str]] = []

    def run(content: Any, **options: Any) -> subprocess.Popen[str]:
        path = tmp_path / f"request-{len(children)}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        child = subprocess.Popen(
            [sys.executable, "-m", "logdiff_kernels.runner", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        children.append(child)
        return child

    yield run
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=20)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def events(child: subprocess.Popen[str], timeout: float = 60) -> list[dict[str, Any]]:
    """All events until the runner ends; standard input is left open."""
    assert child.stdout is not None
    found = [json.loads(line) for line in child.stdout]
    child.wait(timeout=timeout)
    return found


def until(child: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        event = json.loads(line)
        if event["event"] == name:
            return dict(event)
    raise AssertionError(f"the runner ended before {name}")


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(process: int, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(process):
            return True
        time.sleep(0.05)
    return False


def module(tmp_path: Path, text: str, name: str = "user_module.py") -> str:
    path = tmp_path / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


BUSY = """
    import subprocess, sys, time
    import logdiff_kernels.actions as actions
    from logdiff_kernels.engines.base import TaskOutput

    def run(self, task, progress):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        progress(1, 2, "step", str(child.pid))
        time.sleep(600)
        return TaskOutput()

    actions.EngineFree.run = run
"""


def test_events_come_in_order_and_end_with_done(start: Start) -> None:
    child = start(request(tasks=[{"id": "m", "task": "list_models"}]))
    found = events(child)
    assert [event["event"] for event in found] == ["hello", "ready", "result", "done"]
    assert found[0]["pid"] == child.pid
    assert found[0]["protocol"] == "logdiff-request/1"
    assert found[2]["task"] == "m"
    assert "qwen3" in [model["name"] for model in found[2]["data"]["models"]]
    assert child.returncode == 0


def test_environment_needs_no_engine(start: Start) -> None:
    (result,) = [e for e in events(start(request(tasks=[{"task": "environment"}]))) if e["event"] == "result"]
    assert result["data"]["format"] == "logdiff-env/1"
    assert result["data"]["python"]["version"] == ".".join(map(str, sys.version_info[:3]))


def test_an_interactive_runner_takes_tasks_until_stop(start: Start) -> None:
    child = start(request(interactive=True))
    assert child.stdin is not None
    for task in ({"id": "a", "task": "list_models"}, {"id": "b", "task": "list_models"}, {"task": "stop"}):
        child.stdin.write(json.dumps(task) + "\n")
    child.stdin.flush()
    found = events(child)
    assert [(e["event"], e.get("task")) for e in found[2:]] == [("result", "a"), ("result", "b"), ("done", None)]
    assert child.returncode == 0


def test_an_interactive_runner_survives_bad_tasks(start: Start) -> None:
    child = start(request(interactive=True))
    assert child.stdin is not None
    child.stdin.write('half a line {\n[1]\n{"id": "x", "task": "dance"}\n{"id": "ok", "task": "list_models"}\n')
    child.stdin.write('{"task": "stop"}\n')
    child.stdin.flush()
    found = [e for e in events(child) if e["event"] in ("error", "result")]
    assert [e["error"]["type"] for e in found[:3]] == ["InputError", "InputError", "UnsupportedError"]
    assert all(e["fatal"] is False for e in found[:3])
    assert found[2]["error"]["value"] == "dance"
    assert "list_models" in found[2]["error"]["hint"]
    assert found[3]["task"] == "ok"
    assert child.returncode == 0


def test_end_of_input_ends_an_idle_runner_cleanly(start: Start) -> None:
    child = start(request(interactive=True))
    until(child, "ready")
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=20) == 0


def test_end_of_input_ends_a_busy_runner_and_its_children(start: Start, tmp_path: Path) -> None:
    child = start(request(modules=[module(tmp_path, BUSY)], tasks=[{"task": "environment"}]))
    grandchild = int(until(child, "progress")["message"])
    assert alive(grandchild)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=20) == 9
    assert gone(grandchild)


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    document = request(modules=[module(tmp_path, BUSY)], tasks=[{"task": "environment"}])
    path.write_text(json.dumps(document), encoding="utf-8")
    script = (
        "import subprocess, sys\n"
        "c = subprocess.Popen([sys.executable, '-m', 'logdiff_kernels.runner', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)\n"
        "for line in c.stdout: print(line, end='', flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    runner = int(until(parent, "hello")["pid"])
    grandchild = int(until(parent, "progress")["message"])
    parent.kill()
    parent.communicate(timeout=20)
    assert gone(runner)
    assert gone(grandchild)


def test_sigterm_ends_a_busy_runner_cleanly(start: Start, tmp_path: Path) -> None:
    child = start(request(modules=[module(tmp_path, BUSY)], tasks=[{"task": "environment"}]))
    grandchild = int(until(child, "progress")["message"])
    child.send_signal(signal.SIGTERM)
    assert events(child)[-1]["event"] == "done"
    assert child.returncode == 0
    assert gone(grandchild)


def test_what_code_prints_never_reaches_the_events(start: Start, tmp_path: Path) -> None:
    noisy = module(
        tmp_path,
        """
        import os, subprocess, sys
        print("from python")
        os.write(1, b"from the descriptor\\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        """,
    )
    child = start(request(modules=[noisy]))
    assert [e["event"] for e in events(child)] == ["hello", "ready", "done"]
    assert child.stderr is not None
    text = child.stderr.read()
    assert "from the descriptor" in text
    assert "from a child" in text


def test_a_module_that_fails_is_named(start: Start, tmp_path: Path) -> None:
    path = module(tmp_path, "raise ValueError('no such toggle: 17')")
    child = start(request(modules=[path]))
    (error,) = [e for e in events(child) if e["event"] == "error"]
    assert error["error"]["type"] == "InputError"
    assert error["error"]["value"] == path
    assert "no such toggle: 17" in error["error"]["message"]
    assert error["fatal"] is True
    assert child.returncode == 2


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("", None),
        ("{", None),
        ("[]", "list"),
        ('{"format": "logdiff-request/2"}', "logdiff-request/2"),
        (request(colour="red"), "colour"),
        (request(args=[]), []),
        ({"format": "logdiff-request/1"}, []),
        (request(engine="transformers"), None),
        (request(tasks=[{"id": "no name"}]), {"id": "no name"}),
        (request(engine="abacus", model="/m"), "abacus"),
    ],
)
def test_a_malformed_request_is_an_error_event_and_exit_2(start: Start, content: Any, value: Any) -> None:
    child = start(content)
    found = events(child)
    assert found[-1]["event"] == "error"
    assert found[-1]["fatal"] is True
    error = found[-1]["error"]
    assert error["type"] == "InputError"
    assert error["message"]
    if value is not None:
        assert error["value"] == value
    assert child.returncode == 2


def test_an_unexpected_failure_keeps_the_words_and_logs_the_traceback(start: Start, tmp_path: Path) -> None:
    broken = module(
        tmp_path,
        """
        import logdiff_kernels.actions as actions
        def run(self, task, progress):
            raise RuntimeError("the device went away")
        actions.EngineFree.run = run
        """,
    )
    child = start(request(modules=[broken], tasks=[{"id": "t", "task": "environment"}]))
    (error,) = [e for e in events(child) if e["event"] == "error"]
    assert (error["task"], error["error"]["type"]) == ("t", "EngineError")
    assert "the device went away" in error["error"]["message"]
    assert child.returncode == 2
    assert child.stderr is not None
    assert "Traceback" in child.stderr.read()


def test_progress_is_throttled_but_never_loses_the_last_step(start: Start, tmp_path: Path) -> None:
    eager = module(
        tmp_path,
        """
        import logdiff_kernels.actions as actions
        from logdiff_kernels.engines.base import TaskOutput
        def run(self, task, progress):
            for i in range(50001):
                progress(i, 50000, "step")
            return TaskOutput(data={"nan": float("nan")})
        actions.EngineFree.run = run
        """,
    )
    found = events(start(request(modules=[eager], tasks=[{"task": "environment"}])))
    steps = [e for e in found if e["event"] == "progress"]
    assert 1 <= len(steps) < 100
    assert (steps[-1]["done"], steps[-1]["total"]) == (50000, 50000)
    assert [e["data"] for e in found if e["event"] == "result"] == [{"nan": "nan"}]


def test_the_runner_starts_without_torch_or_an_engine() -> None:
    code = "import sys, logdiff_kernels.runner, logdiff_kernels.engines.registry; print(sorted(sys.modules))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("'torch'", "'transformers'", "'vllm'", "'numpy'"):
        assert heavy not in names
