"""Plans, overlays and proofs on the fake runner."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from logdiff import actions
from logdiff.align import State, apply, plan, revert, status
from logdiff.align.plan import read_source
from logdiff.cli.app import run as command
from logdiff.errors import CaseError, InputError
from logdiff.live import load_run_file
from logdiff.target.alignment import OPERATORS

Write = Callable[..., Path]


def test_a_plan_names_every_operator_on_every_side(write_run: Write, state: State) -> None:
    data = plan(write_run(), state)
    assert data["format"] == "logdiff-align-plan/1"
    assert [(r["op"], r["side"]) for r in data["operators"]] == [
        (o, s) for s in ("rollout", "train") for o in OPERATORS
    ]
    assert {r["provider"] for r in data["operators"]} == {"aligned-cpu"}
    assert all(r["why"] and r["cost"] for r in data["operators"])
    assert data["not_covered"] == []


def test_operators_and_sides_come_from_the_call_else_from_the_run_file(write_run: Write, state: State) -> None:
    file = write_run(align={"ops": ["rope", "linear"], "sides": ["train"]})
    of_file, given = plan(file, state), plan(file, state, ops="attention", sides="rollout")
    assert (of_file["ops"], of_file["sides"]) == (["linear", "rope"], ["train"])
    assert (given["ops"], given["sides"]) == (["attention"], ["rollout"])
    assert of_file["id"] != given["id"]
    with pytest.raises(InputError, match="unknown operator 'atention'") as error:
        plan(file, state, ops="atention")
    assert "attention" in error.value.hint


def test_the_same_plan_has_the_same_id(write_run: Write, state: State) -> None:
    file = write_run()
    assert plan(file, state)["id"] == plan(file, state)["id"]


def test_what_cannot_be_aligned_is_named_and_not_applied(write_run: Write, state: State, place: Path) -> None:
    data = yaml.safe_load(write_run().read_text())
    data["train"]["args"]["odd"] = ["layers.0.norm"]
    (place / "run.yaml").write_text(yaml.safe_dump(data))
    done = actions.align_plan(source=place / "run.yaml")
    assert done.exit_code == 1
    assert done.data["not_covered"] == [{"side": "train", "module": "model.layers.0.norm", "why": "fake"}]
    with pytest.raises(InputError, match=r"train: model\.layers\.0\.norm can't be aligned: fake"):
        apply(done.data["id"], state)
    assert status(state)["native"] is True


def test_an_overlay_switches_a_shell_on_and_is_taken_back(write_run: Write, state: State, place: Path) -> None:
    identity = plan(write_run(), state)["id"]
    applied = apply(identity, state)
    overlay = place / ".logdiff" / "overlay"
    assert (applied["native"], applied["overlay"], applied["plan"]) == (False, str(overlay), identity)
    shell = subprocess.run(
        ["sh", "-c", f'. {overlay}/env.sh; printf %s "$LOGDIFF_ALIGN"'], capture_output=True, text=True, check=True
    )
    assert json.loads(Path(shell.stdout).read_text())["id"] == identity
    assert apply(identity, state)["native"] is False, "a second apply of the same plan changes nothing"
    reverted = revert(state)
    assert reverted["native"] is True
    assert {side: entry["same"] for side, entry in reverted["proof"]["dispatch"].items()} == {
        "rollout": True, "train": True,
    }  # fmt: skip
    assert not overlay.exists()
    assert revert(state)["native"] is True, "a second revert changes nothing"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("version", "rollout: engine: version 1 then, 2 now"),
        ("dispatch", "digest d0 then, d1 now"),
        ("run", "run file"),
    ],
)
def test_apply_refuses_when_something_changed_and_names_it(
    write_run: Write, state: State, monkeypatch: pytest.MonkeyPatch, change: str, words: str
) -> None:
    identity = plan(write_run(), state)["id"]
    if change == "version":
        monkeypatch.setenv("FAKE_VERSION", "2")
    elif change == "dispatch":
        monkeypatch.setenv("FAKE_DIGEST", "d1")
    else:
        write_run(sampling={"max_tokens": 5})
    with pytest.raises(InputError, match="the plan no longer holds") as error:
        apply(identity, state)
    assert words in error.value.message
    assert status(state) == {
        "format": "logdiff-align/1", "active": [], "native": True, "overlay": None, "plan": None, "problems": [],
    }  # fmt: skip


def test_only_one_overlay_is_on_at_a_time(write_run: Write, state: State) -> None:
    file = write_run()
    first, second = plan(file, state)["id"], plan(file, state, ops="rope")["id"]
    apply(first, state)
    with pytest.raises(CaseError, match="another alignment is on"):
        apply(second, state)


def test_a_changed_overlay_is_a_problem(write_run: Write, state: State) -> None:
    apply(plan(write_run(), state)["id"], state)
    with (state.default_overlay / "env.sh").open("a") as file:
        file.write("export OTHER=1\n")
    done = actions.align_status()
    assert done.exit_code == 1
    assert "env.sh is missing or changed" in done.data["problems"][0]
    assert done.data["native"] is False
    assert revert(state, bits=False)["native"] is True


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("named", ["../../../outside", "/outside", "a/b", ""])
def test_an_edited_journal_leads_nowhere_outside(write_run: Write, state: State, named: str) -> None:
    identity = plan(write_run(), state)["id"]
    apply(identity, state)
    journal = state.default_overlay / "journal.jsonl"
    journal.write_text(json.dumps({"event": "apply", "plan": named, "files": {}}) + "\n")
    revert(state, bits=False)
    assert not state.default_overlay.exists()
    assert [path.name for path in (state.root / "history").iterdir()] == ["unknown-1"]


@pytest.mark.usefixtures("asked")
def test_a_folder_in_the_place_of_the_switch_is_named(write_run: Write, state: State) -> None:
    apply(plan(write_run(), state)["id"], state)
    switch = state.default_overlay / "align.json"
    switch.unlink()
    switch.mkdir()
    with pytest.raises(CaseError, match="folder"):
        revert(state, bits=False)


def test_files_of_someone_else_stay(write_run: Write, state: State) -> None:
    identity = plan(write_run(), state)["id"]
    apply(identity, state)
    mine = state.default_overlay / "notes.txt"
    mine.write_text("mine")
    assert revert(state, bits=False)["reverted"][0]["left"] == ["notes.txt"]
    assert mine.read_text() == "mine"
    with pytest.raises(CaseError, match="files of someone else"):
        apply(identity, state)


def test_engines_that_are_not_as_before_are_not_called_native(
    write_run: Write, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(plan(write_run(), state)["id"], state)
    monkeypatch.setenv("FAKE_DIGEST", "d1")
    done = actions.align_revert(bits=False)
    assert done.exit_code == 1
    assert done.data["native"] is False
    assert status(state)["native"] is False
    assert done.data["overlay"] is None


def test_a_shell_that_still_names_the_overlay_is_not_native(
    write_run: Write, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = apply(plan(write_run(), state)["id"], state)["env"]
    monkeypatch.setenv("LOGDIFF_ALIGN", env["LOGDIFF_ALIGN"])
    found = revert(state, bits=False)
    assert found["native"] is False
    assert "which is no overlay that is on here" in found["problems"][0]


def test_without_a_record_of_before_native_is_undetermined(write_run: Write, state: State) -> None:
    identity = plan(write_run(), state)["id"]
    apply(identity, state)
    (state.root / "plans" / f"{identity}.json").unlink()
    found = revert(state, bits=False)
    assert found["native"] is None
    assert "nothing is known of the state before" in found["proof"]["undetermined"][0]


def test_restricted_plugins_are_extended_and_not_replaced(
    write_run: Write, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_run()
    assert "VLLM_PLUGINS" not in apply(plan(file, state)["id"], state)["env"]
    revert(state, bits=False)
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert apply(plan(file, state)["id"], state)["env"]["VLLM_PLUGINS"] == "mine,logdiff"


def test_a_plan_of_a_case_proves_native_by_the_bits_of_that_case(
    write_run: Write, state: State, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = actions.run(run_file=write_run(), case=place / "stock", floor="brief").data["case"]
    identity = plan(Path(stock), state)["id"]
    applied = apply(identity, state)
    assert applied["overlay"] == str(place / "stock" / "overlay")
    found = revert(state)
    assert found["native"] is True
    assert {side: entry["same"] for side, entry in found["proof"]["bits"].items()} == {
        "rollout": True, "rescore": True, "train": True,
    }  # fmt: skip
    from logdiff.case import Case

    Case.open(place / "stock").close()  # the sealed case is as it was
    apply(identity, state)
    monkeypatch.setenv("FAKE_OFFSET", "0.5")  # both engines now give other numbers
    found = revert(state)
    assert found["native"] is False
    assert found["proof"]["bits"]["train"]["same"] is False
    assert found["proof"]["dispatch"]["train"]["same"] is True


def test_a_plan_of_a_case_is_about_the_run_that_made_it(write_run: Write, place: Path) -> None:
    file = write_run(sampling={"max_tokens": 4, "seed": None}, align={"ops": ["rope"]})
    case = actions.run(run_file=file, case=place / "stock", floor=None).data["case"]
    assert read_source(Path(case))[0] == load_run_file(file)


def test_a_case_without_engines_can_not_be_planned(place: Path, state: State) -> None:
    pairs = place / "p.jsonl"
    row = {"sample_id": "a", "prompt_token_ids": [1], "response_token_ids": [2], "rollout_logprobs": [-1.0],
           "train_logprobs": [-1.0]}  # fmt: skip
    pairs.write_text("\n".join(json.dumps(r) for r in ({"format": "logdiff-pair/1", "meta": {}}, row)))
    case = actions.measure(paths=[pairs], case=place / "c").data["case"]
    with pytest.raises(CaseError, match="not made from a run file"):
        plan(Path(case), state)


def test_a_running_server_is_named_as_not_covered(write_run: Write, state: State) -> None:
    file = write_run(rollout={"engine": "vllm-http", "args": {"url": "http://127.0.0.1:1", "model": "m"}})
    data = plan(file, state, ops="all", sides="rollout,train")
    assert data["not_covered"][0]["module"] == "engine vllm-http"


def test_the_command_line_prints_each_result_and_its_exit_code(
    write_run: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> tuple[int, Any]:
        code = command(["align", *arguments, "--json"])
        return code, json.loads(capfd.readouterr().out)

    code, planned = said("plan", str(write_run()), "--ops", "linear,rope")
    assert (code, planned["ops"]) == (0, ["linear", "rope"])
    assert "facts" not in planned
    code, applied = said("apply", planned["id"])
    assert (code, applied["format"], applied["native"]) == (0, "logdiff-align/1", False)
    assert said("status")[1]["native"] is False
    assert said("revert")[0] == 0
    assert said("status") == (0, said("status")[1])
    code, error = said("apply", "nonsense")
    assert (code, error["error"]["type"]) == (2, "InputError")
    assert planned["id"] in error["error"]["hint"]
    assert command(["align", "plan", "run.yaml"]) == 0
    shown = capfd.readouterr().out
    assert "logdiff align apply" in shown
    assert command(["align", "status"]) == 0
    assert "engines: native" in capfd.readouterr().out


def test_a_file_in_the_place_of_a_folder_is_named_before_anything_is_taken_back(write_run: Write, state: State) -> None:
    made = plan(write_run(), state, ops=["rope"])
    apply(made["id"], state)
    (state.root / "history").write_text("mine")
    with pytest.raises(CaseError, match="a file stands"):
        revert(state, bits=False)
    assert status(state)["native"] is False
    (state.root / "history").unlink()
    assert revert(state, bits=False)["native"] is True


@pytest.mark.parametrize("overlay", ["x" * 5000, "a\0b"])
def test_a_damaged_plan_does_not_hide_what_is_on(write_run: Write, state: State, overlay: str) -> None:
    made = plan(write_run(), state, ops=["rope"])
    file = state.root / "plans" / "other.json"
    file.write_text(json.dumps({**made, "overlay": overlay}))
    apply(made["id"], state)
    assert status(state)["native"] is False


def test_status_of_a_folder_that_is_not_there_says_so(place: Path) -> None:
    assert "does not exist" in status(State(place / "elsewhere"))["problems"][0]
    assert status(State(place / ".logdiff"))["problems"] == []
