"""A dispatch result on its surfaces: terminal, tool and report say what matters, within their bounds."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from logdiff.cli.dispatch_table import dispatch_table
from logdiff.dispatch.inspect import result
from logdiff.dispatch.toggle import changes, failed_changes, parse_toggle, verdict
from logdiff.mcp import dispatch_words
from logdiff.report.dispatch import read_dispatch
from rich.console import Console

from tests.server.dispatch.test_dispatch_result import FAILURE, document, entry, registered


@pytest.fixture
def data() -> dict[str, Any]:
    layer = "model.layers.*."
    rollout = [entry(f"{layer}input_layernorm", "_C.rms_norm.default"), entry("lm_head", "aten.mm.default")]
    rollout += [entry(f"{layer}part{i}", f"_C.kernel_{i}_{'x' * 80}.default") for i in range(60)]
    train = [entry(f"{layer}input_layernorm", f"aten.op{i}.default") for i in range(40)]
    train += [entry("lm_head", "aten.mm.default")]
    record = {"kind": "wrapped", "detail": "d" * 900, "by": "b", "live": "f:1", "notes": ["n" * 900] * 9, "code": ""}
    many = [{**record, "target": f"vllm.function{i}"} for i in range(100)]
    patched = {"findings": many, "explained": [], "checked": {"functions": 1, "modules": 1}, "digest": "p"}
    documents = {"rollout": document(rollout, "decode", patched=patched), "train": document(train)}
    proofs = [verdict(parse_toggle("rollout:env:A=1"), {"rollout": changes(documents["rollout"], documents["train"])})]
    proofs.append(verdict(parse_toggle("env:B=1"), {"train": changes(documents["train"], documents["train"])}))
    failed = document([], failed=FAILURE, patched=registered(*(f"aten::op{i}" for i in range(30))))
    proofs.append(verdict(parse_toggle("env:C=1"), {"train": failed_changes(documents["train"], failed)}))
    return result(documents, proofs)


def test_the_tools_summary_is_short_whatever_was_found(data: dict[str, Any]) -> None:
    facts = dispatch_words.facts(data, "summary")
    assert len(json.dumps(facts)) < 8000 * 0.9, "2,000 tokens are about 8,000 characters of JSON"
    assert facts["more_findings"] == 100 + 2 - dispatch_words.FINDINGS
    assert dispatch_words.verdict(data) == "findings"
    assert "vllm.function0" in dispatch_words.summary(data)


def test_the_terminal_shows_findings_the_table_and_what_switches_changed(data: dict[str, Any]) -> None:
    page = io.StringIO()
    for part in dispatch_table(data):
        Console(file=page, width=120).print(part)
    text = page.getvalue()
    assert "vllm.function0" in text
    assert "and 90 more" in text
    assert "_C.rms_norm" in text
    assert "provider" in text
    assert "rollout:env:A=1 changed what runs" in text
    assert "the switch changed nothing" in text
    assert "vllm/a.py:7 in mean_dim" in text.replace("\n", " ")
    assert "+ train patched: operator: aten::op0" in text
    assert len(text.splitlines()) < 300


def test_the_report_draws_the_table(data: dict[str, Any], tmp_path: Path) -> None:
    from logdiff.report.page import draw

    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "dispatch.json").write_text(json.dumps(data))
    missing: list[str] = []
    section = read_dispatch(tmp_path, missing)
    assert section is not None
    assert missing == []
    assert section.plot is not None
    drawn, _ = draw([section.plot], None)
    assert "_C.rms_norm" in str(drawn[0]["svg"]) or "rms" in str(drawn[0]["svg"])
    assert [t["state"] for t in section.toggles] == ["changed", "changed nothing", "failed with the switch"]
    assert any("aten::op0" in line for line in section.toggles[2]["lines"])


@pytest.mark.parametrize("text", ["", "{", '{"format": "x"}', "[]", '{"format": "logdiff-dispatch/1"}'])
def test_a_broken_result_is_told_and_not_drawn(text: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "dispatch.json").write_text(text)
    missing: list[str] = []
    assert read_dispatch(tmp_path, missing) is None
    assert len(missing) == 1


def test_no_result_is_no_section(tmp_path: Path) -> None:
    missing: list[str] = []
    assert read_dispatch(tmp_path, missing) is None
    assert missing == []
