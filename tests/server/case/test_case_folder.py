"""A case folder says what it is, what it lacks, and whether somebody changed it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading

import pytest
from logdiff.case import Case, default_case_dir
from logdiff.case.batch import PairMeta
from logdiff.case.files import write_atomic
from logdiff.errors import CaseError, storage_error


@pytest.fixture
def whole(tmp_path, small_batch):
    case = Case.create(tmp_path / "case", "name", "measure", {"paths": ["a"]})
    case.write_meta(PairMeta({"model": "m", "odd": float("inf")}))
    with case.open_writer() as writer:
        writer.append(small_batch)
    case.write_result("measure", {"format": "logdiff-measure/1", "mean": float("nan")})
    yield case
    case.close()


def test_a_new_case_is_open_and_lists_what_it_lacks(tmp_path):
    case = Case.create(tmp_path / "case", "name", "measure", {"paths": ["a"]})
    manifest = json.loads((case.path / "manifest.json").read_text())
    assert manifest["format"] == "logdiff-case/1"
    assert (manifest["state"], manifest["kind"], manifest["inputs"]) == ("open", "measure", {"paths": ["a"]})
    assert not case.is_complete
    named = [words.split(":")[0] for words in case.missing()]
    assert named == ["meta.json", "tokens.parquet", "samples.parquet", "results/measure.json"]
    with pytest.raises(CaseError, match=r"tokens\.parquet"):
        case.seal()


def test_sealing_hashes_every_file(whole):
    whole.seal()
    files = json.loads((whole.path / "manifest.json").read_text())["files"]
    assert set(files) == {"journal.jsonl", "meta.json", "tokens.parquet", "samples.parquet", "results/measure.json"}
    for name, entry in files.items():
        data = (whole.path / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    again = Case.open(whole.path)
    assert again.is_complete
    assert again.missing() == []
    assert again.meta.facts == {"model": "m", "odd": "inf"}
    assert again.read_result("measure")["mean"] == "nan"


@pytest.mark.parametrize("name", ["tokens.parquet", "results/measure.json", "journal.jsonl"])
def test_a_changed_file_of_a_sealed_case_is_named(whole, name):
    whole.seal()
    path = whole.path / name
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CaseError, match=f"{name} has other content"):
        Case.open(whole.path)
    assert Case.open(whole.path, verify=False).is_complete  # sizes only
    path.write_bytes(data + b"x")
    with pytest.raises(CaseError, match=f"{name} has {len(data) + 1} bytes"):
        Case.open(whole.path, verify=False)
    path.unlink()
    with pytest.raises(CaseError, match=f"{name} is missing"):
        Case.open(whole.path, verify=False)


def test_a_file_added_to_a_sealed_case_does_no_harm(whole):
    whole.seal()
    (whole.path / "report.html").write_text("x")
    assert Case.open(whole.path).is_complete


def test_a_sealed_case_refuses_writes_until_it_is_opened_again(whole, small_batch):
    whole.seal()
    for write in (
        lambda c: c.journal.append("x"),
        lambda c: c.write_result("x", {}),
        lambda c: c.open_writer(),
        lambda c: c.seal(),
    ):
        with pytest.raises(CaseError, match="sealed"):
            write(Case.open(whole.path))
    with Case.open(whole.path) as case:
        case.unseal("measured again")
        case.write_result("measure", {"n": 2})
        case.seal()
    case = Case.open(whole.path)
    assert case.read_result("measure") == {"n": 2}
    assert [e["event"] for e in case.journal.read()] == ["created", "sealed", "unsealed", "sealed"]


def test_a_changed_case_is_not_unsealed(whole):
    whole.seal()
    case = Case.open(whole.path)
    (whole.path / "meta.json").write_text("{}")
    with pytest.raises(CaseError, match=r"meta\.json"):
        case.unseal("x")


def test_two_processes_do_not_write_one_case(whole):
    code = (
        "import sys\nfrom logdiff.case import Case\nfrom logdiff.errors import CaseError\n"
        "case = Case.open(sys.argv[1])\nprint(len(case.journal.read()))\n"
        "try:\n    case.journal.append('x')\nexcept CaseError as e:\n    print(e.message)\n"
    )

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code, str(whole.path)], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert other().splitlines() == ["1", "another process is writing this case"]
    whole.close()
    assert other().splitlines() == ["1"]


def test_a_case_sealed_meanwhile_is_not_written(whole):
    late = Case.open(whole.path)
    whole.seal()
    with pytest.raises(CaseError, match="sealed by another process"):
        late.write_result("x", {})


def test_a_child_of_the_writer_does_not_keep_the_lock(whole):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        whole.close()
        with Case.open(whole.path) as case:
            case.journal.append("x")
        child.communicate(b"\n")


def test_create_refuses_a_folder_that_holds_something(whole, tmp_path):
    with pytest.raises(CaseError, match="already holds"):
        Case.create(whole.path, "n", "run", {})
    (tmp_path / "empty").mkdir()
    Case.create(tmp_path / "empty", "n", "run", {}).close()
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaseError, match="can't be made"):
        Case.create(tmp_path / "file", "n", "run", {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "manifest.json is missing"),
        ("{half", "can't be read"),
        ("[]", "not of format"),
        ('{"format": "logdiff-case/9"}', "not of format"),
        ('{"format": "logdiff-case/1"}', "id must be text"),
    ],
)
def test_what_is_no_case_is_named(tmp_path, content, words):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(CaseError, match=words):
        Case.open(tmp_path)
    with pytest.raises(CaseError, match="no case folder"):
        Case.open(tmp_path / "none")


def test_a_manifest_cannot_point_outside_its_case(whole):
    whole.seal()
    path = whole.path / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in ("../secret", "/etc/passwd"):
        path.write_text(json.dumps(manifest | {"files": {name: {"sha256": "", "size": 0}}}))
        with pytest.raises(CaseError, match="wrong way"):
            Case.open(whole.path)


def test_files_are_written_inside_the_case_only(whole, tmp_path):
    for name in ("../x.json", "/tmp/x.json", "results/../../x.json", ""):
        with pytest.raises(CaseError, match="inside"):
            whole.write_json(name, {})
    whole.write_json("sides/rollout/fingerprint.json", {"a": 1})
    assert json.loads((whole.path / "sides/rollout/fingerprint.json").read_text()) == {"a": 1}


def test_an_absent_or_damaged_result_is_an_error_with_a_way_out(whole):
    with pytest.raises(CaseError, match=r"no results/floor\.json") as caught:
        whole.read_result("floor")
    assert caught.value.hint
    (whole.path / "results" / "measure.json").write_text("{")
    with pytest.raises(CaseError, match="can't be read"):
        whole.read_result("measure")


def test_recorded_work_counts_only_while_its_files_are_unchanged(whole):
    capture = whole.path / "captures" / "step0" / "generate.safetensors"
    capture.parent.mkdir(parents=True)
    capture.write_bytes(b"tokens")
    assert whole.recorded_outputs("generate-0") is None
    whole.record_outputs("generate-0", [capture], step=0)
    record = whole.recorded_outputs("generate-0")
    assert record["files"] == {"captures/step0/generate.safetensors": hashlib.sha256(b"tokens").hexdigest()}
    assert record["step"] == 0
    assert whole.missing() == []
    capture.write_bytes(b"other")
    assert whole.recorded_outputs("generate-0") is None
    assert any("generate.safetensors" in words and "generate-0" in words for words in whole.missing())
    whole.record_outputs("generate-0", [capture])
    assert whole.missing() == []


def test_journal_lines_of_threads_never_mix(whole):
    threads = [
        threading.Thread(target=lambda n=n: [whole.journal.append("e", n=n, text="x" * 500) for _ in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = [e for e in whole.journal.read() if e["event"] == "e"]
    assert sorted(e["n"] for e in events) == sorted(list(range(4)) * 20)
    assert all(e["time"] and e["text"] == "x" * 500 for e in events)


def test_default_folders_never_collide(tmp_path):
    made = [default_case_dir("a/b c", tmp_path / "runs") for _ in range(5)]
    assert len(set(made)) == 5
    assert all(
        p.is_dir() and p.parent == tmp_path / "runs" and p.name.split("-", 2)[2].startswith("a-b-c") for p in made
    )


def test_opening_a_case_imports_no_array_library():
    code = "import sys\nfrom logdiff.case import Case\nprint([m for m in ('pyarrow', 'duckdb') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert out.stdout.strip() == "[]"


def test_a_page_drawn_into_a_case_is_no_evidence_however_often_it_is_drawn_and_sealed(whole):
    path = whole.path
    whole.seal()
    for text in ("first", "second, longer"):
        (path / "report.html").write_text(text)
        (path / "histogram.png").write_bytes(text.encode())
        case = Case.open(path)
        case.unseal("measured again")
        case.seal()
        case.close()
    assert not {"report.html", "histogram.png"} & Case.open(path).manifest.files.keys()


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"out\.json") as caught:
        write_atomic(tmp_path / "out.json", b"x")
    told = storage_error(caught.value)
    assert told is not None
    assert (told.exit_code, told.value) == (2, str(tmp_path / "out.json"))
    assert "free space" in told.hint
