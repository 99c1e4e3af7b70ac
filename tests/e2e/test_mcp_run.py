"""`logdiff_run` on real engines through a real server: progress, result, and an end without orphans."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from logdiff.live import build_model
from mcp import Client, StdioServerParameters

pytestmark = [pytest.mark.anyio, pytest.mark.slow(seconds=30)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def workspace(root: Path, max_tokens: int) -> StdioServerParameters:
    model = build_model("qwen3")
    (root / "run.yaml").write_text(
        f"format: logdiff-run/1\nmodel: {model}\n"
        "prompts: {random: {count: 2, lengths: [5, 9], seed: 1}}\n"
        f"sampling: {{max_tokens: {max_tokens}, ignore_eos: true, seed: 3}}\n"
        "rollout: {engine: transformers-generate}\n"
        "train: {engine: transformers}\n"
    )
    return StdioServerParameters(command=sys.executable, args=["-m", "logdiff", "serve", "--root", str(root)])


def runners() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "logdiff_kernels" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_a_live_run_reports_progress_and_ends_with_its_measurement(tmp_path: Path) -> None:
    messages: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message or "")

    async with Client(workspace(tmp_path, 8)) as client:
        answer = await client.call_tool(
            "logdiff_run", {"run_file": "run.yaml", "case": "runs/live"}, progress_callback=on_progress
        )
        facts: dict[str, Any] = answer.structured_content or {}
        while facts["job"] is not None and facts["job"]["state"] == "running":
            answer = await client.call_tool(
                "job_status", {"job_id": facts["job"]["job_id"], "wait_s": 30}, progress_callback=on_progress
            )
            facts = answer.structured_content or {}
    assert not answer.is_error, answer.content
    result = facts["result"]
    assert facts["verdict"] in ("different", "equal"), facts["summary"]
    assert result["measure"]["tokens"] == 16
    assert result["floor"]["axes"]
    assert any("rollout" in message for message in messages)
    assert (tmp_path / "runs" / "live" / "results" / "measure.json").is_file()


async def test_cancelling_a_live_run_ends_the_runner_and_keeps_the_case(tmp_path: Path) -> None:
    async with Client(workspace(tmp_path, 4000)) as client:
        answer = await client.call_tool("logdiff_run", {"run_file": "run.yaml", "case": "runs/live"})
        job = (answer.structured_content or {})["job"]["job_id"]
        deadline = time.monotonic() + 60
        while not (found := runners()):
            assert time.monotonic() < deadline, "no runner was started"
            await client.call_tool("job_status", {"job_id": job, "wait_s": 1})
        ended = await client.call_tool("job_status", {"job_id": job, "cancel": True})
        assert (ended.structured_content or {})["job"]["state"] == "cancelled"
        _, left = psutil.wait_procs(found, timeout=10)
        assert not left
    assert (tmp_path / "runs" / "live" / "manifest.json").is_file()
