"""SKILL.md: valid, short, and naming only what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import logdiff
import pytest
import yaml
from logdiff.cli.app import run
from logdiff.live import RunFile

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
FRONT = yaml.safe_load(TEXT.split("---\n")[1])


def test_the_validator_of_the_specification_accepts_it(tmp_path: Path) -> None:
    folder = tmp_path / FRONT["name"]  # a skill's folder has its name
    folder.mkdir()
    shutil.copy(ROOT / "SKILL.md", folder)
    tool = Path(sys.executable).with_name("agentskills")
    done = subprocess.run([tool, "validate", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Valid skill" in done.stdout


def test_it_is_short_and_carries_the_version_of_the_package() -> None:
    assert len(TEXT.splitlines()) < 500
    assert len(TEXT) / 4 < 5000
    assert FRONT["metadata"]["version"] == logdiff.__version__


def test_every_command_that_it_names_exists(capfd: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(re.findall(r"`([^`]*)`", TEXT))
    named = set(re.findall(r"\blogdiff ((?:models )?[a-z]+)\b", shown))
    assert {
        "measure",
        "run",
        "report",
        "query",
        "env",
        "compare",
        "import",
        "serve",
        "demo",
        "models list",
        "align",
    } <= named
    for command in named:
        assert run([*command.split(), "--help"]) == 0, command
        capfd.readouterr()


def test_every_option_that_it_names_is_an_option_of_that_command(capfd: pytest.CaptureFixture[str]) -> None:
    checked = 0
    for line in re.findall(r"`(logdiff [^`]*--[^`]*)`", TEXT):
        command = line.split()[1]
        if command not in ("COMMAND", "--help"):
            run([command, "--help"])
            help_text = capfd.readouterr().out
            for option in re.findall(r"--[a-z-]+", line):
                assert option in help_text, f"{command} has no {option}"
                checked += 1
    assert checked >= 4


def test_every_tool_that_it_names_exists_and_none_is_left_out() -> None:
    tools = {file.stem for file in (Path(__file__).with_name("snapshots")).glob("*.json")}
    groups = "logdiff|case|env|job|report|align|config|dispatch|probe|playbook|divergence"
    named = set(re.findall(rf"`((?:{groups})_[a-z]+)`", TEXT)) - {"job_id"}
    assert named == tools


def test_it_names_the_one_call_to_start_from() -> None:
    from logdiff.mcp.steps import step
    from logdiff.playbook import Known, calls_for

    tools = {file.stem for file in (Path(__file__).with_name("snapshots")).glob("*.json")}
    assert FRONT["metadata"]["start"] in tools
    assert FRONT["metadata"]["start"] not in {step(call).tool for call in calls_for(Known())}
    schema = json.loads((Path(__file__).with_name("snapshots") / f"{FRONT['metadata']['start']}.json").read_text())
    assert not schema["inputSchema"].get("required")


def test_its_references_are_files_that_travel_with_the_package() -> None:
    from importlib.resources import files

    named = set(re.findall(r"\]\((skill/references/[a-z-]+\.md)\)", TEXT))
    there = {f"skill/references/{path.name}" for path in (ROOT / "skill" / "references").glob("*.md")}
    assert named == there
    for name in named:
        packaged = files("logdiff.skill").joinpath("references", Path(name).name)
        assert packaged.read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")


def test_its_references_are_served_where_it_points(tmp_path: Path) -> None:
    import anyio
    from logdiff.mcp.server import build_server
    from logdiff.mcp.workspace import Workspace
    from mcp import Client

    async def read() -> None:
        async with Client(build_server(Workspace(tmp_path))) as client:
            shown = await client.read_resource("skill://logdiff/skill/references/triage.md")
            wanted = (ROOT / "skill" / "references" / "triage.md").read_text(encoding="utf-8")
            assert shown.contents[0].text == wanted  # type: ignore[union-attr]
            for name in ("nothing.md", "..%2F..%2FSKILL.md"):
                with pytest.raises(Exception, match=r"no such reference|Unknown resource"):
                    await client.read_resource(f"skill://logdiff/skill/references/{name}")

    anyio.run(read)


def test_every_class_of_a_verdict_has_its_row() -> None:
    from logdiff.verdict.records import CLASSES

    rows = " ".join(line.split("|")[1] for line in TEXT.splitlines() if "skill/references" in line and line[0] == "|")
    assert set(re.findall(r"`([a-z-]+)`", rows)) == set(CLASSES)


def test_its_run_file_is_accepted() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert RunFile.from_dict(yaml.safe_load(block)).rollout.engine == "vllm"


def test_its_pair_file_is_measured_and_its_queries_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (pairs,) = re.findall(r"```\n(\{\"format\".*?)```", TEXT, re.DOTALL)
    Path("p.jsonl").write_text(pairs)
    assert run(["measure", "p.jsonl", "--case", "c"]) == 1
    (queries,) = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    for query in filter(str.strip, re.split(r"^--.*\n", queries, flags=re.MULTILINE)):
        capfd.readouterr()
        assert run(["query", "c", query, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["rows"]


def test_the_plugin_manifests_agree_with_the_package() -> None:
    plugin = json.loads((ROOT / ".claude-plugin" / "plugin.json").read_text(encoding="utf-8"))
    assert (plugin["name"], plugin["version"]) == (FRONT["name"], logdiff.__version__)
    server = json.loads((ROOT / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["logdiff"]
    assert server["args"][-1] == "serve"
