"""`logdiff serve` as clients start it: a real process over stdio and HTTP, with real workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import psutil
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

pytestmark = pytest.mark.anyio
SERVE = [sys.executable, "-m", "logdiff", "serve", "--json"]
ERAS = ["auto", "legacy"]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    header = {"format": "logdiff-pair/1", "meta": {"model": "m"}}
    row = {
        "sample_id": "a",
        "prompt_token_ids": [1],
        "response_token_ids": [5, 6, 7, 8],
        "rollout_logprobs": [-0.5, -1.0, -2.0, -4.0],
        "train_logprobs": [-0.5, -1.25, -2.0, -3.5],
    }
    (tmp_path / "pairs.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(row) + "\n")
    return tmp_path


def call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


class Raw:
    """A server spoken to line by line, so that every byte of its standard output is seen."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            SERVE, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines: list[dict[str, Any]] = []

    def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(m).encode() + b"\n" for m in messages))
        self.process.stdin.flush()

    def answer(self, number: int) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            self.lines.append(message)
            if message.get("id") == number:
                result: dict[str, Any] = message["result"]
                return result
        raise AssertionError(f"no answer {number}")

    def leave(self) -> bytes:
        """Close standard input, and return what the server still wrote."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        rest = self.process.stdout.read()
        self.process.wait(30)
        return rest


@pytest.fixture
def raw(root: Path) -> Iterator[Raw]:
    server = Raw(root)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def workers_of(server: Raw) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def all_gone(processes: list[psutil.Process], seconds: float = 15.0) -> bool:
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return not left


async def finished(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Facts of a call; where the machine is slow, of the job that it became."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    facts: dict[str, Any] = answer.structured_content or {}
    while facts["verdict"] == "running":
        waiting = await client.call_tool("job_status", {"job_id": facts["job"]["job_id"], "wait_s": 30})
        assert not waiting.is_error, waiting.content
        facts = waiting.structured_content or {}
        assert facts["error"] is None, facts["error"]
        facts |= facts["result"] or {}
    return facts


@pytest.mark.parametrize("mode", ERAS)
async def test_the_whole_way_from_pair_file_to_report_over_stdio(root: Path, mode: Any) -> None:
    parameters = StdioServerParameters(command=SERVE[0], args=[*SERVE[1:], "--root", str(root)])
    async with Client(parameters, mode=mode) as client:
        assert len((await client.list_tools()).tools) == 13
        found = await finished(client, "logdiff_measure", {"paths": ["pairs.jsonl"], "case": "runs/c"})
        assert found["verdict"] == "different"
        assert (found["measure"]["tokens"], found["measure"]["mismatched_tokens"]) == (4, 2)
        assert found["measure"]["max_abs"] == 0.5
        answers = {s["tool"]: await finished(client, s["tool"], s["arguments"]) for s in found["next_steps"]}
        assert answers["case_query"]["rows"][0] == ["a", 3, 8, -4.0, -3.5, 0.5]
        assert answers["report_render"]["report"] == "runs/c/report.html"
        assert (root / "runs" / "c" / "report.html").is_file()
        shown = await client.read_resource("case://runs/c/results/measure.json")
        assert json.loads(shown.contents[0].text)["format"] == "logdiff-measure/1"  # type: ignore[union-attr]
        refused = await client.call_tool("logdiff_measure", {"paths": ["pairs.jsonl"], "case": "runs/c"})
        assert refused.is_error
        assert "CaseError" in str(refused.content)


@pytest.mark.slow
async def test_environment_of_the_engines_over_stdio(root: Path) -> None:
    async with Client(StdioServerParameters(command=SERVE[0], args=[*SERVE[1:], "--root", str(root)])) as client:
        assert "Python 3." in (await finished(client, "env_inspect", {}))["summary"]


def test_standard_output_carries_nothing_but_the_protocol(raw: Raw) -> None:
    raw.send(INITIALIZE, INITIALIZED, call("logdiff_measure", 2, paths=["pairs.jsonl"]))
    assert raw.answer(1)["serverInfo"]["name"] == "logdiff"
    assert not raw.answer(2).get("isError")
    assert raw.leave() == b""
    assert raw.process.returncode == 0


@pytest.mark.parametrize("end", ["eof", "SIGTERM", "SIGKILL", "SIGINT"])
def test_no_worker_outlives_the_server(raw: Raw, root: Path, end: str) -> None:
    os.mkfifo(root / "pipe.jsonl")  # a worker that opens it waits for ever
    raw.send(INITIALIZE, INITIALIZED, call("logdiff_measure", 2, paths=["pipe.jsonl"], case="runs/slow"))
    raw.answer(1)
    deadline = time.monotonic() + 30
    while not (workers := workers_of(raw)):
        assert time.monotonic() < deadline, "no worker was started"
        time.sleep(0.05)
    if end == "eof":
        raw.leave()
    else:
        raw.process.send_signal(getattr(signal, end))
        raw.process.wait(30)
    assert all_gone(workers)


def test_starting_the_server_imports_no_heavy_package(root: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from logdiff.mcp.startup import quick_imports\n"
        "with quick_imports():\n"
        "    import logdiff.cli.app\n"
        "    from logdiff.mcp.server import build_server\n"
        "    from logdiff.mcp.workspace import Workspace\n"
        "build_server(Workspace(Path('.')))\n"
        "heavy = {'numpy', 'pyarrow', 'duckdb', 'matplotlib', 'torch', 'transformers', 'vllm', 'psutil'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def http(root: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"LOGDIFF_TOKEN": "secret"}
    command = [*SERVE, "--http", f"127.0.0.1:{port}", "--root", str(root)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


async def test_http_needs_the_token_and_a_local_host_name(http: str) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    token = accept | {"Authorization": "Bearer secret"}
    assert httpx.post(http, json=INITIALIZE, headers=accept).status_code == 401
    assert httpx.post(http, json=INITIALIZE, headers=accept | {"Authorization": "Bearer wrong"}).status_code == 401
    assert httpx.post(http, json=INITIALIZE, headers=token | {"Host": "evil.example"}).status_code == 421
    assert httpx.post(http, json=INITIALIZE, headers=token | {"Origin": "http://evil.example"}).status_code == 403
    assert httpx.post(http, json=INITIALIZE, headers=token).status_code == 200


@pytest.mark.parametrize("mode", ERAS)
async def test_the_same_tools_work_over_http(http: str, mode: Any) -> None:
    carrier = httpx2.AsyncClient(headers={"Authorization": "Bearer secret"})
    async with carrier, Client(streamable_http_client(http, http_client=carrier), mode=mode) as client:
        found = await finished(client, "logdiff_measure", {"paths": ["pairs.jsonl"]})
    assert found["measure"]["mismatched_tokens"] == 2
