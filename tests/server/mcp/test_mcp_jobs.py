"""Jobs: work in a child process that can be followed, cancelled, and never outlives the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from logdiff.errors import CaseError, InputError
from logdiff.mcp.jobs import Job, Jobs, Record

SERVER = Path(__file__).resolve().parents[3] / "server"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def engine_of(job: Job) -> int:
    """The process id that the fake worker tells of its sleeping child."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        progress = job.record.progress
        if progress:
            return int(progress["message"].removeprefix("pid "))
        time.sleep(0.01)
    raise AssertionError("no progress from the worker")


def test_a_job_ends_with_the_data_of_its_worker(fake_jobs: Jobs) -> None:
    job = fake_jobs.start("case_query", "query", {"sql": "select 1"}, "")
    assert job.wait(30)
    assert job.record.state == "done"
    assert job.record.data == {
        "format": "echo",
        "request": {"action": "query", "arguments": {"sql": "select 1"}},
    }


def test_garbage_between_events_is_passed_over(fake_jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NOISE", "1")
    job = fake_jobs.start("case_query", "query", {}, "")
    assert job.wait(30)
    assert job.record.state == "done"


def test_a_worker_that_dies_without_a_word_is_a_failed_job_with_its_log(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(root, root / "logs", command=[sys.executable, "-c", "import sys; sys.exit('boom')"])
    job = jobs.start("case_query", "query", {}, "")
    assert job.wait(30)
    assert job.record.state == "failed"
    assert job.record.error is not None
    assert "status 1" in job.record.error["message"]
    assert (root / "logs" / f"{job.record.job_id}.log").read_text() == "boom\n"


def test_cancel_kills_a_worker_that_ignores_it_and_its_engine(fake_jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLEEP", "600")
    monkeypatch.setenv("FAKE_GRANDCHILD", "1")
    monkeypatch.setenv("FAKE_STUBBORN", "1")
    job = fake_jobs.start("logdiff_run", "run", {}, "")
    engine = engine_of(job)
    assert alive(engine)
    job.cancel(grace=0.3)
    assert job.record.state == "cancelled"
    assert gone(engine)
    assert gone(job.pid)


def test_closing_leaves_no_process_and_takes_no_more_work(fake_jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLEEP", "600")
    first, second = (fake_jobs.start("case_query", "query", {}, "") for _ in range(2))
    fake_jobs.close(grace=1.0)
    assert gone(first.pid)
    assert gone(second.pid)
    with pytest.raises(CaseError, match="stopping"):
        fake_jobs.start("case_query", "query", {}, "")


def test_only_one_job_holds_the_engines(fake_jobs: Jobs, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLEEP", "600")
    first = fake_jobs.start("logdiff_run", "run", {}, str(root / "a"), writes=True, engines=True)
    with pytest.raises(CaseError, match="engines are in use") as refused:
        fake_jobs.start("logdiff_run", "run", {}, str(root / "b"), writes=True, engines=True)
    assert refused.value.value == first.record.job_id
    assert fake_jobs.start("logdiff_measure", "measure", {}, str(root / "c"), writes=True).running


def test_two_jobs_never_write_one_case(fake_jobs: Jobs, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLEEP", "600")
    fake_jobs.start("case_import", "import", {}, str(root / "a"), writes=True)
    with pytest.raises(CaseError, match="writes this case"):
        fake_jobs.start("logdiff_measure", "measure", {}, str(root / "a"), writes=True)


def test_a_record_stays_in_its_case_and_outlives_the_server(root: Path, fake_jobs: Jobs) -> None:
    case = root / "runs" / "x"
    case.mkdir(parents=True)
    (case / "manifest.json").write_text("{}")
    job = fake_jobs.start("logdiff_measure", "measure", {"paths": []}, str(case), writes=True)
    assert job.wait(30)
    later = Jobs(root, root / "logs")
    found = later.get(job.record.job_id)
    assert isinstance(found, Record)
    assert found.state == "done"
    assert found.data == job.record.data
    assert [r.job_id for r in later.records(str(case))] == [job.record.job_id]
    assert later.records(str(root / "runs" / "y")) == []


def test_a_job_cut_off_with_its_server_is_interrupted(root: Path) -> None:
    folder = root / "runs" / "x" / ".jobs"
    folder.mkdir(parents=True)
    record = {"job_id": "run-1", "tool": "logdiff_run", "case": "/elsewhere", "state": "running", "started": 1.0}
    (folder / "run-1.json").write_text(json.dumps(record))
    (folder / "torn.json").write_text('{"job_id": "run')
    (found,) = Jobs(root, root / "logs").records()
    assert (found.state, found.case) == ("interrupted", str(root / "runs" / "x"))


def test_a_job_that_fails_before_it_makes_its_case_leaves_no_folder(root: Path) -> None:
    jobs = Jobs(root, root / "logs", command=[sys.executable, "-c", "pass"])
    job = jobs.start("logdiff_measure", "measure", {}, str(root / "runs" / "x"), writes=True)
    assert job.wait(30)
    assert job.record.state == "failed"
    assert not (root / "runs" / "x").exists()


def test_an_unknown_job_is_refused_with_the_known_ones(fake_jobs: Jobs) -> None:
    job = fake_jobs.start("case_query", "query", {}, "")
    with pytest.raises(InputError) as refused:
        fake_jobs.get("nope")
    assert job.record.job_id in refused.value.hint


def test_a_worker_imports_nothing_from_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that holds a checkout named `logdiff`, or any module's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logdiff").mkdir()
    (tmp_path / "yaml.py").write_text("raise SystemExit('imported from the workspace')\n")
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the workspace')\n")
    jobs = Jobs(tmp_path, tmp_path / "logs")
    job = jobs.start("logdiff_run", "run", {"run_file": str(tmp_path / "absent.yaml")}, "")
    assert job.wait(30)
    assert job.record.error is not None
    assert job.record.error["type"] == "InputError", job.record.error


def test_a_worker_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    """The real worker: its standard input is the lifeline."""
    script = (
        "import subprocess, sys, time\n"
        "from logdiff.mcp.jobs import WORKER\n"
        "p = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)\n"
        'p.stdin.write(b\'{"action": "_wait", "arguments": {}}\\n\'); p.stdin.flush()\n'
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SERVER}"}
    (tmp_path / "sitecustomize.py").write_text(
        "import time, logdiff.actions as a\na.ACTIONS['_wait'] = lambda on_progress: time.sleep(600)\n"
    )
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    time.sleep(1.0)
    assert alive(worker)
    server.kill()
    server.wait()
    assert gone(worker)
