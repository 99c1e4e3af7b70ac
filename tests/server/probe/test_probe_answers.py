"""What answers mean, what is kept of them, and what a page, a terminal and a model are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logdiff.case import Case
from logdiff.cli.probe_table import probe_table
from logdiff.mcp import probe_words
from logdiff.probe import exit_code, make_plan, matrix, summary
from logdiff.probe.cache import Cache
from logdiff.probe.judge import Cell
from logdiff.report import render
from logdiff.report.probes import _words


def entry(op: str, provider: str, relation: str, ok: bool | None, against: str = "") -> dict[str, Any]:
    detail: dict[str, Any] = {"dtype": "bfloat16", "seed": 0, "shapes": [{"rows": 2, "n": 64}]}
    if against:
        detail["against"] = against
    if ok is None:
        detail["not_proven"] = "the planted fault was not seen"
    if ok is False:
        detail["repeat"] = f"logdiff probe run {op}"
        detail["difference"] = {
            "variant": "2 rows against each alone", "bits": ["0x3f80", "0x3f81"], "differing": 1, "compared": 128,
            "max_ulp": 1,
        }  # fmt: skip
    shape = {"rows": 2, "n": 64} if ok is False else None
    return {
        "op": op, "provider": provider, "relation": relation, "ok": ok, "control_seen": ok is not None,
        "smallest_failing_shape": shape, "detail": detail,
    }  # fmt: skip


def result(*entries: dict[str, Any], skipped: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "format": "logdiff-probe/1", "results": list(entries), "skipped": skipped or [], "cached": 0, "seconds": 1.0,
        "device": "cpu", "dtype": "bfloat16", "seed": 0, "model": None, "threads": 2, "fingerprint": "ab",
        "implementations": {},
    }  # fmt: skip
    return {**data, "summary": summary(data), "case": None}


MIXED = result(
    entry("linear", "torch", "I:batch", False),
    entry("linear", "torch", "I:order", True),
    entry("linear", "aligned", "I:batch", True),
    entry("linear", "torch", "P", False, "aligned"),
    entry("rope", "torch", "I:batch", None),
    skipped=[{"op": "rope", "provider": "torch", "relation": "I:order", "reason": "out of time"}],
)


def test_the_exit_code_is_1_only_where_a_relation_fails() -> None:
    assert exit_code(MIXED) == 1
    assert exit_code(result(entry("rope", "torch", "I:batch", None))) == 0
    assert exit_code(result()) == 0


def test_the_summary_counts_and_never_calls_nothing_fine() -> None:
    assert "5 checks: 2 hold, 2 fail, 1 not proven (the planted fault was not seen)." in MIXED["summary"]
    assert "linear (torch)" in MIXED["summary"]
    assert "1 did not run in the time" in MIXED["summary"]
    assert result(skipped=MIXED["skipped"])["summary"] == "Nothing was probed: out of time."
    begun = {"op": "rope", "provider": "torch", "relation": "I:batch", "reason": "out of time", "shapes": [{"rows": 9}]}
    assert "did not run" not in result(*MIXED["results"], skipped=[begun])["summary"]


def test_the_matrix_has_a_cell_for_both_sides_of_a_comparison() -> None:
    operators, providers, cells = matrix(MIXED)
    assert (operators, providers) == (["linear", "rope"], ["torch", "aligned"])
    assert cells["linear", "torch"].fails == ["I:batch", "P:aligned"]
    assert cells["linear", "aligned"].fails == ["P:torch"]
    assert cells["rope", "torch"].unproven == ["I:batch"]


def test_a_terminal_shows_failing_relations_shapes_and_reasons() -> None:
    from rich.console import Console

    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for part in probe_table(MIXED):
        console.print(part)
    text = console.export_text()
    for words in (
        "batch P×1",
        "rows=2 n=64",
        "0x3f80 against 0x3f81",
        "out of time",
        "the planted fault was not seen",
        "again: logdiff probe run linear",
    ):
        assert words in text


def test_a_model_is_told_failures_first_in_under_2000_tokens() -> None:
    many = result(*[entry(f"op{i}", f"p{j}", "I:batch", False) for i in range(20) for j in range(8)])
    facts = probe_words.facts(many, "summary")
    assert len(json.dumps(facts)) / 3 < 2000
    assert facts["more_failures"] == 160 - len(facts["failures"])
    assert probe_words.verdict(many) == "fails"
    assert probe_words.verdict(result()) == "nothing-probed"
    assert probe_words.verdict(result(entry("rope", "torch", "A", None))) == "not-proven"


def test_a_cell_of_the_picture_names_whole_relations_and_counts_the_rest() -> None:
    names = ["I:batch", "I:order", "I:neighbours", "I:padding", "I:chunking", "I:micro_batch", "I:packing", "A"]
    words = _words(Cell(fails=names))
    assert all(len(line) <= 21 for line in words.splitlines())
    *shown, rest = words.split()
    assert shown == [name.removeprefix("I:") for name in names[: len(shown)]]
    assert int(rest) == len(names) - len(shown)


def test_next_steps_can_be_sent_as_they_are() -> None:
    for step in probe_words.steps(MIXED, "runs/x"):
        if step.tool == "probe_run":
            make_plan(step.arguments["ops"], providers=step.arguments.get("providers", []))
        else:
            assert (step.tool, step.arguments) == ("report_render", {"case": "runs/x"})


def test_a_case_draws_its_probes_and_a_broken_file_is_told(tmp_path: Path) -> None:
    with Case.create(tmp_path / "case", "probe", "probe", {}) as case:
        case.write_result("probe", MIXED)
        case.seal()
    page = render(Case.open(tmp_path / "case"), tmp_path / "a.html")["html"].read_text(encoding="utf-8")
    assert 'id="probes"' in page
    assert "Matrix of 2 operators by 2 providers: 1 holds" not in page  # every cell of linear has a failing P
    assert "Matrix of 2 operators by 2 providers: 2 fails, 1 not proven." in page
    assert "0x3f80 0x3f81" in page
    assert "the planted fault was not seen</td>" in page
    for number, broken in enumerate(("{", '{"format": "logdiff-probe/2"}', '{"format": "logdiff-probe/1"}')):
        with Case.create(tmp_path / f"broken{number}", "probe", "probe", {}) as case:
            (case.path / "results").mkdir()
            (case.path / "results" / "probe.json").write_text(broken, encoding="utf-8")
        page = render(Case.open(case.path), tmp_path / "b.html")["html"].read_text(encoding="utf-8")
        assert "results/probe.json can&#39;t be used" in page
        assert 'id="probes"' not in page


def test_answers_are_kept_under_everything_that_decides_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDIFF_CACHE", str(tmp_path))
    plan = make_plan(["linear"], seed=1)
    cache = Cache({"torch": "2.13"}, plan)
    kept = entry("linear", "torch", "I:batch", True)
    cache.keep(kept)
    assert cache.known() == [kept]
    assert Cache({"torch": "2.14"}, plan).known() == []
    assert Cache({"torch": "2.13"}, make_plan(["linear"], seed=2)).known() == []
    assert Cache({"torch": "2.13"}, make_plan(["linear"], seed=1, dtype="float32")).known() == []
    assert Cache({"torch": "2.13"}, make_plan(["sum"], seed=1)).known() == []
    assert Cache({"torch": "2.13"}, make_plan(["linear"], seed=1, relations=["A"])).known() == []
    assert Cache({"torch": "2.13"}, make_plan(["linear"], seed=1, providers=["vllm"])).known() == []
    assert Cache({"torch": "2.13"}, make_plan(["all"], seed=1)).known() == [kept]
    late = {**kept, "relation": "A", "ok": None, "detail": {**kept["detail"], "finished": False}}
    cache.keep(late)
    assert cache.known() == [kept]
    shape = {"rows": 2, "k": 8, "n": 4}
    assert Cache({"torch": "2.13"}, make_plan(["linear"], seed=1, shapes=[shape])).known() == []
    (file,) = (tmp_path / "probes").rglob("*.json")
    file.write_text("{torn", encoding="utf-8")
    assert cache.known() == []


def test_new_kernels_leave_the_answers_of_other_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDIFF_CACHE", str(tmp_path))
    everyone = make_plan(["linear"])
    stock = entry("linear", "torch", "I:batch", True)
    ours = entry("linear", "aligned", "I:batch", True)
    against = entry("linear", "torch", "P", False, against="aligned")
    old = Cache({"torch": "2.13", "aligned": {"build": "1"}}, everyone)
    for one in (stock, ours, against):
        old.keep(one)
    assert len(old.known()) == 3
    assert Cache({"torch": "2.13", "aligned": {"build": "2"}}, everyone).known() == [stock]
    assert Cache({"torch": "2.13", "aligned": None}, make_plan(["linear"], providers=["torch"])).known() == [stock]
    assert not make_plan(["linear"], providers=["torch"]).asks("aligned")
    assert everyone.asks("aligned")
