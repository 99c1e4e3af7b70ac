"""A case that holds results alone leads with what they found; nothing speaks of tokens that nobody compared."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from logdiff import actions
from logdiff.audit import audit_paths
from logdiff.case import Case
from logdiff.cli.probe import app
from logdiff.report import render
from report_cases import MakeCase, Sample
from report_page import Page, read_page
from typer.main import get_command

from tests.server.probe.test_probe_answers import MIXED

VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.top_p={}\n"
OF_TOKENS = ("gates", "pairs", "sides", "missing", "plots")


def _audited(tmp_path: Path, top_p: float) -> tuple[Path, Path]:
    script = tmp_path / "run.sh"
    script.write_text(VERL.format(top_p), encoding="utf-8")
    actions.audit(paths=[script], case=tmp_path / "case")
    return script, tmp_path / "case"


def _page(folder: Path, tmp_path: Path) -> Page:
    with Case.open(folder) as case:
        render(case, tmp_path / "page.html")
    return read_page(tmp_path / "page.html")


def test_an_audit_leads_with_its_counts_and_its_first_finding(tmp_path: Path) -> None:
    script, folder = _audited(tmp_path, 0.9)
    (finding,) = [f for f in audit_paths([script]).findings if f.severity == "error"]
    page = _page(folder, tmp_path)
    summary = page.by_id("summary")
    assert summary.words.startswith("Configuration: 1 error, 0 warnings")
    assert finding.title in summary.words
    assert finding.where in summary.words
    assert summary.attributes["class"] == "summary differs"
    assert [name for name in OF_TOKENS if page.has_id(name)] == []
    assert "query" not in page.by_id("repeat").words


def test_a_clean_audit_says_so_and_is_no_proof_of_equality(tmp_path: Path) -> None:
    _, folder = _audited(tmp_path, 1.0)
    summary = _page(folder, tmp_path).by_id("summary")
    assert "no setting that was read forbids equal" in summary.words
    assert summary.attributes["class"] == "summary told"


def test_probes_lead_with_what_fails_and_a_command_that_asks_again(tmp_path: Path) -> None:
    asked = {"ops": ["linear", "rope"], "providers": ["torch"], "relations": ["I:batch", "A"], "device": "cpu",
             "dtype": "float32", "seed": 3, "shapes": [], "model": None}  # fmt: skip
    with Case.create(tmp_path / "case", "probe", "probe", {"arguments": asked}) as case:
        case.write_result("probe", MIXED)
        case.seal()
    page = _page(tmp_path / "case", tmp_path)
    assert page.by_id("summary").words == f"Operator probes: {MIXED['summary']}".strip()
    assert page.by_id("summary").attributes["class"] == "summary differs"
    assert [name for name in OF_TOKENS if page.has_id(name)] == []
    (command,) = [e.words for e in page.all("code") if e.words.startswith("logdiff probe run linear rope")]
    parsed = get_command(app).commands["run"].make_context("run", shlex.split(command)[3:])  # type: ignore[attr-defined]
    assert (parsed.params["relations"], parsed.params["seed"]) == ("I:batch,A", 3)


def test_a_case_without_its_result_says_that_and_not_that_tokens_are_absent(tmp_path: Path) -> None:
    Case.create(tmp_path / "case", "dispatch", "dispatch", {}).close()
    page = _page(tmp_path / "case", tmp_path)
    assert page.by_id("summary").words == "This case holds no result yet."
    missing = page.by_id("missing").words
    assert "results/dispatch.json: not computed" in missing
    assert "token" not in missing


@pytest.mark.parametrize("kind", ["probe", "audit"])
def test_tokens_in_such_a_case_are_compared_all_the_same(make_case: MakeCase, tmp_path: Path, kind: str) -> None:
    case = make_case([Sample([3], {"rollout": [-0.25], "train": [-0.5]})], kind=kind)
    page = _page(case.path, tmp_path)
    assert "1 of 1 compared tokens" in page.by_id("summary").words
    assert page.has_id("pairs")
