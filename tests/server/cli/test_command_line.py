"""The command line: one JSON object on standard output, exit codes, and errors with value and way out."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from logdiff import actions
from logdiff.actions.capture import _vllm_missing
from logdiff.cli import app, capture
from logdiff.cli.app import run
from logdiff.cli.progress import ProgressView
from logdiff.errors import EngineError, InputError
from logdiff.target.alignment import OPERATORS
from logdiff.target.engine import Progress

HEADER = {"format": "logdiff-pair/1", "meta": {"model": "m"}}


def pair_file(path: Path, rollout: list[Any], train: list[Any], **more: Any) -> Path:
    row = {
        "sample_id": "a",
        "prompt_token_ids": [1],
        "response_token_ids": list(range(2, 2 + len(rollout))),
        "rollout_logprobs": rollout,
        "train_logprobs": train,
        **more,
    }
    path.write_text(json.dumps(HEADER) + "\n" + json.dumps(row) + "\n")
    return path


def call(capfd: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and the one JSON object of a command."""
    capfd.readouterr()
    code = run([*map(str, argv), "--json"])
    text = capfd.readouterr().out
    assert text.count("\n") == 1, text
    found: dict[str, Any] = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    return code, found


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_equal_log_probabilities_exit_0(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = call(capfd, "measure", pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.5, -1.0]))
    assert (code, found["format"]) == (0, "logdiff-measure/1")
    assert (found["measure"]["tokens"], found["measure"]["mismatched_tokens"]) == (2, 0)


def test_a_difference_exits_1_with_its_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = call(capfd, "measure", pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.25, -1.0]))
    assert code == 1
    assert found["measure"]["max_abs"] == 0.25
    assert found["measure"]["mean"] == 0.125
    assert Path(found["case"]).parent == tmp_path / "runs"
    assert (Path(found["case"]) / "results" / "measure.json").is_file()


def test_nothing_comparable_prints_the_whole_result_and_exits_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = call(capfd, "measure", pair_file(tmp_path / "p.jsonl", [-0.5], [None]))
    assert code == 2
    assert found["format"] == "logdiff-measure/1"
    assert found["measure"]["tokens"] == 0
    assert [g for g in found["gates"] if g["ok"] is False]


def test_non_finite_numbers_are_strings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.5, -math.inf])
    _, found = call(capfd, "measure", path)  # `call` refuses NaN and Infinity tokens
    assert any(g["gate"] == "finite" and g["ok"] is False for g in found["gates"])


@pytest.mark.parametrize(
    ("limits", "code"),
    [("mean_abs=0.125", 0), ("mean_abs=0.1249", 1), ("mismatched=0", 1), ("mismatched=1,max_abs=0.25", 0)],
)
def test_a_gate_for_ci_fails_only_above_its_limits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], limits: str, code: int
) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.25, -1.0])
    found_code, found = call(capfd, "measure", path, "--fail-above", limits)
    assert found_code == code
    assert bool(found["fail_above"]["exceeded"]) == (code == 1)


def test_a_case_is_measured_in_place_and_stays_sealed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.25, -1.0])
    _, first = call(capfd, "measure", path, "--case", "c")
    code, again = call(capfd, "measure", "c")
    assert code == 1
    assert again["measure"] == first["measure"]
    assert again["case"] == first["case"]
    assert json.loads((tmp_path / "c" / "manifest.json").read_text())["state"] == "complete"


def test_a_used_case_folder_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5], [-0.5])
    assert call(capfd, "measure", path, "--case", "c")[0] == 0
    code, error = call(capfd, "measure", path, "--case", "c")
    assert (code, error["error"]["type"]) == (2, "CaseError")
    assert "--case" in error["error"]["hint"]


def test_an_interrupted_measurement_is_started_again_in_its_case(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5], [-0.5])
    whole = path.read_text()
    path.write_text(whole[:-20])
    stat = path.stat()
    code, error = call(capfd, "measure", path, "--case", "c")
    assert (code, error["format"]) == (2, "logdiff-error/1")
    assert json.loads((tmp_path / "c" / "manifest.json").read_text())["state"] == "open"
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert call(capfd, "measure", path, "--case", "c")[1]["error"]["message"] == error["error"]["message"]


def test_import_query_compare_and_report_work_on_one_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a", "p": [1], "r": [5, 6], "old": [-1.0, -2.0], "new": [-1.0, -1.5]}]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    names = {"sample_id": "id", "prompt_token_ids": "p", "response_token_ids": "r"}
    names |= {"rollout_logprobs": "old", "train_logprobs": "new"}
    maps = [part for ours, theirs in names.items() for part in ("--map", f"{ours}={theirs}")]
    code, made = call(capfd, "import", "jsonl", "f.jsonl", "--case", "c", *maps)
    assert (code, made["format"]) == (0, "logdiff-case/1")
    assert made["case"] == str(tmp_path / "c")
    code, found = call(capfd, "query", "c", "select side, sum(logprob) from tokens group by side order by side")
    assert (code, found["rows"]) == (0, [["rollout", -3.0], ["train", -2.5]])
    assert call(capfd, "measure", "c")[0] == 1
    code, shown = call(capfd, "report", "c", "-o", "r.html")
    assert (code, shown["report"]) == (0, str(tmp_path / "r.html"))
    assert "<html" in (tmp_path / "r.html").read_text()
    assert call(capfd, "measure", pair_file(tmp_path / "p.jsonl", [-1.0, -2.0], [-1.0, -2.0]), "--case", "d")[0] == 0
    code, shown = call(capfd, "report", "d", "-o", "beside.html", "--before", "c", "--png", "plots")
    assert code == 0
    assert shown["plots"]
    assert all(Path(plot).is_file() for plot in shown["plots"])
    code, changed = call(capfd, "compare", "c", "d")
    assert (code, changed["format"]) == (1, "logdiff-compare/1")
    assert {"measure.max_abs"} <= {c["what"] for c in changed["changed"]}
    assert call(capfd, "compare", "d", "d") == (0, call(capfd, "compare", "d", "d")[1])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["measure"], "PAIRS"),
        (["measure", "--frob"], "--frob"),
        (["frob"], "frob"),
        (["run", "absent.yaml"], "absent.yaml"),
        (["run", "x.yaml", "--floor", "most"], "most"),
        (["measure", "absent.jsonl"], "absent.jsonl"),
        (["measure", "p.jsonl", "--fail-above", "frob=1"], "frob"),
        (["import", "frob", "p.jsonl"], "frob"),
        (["import", "jsonl", "p.jsonl", "--map", "novalue"], "novalue"),
        (["query", "absent", "select 1"], "absent"),
        (["report", "absent"], "absent"),
        (["compare", "absent", "absent"], "absent"),
        (["env", "--python", "/absent/python"], "/absent/python"),
        (["models", "build", "x", "--python", "/absent/python"], "/absent/python"),
        (["serve", "--root", "absent"], "absent"),
        (["serve", "--http", "0.0.0.0:8000"], "0.0.0.0:8000"),
    ],
)
def test_what_can_not_be_used_is_an_error_with_value_and_way_out(
    capfd: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    code, found = call(capfd, *argv)
    assert code == 2
    assert found["format"] == "logdiff-error/1"
    error = found["error"]
    assert says in f"{error['message']} {error['value']}"
    assert error["hint"]
    assert run(argv) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert "hint" in shown.err


def test_an_unforeseen_failure_is_exit_3_and_names_itself_a_bug(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "query", lambda **_: 1 / 0)
    code, found = call(capfd, "query", "c", "select 1")
    assert (code, found["error"]["type"]) == (3, "InternalError")
    assert "ZeroDivisionError" in found["error"]["message"]


def test_what_a_library_prints_never_reaches_the_json(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(**_: Any) -> actions.Done:
        print("hello from a library")
        os.write(1, b"hello from below\n")
        subprocess.run(["echo", "hello from a child"], check=True)
        return actions.Done({"format": "logdiff-env/1"})

    monkeypatch.setattr(actions, "env", noisy)
    assert call(capfd, "env") == (0, {"format": "logdiff-env/1"})
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_an_engines_own_words_reach_the_user(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(**_: Any) -> actions.Done:
        raise EngineError("unexpected keyword argument 'frob'", value="frob", hint="see the engine's arguments")

    monkeypatch.setattr(actions, "run", refuses)
    code, found = call(capfd, "run", "x.yaml")
    assert (code, found["error"]["type"], found["error"]["value"]) == (2, "EngineError", "frob")


def test_tables_are_made_from_every_kind_of_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.25, -1.0])
    assert run(["measure", str(path), "--case", "c", "--fail-above", "mean_abs=0.01"]) == 1
    shown = capfd.readouterr().out
    assert "1 (50 %)" in shown
    assert "0.250" in shown
    assert "above the limit: mean_abs" in shown
    assert str(tmp_path / "c") in shown
    assert re.search(r"gates: \d+ hold; not judged: ids, .*weights", shown)
    assert "FAILS" not in shown
    assert run(["query", "c", "select 41 + 1 as answer"]) == 0
    assert "42" in capfd.readouterr().out
    assert run(["query", "c", "select * from samples"]) == 0
    assert re.search(r"│ response_tokens +│ 2 ", capfd.readouterr().out)
    assert run(["compare", "c", "c"]) == 0
    assert "Nothing changed" in capfd.readouterr().out
    assert run(["measure", str(pair_file(tmp_path / "q.jsonl", [-0.5, -1.0], [0.25, -1.0])), "--case", "q"]) == 1
    assert "gate range FAILS" in capfd.readouterr().out
    assert run(["compare", "c", "q"]) == 1
    assert re.search(r"│ gate\.range +│ holds +│ FAILS ", capfd.readouterr().out)


@pytest.mark.parametrize(("floor", "words"), [(0.5, "within the floor"), (0.01, "above the floor"), (None, None)])
def test_the_table_says_how_the_signal_stands_to_the_floor(floor: float | None, words: str | None) -> None:
    from logdiff.cli.tables import measure_table

    block = dict.fromkeys(("max_abs", "mean_abs", "p99", "mean", "k3_kl"), 0.1) | {"tokens": 9, "mismatched_tokens": 9}
    known = {} if floor is None else dict.fromkeys(("max_abs", "mean_abs", "p99"), floor) | {"mismatched_tokens": 9}
    data = {"gates": [], "measure": block, "pairs": {"decode_train": block}, "floor": known, "case": "c"}
    said = [part for part in measure_table(data) if isinstance(part, str) and "floor" in part]
    assert [part.split(":")[0] for part in said] == ([] if words is None else [words])


def test_the_demo_prints_its_table_and_says_when_vllm_is_absent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines are left out: a measured case stands in for the live run."""
    import logdiff.live
    from logdiff.case import Case

    run(["measure", str(pair_file(tmp_path / "p.jsonl", [-0.5, -1.0], [-0.25, -1.0])), "--case", "c"])
    asked: list[Any] = []

    def live(run_file: Any, case: Any, **options: Any) -> Case:
        asked.append((run_file, options))
        return Case.open("c")

    monkeypatch.setattr(logdiff.live, "run", live)
    monkeypatch.setattr("logdiff.actions.capture._vllm_missing", lambda python: "it is not installed")
    capfd.readouterr()
    code = run(["demo", "--report", "demo.html", "--json"])
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert code == 0
    assert found["format"] == "logdiff-demo/1"
    assert (found["model"], found["rollout"]) == ("smollm2", "transformers-generate")
    assert "it is not installed" in shown.err
    assert found["aligned"]["measure"]["tokens"] == found["stock"]["measure"]["tokens"] == 2
    assert found["report"] == str(tmp_path / "demo.html")
    run_file, options = asked[0]
    assert len(Path(run_file.prompts.text).read_text().splitlines()) == 8
    assert (options["floor"], options["kind"]) == ("brief", "demo")
    again, options = asked[1]
    assert again.align.of("rollout") == again.align.of("train") == list(OPERATORS)
    assert again.align.tokens == str(tmp_path / "c"), "the aligned engines score the tokens of the stock case"
    assert (options.get("floor"), options["kind"]) == (None, "demo")
    assert run(["demo", "--model", "moe", "--report", "demo.html"]) == 0
    assert "report: " in capfd.readouterr().out
    assert asked[2][0].model == asked[3][0].model == "builtin:qwen3-moe"
    assert asked[2][0].prompts.random.count == 8


def test_vllm_is_looked_for_in_the_interpreter_that_will_run_it(tmp_path: Path) -> None:
    without = tmp_path / "python-without"
    without.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # -S: no site-packages, so no vllm
    without.chmod(0o755)
    assert _vllm_missing(str(without)) == "it is not installed"
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported to be found')")
    having = tmp_path / "python-with"
    having.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    having.chmod(0o755)
    assert _vllm_missing(str(having)) is None
    with pytest.raises(InputError, match="can't be run"):
        _vllm_missing(str(tmp_path / "absent"))


def test_progress_off_a_terminal_is_a_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressView() as view:
        for done in range(1000):
            view(Progress("generate", done + 1, 1000, "tokens"))
        view(Progress("score", 1, None, "tokens", "padded"))
        view(Progress("rollout", 0, None, "", "starting vllm"))
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "generate: 1/1000 tokens"
    assert lines[1:] == ["generate: 1000/1000 tokens", "score: padded: 1 tokens", "rollout: starting vllm"]


@pytest.mark.parametrize("how", [["--json"], []])
def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path, how: list[str]) -> None:
    run(["measure", str(pair_file(tmp_path / "p.jsonl", [-0.5] * 50, [-0.5] * 50)), "--case", "c"])
    sql = "select repeat('x', 1000) from range(900)"
    command = [sys.executable, "-m", "logdiff", "query", "c", sql, *how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


def test_sigterm_prints_a_cancelled_error_and_exits_2(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "logdiff", "measure", "pipe", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(3)  # it waits for a writer of the pipe
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert json.loads(out)["error"]["type"] == "CancelledError"


@pytest.mark.parametrize(
    ("command", "hint"), [("run", "the same --case"), ("demo", "the same --case"), ("align", "logdiff align status")]
)
def test_a_cancelled_command_says_how_to_go_on_with_options_that_it_has(command: str, hint: str) -> None:
    assert hint in app._cancelled([command, "plan", "x.yaml"]).hint
    assert "--case" not in app._cancelled(["kernels", "build"]).hint


@pytest.mark.parametrize("nohup", [True, False])
def test_a_hang_up_ends_a_command_unless_it_is_ignored_from_the_start(nohup: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "logdiff", "measure", "pipe", "--json"]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGHUP, before)
    time.sleep(3)  # it waits for a writer of the pipe
    process.send_signal(signal.SIGHUP)
    if nohup:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert json.loads(out)["error"]["type"] == "CancelledError"


def test_help_needs_no_heavy_package_and_names_every_command() -> None:
    program = (
        "import sys, logdiff.cli.app as app\n"
        "code = app.run(['--help'])\n"
        "heavy = {'numpy', 'pyarrow', 'duckdb', 'matplotlib', 'torch', 'mcp', 'httpx', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("demo", "models", "run", "measure", "compare", "import", "report", "query", "env", "serve"):
        assert f" {name} " in done.stdout


@pytest.mark.parametrize("command", ["demo", "models list", "models build", "run", "measure", "compare", "import",
                                     "report", "query", "env", "serve"])  # fmt: skip
def test_every_command_takes_json_and_explains_itself(capfd: pytest.CaptureFixture[str], command: str) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capfd.readouterr().out
    assert "--json" in text
    assert "Usage" in text


def test_app_and_capture_are_the_command_line() -> None:
    assert app.build().registered_commands
    assert capture.demo.__doc__


def shell(tmp_path: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A shell line in which `logdiff` is this interpreter's."""
    command = f"exec {sys.executable} -m logdiff {line}"
    env = {**os.environ, **variables}
    return subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("form", ["", "--json"])
def test_closed_standard_streams_change_no_exit_code(tmp_path: Path, form: str) -> None:
    pair_file(tmp_path / "p.jsonl", [-0.5], [-0.75])
    assert shell(tmp_path, f"measure p.jsonl {form} --case a >&-").returncode == 1
    assert shell(tmp_path, f"measure p.jsonl {form} --case b >&- 2>&- <&-").returncode == 1
    assert shell(tmp_path, f"measure nothing.jsonl {form} >&- 2>&-").returncode == 2


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_result_that_can_not_be_written_is_told_on_standard_error(tmp_path: Path, form: str) -> None:
    pair_file(tmp_path / "p.jsonl", [-0.5], [-0.75])
    done = shell(tmp_path, f"measure p.jsonl {form} --case a > /dev/full")
    assert done.returncode == 2
    assert "can't be written to standard output" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_without_our_arrows_still_shows_the_table(tmp_path: Path) -> None:
    pair_file(tmp_path / "p.jsonl", [-0.5], [-0.75])
    done = shell(tmp_path, "measure p.jsonl", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "decode ? train" in done.stdout


def test_a_folder_that_can_not_be_written_is_no_bug(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5], [-0.75])
    assert call(capfd, "measure", path, "--case", "c")[0] == 1
    code, error = call(capfd, "report", "c", "--png", path / "below-a-file")
    assert (code, error["error"]["type"]) == (2, "StorageError")
    assert str(path) in error["error"]["value"]
    assert error["error"]["hint"]


def test_measure_and_report_may_follow_one_another_for_ever(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = pair_file(tmp_path / "p.jsonl", [-0.5], [-0.75])
    assert call(capfd, "measure", path, "--case", "c")[0] == 1
    for _ in range(2):
        assert call(capfd, "report", "c")[0] == 0
        assert call(capfd, "measure", "c")[0] == 1
    assert call(capfd, "query", "c", "select 1")[0] == 0


def test_an_interrupt_ends_a_query_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(capfd, "measure", pair_file(tmp_path / "p.jsonl", [-0.5], [-0.75]), "--case", "c")[0] == 1
    command = [sys.executable, "-m", "logdiff", "query", "c", "select count(*) from range(1000000000000)", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(2.5)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert json.loads(text)["error"]["type"] == "CancelledError"  # at the time limit it would be an InputError


def test_text_of_a_file_is_never_markup(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain, marked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    pair_file(plain, [-0.5], [-0.75])
    text = pair_file(marked, [-0.5], [-0.75]).read_text()
    marked.write_text(text.replace('"model": "m"', '"[/x]": "[/y]"', 1))
    for path in (plain, marked):
        assert call(capfd, "measure", path, "--case", path.stem)[0] == 1
    assert run(["compare", "a", "b"]) == 1
    printed = capfd.readouterr().out
    assert "meta.[/x]" in printed
    assert "[/y]" in printed
    assert run(["query", "b", """select 1 as "[/z]" """]) == 0
    assert "[/z]" in capfd.readouterr().out
