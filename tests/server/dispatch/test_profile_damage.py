"""A profile that can't be read is refused with the file's name and a way out; nothing in one is run or followed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import tracemalloc
from pathlib import Path

import make_profile as made
import pytest
from logdiff.dispatch.ascend_profile import profile_result
from logdiff.dispatch.ascend_profile import records as profile_records
from logdiff.errors import EvidenceError, InputError, LogdiffError

OPS = [made.Op("MatMulV2", times=40, torch_op="aten::mm", module="Linear_0"), made.Op("RmsNorm", times=40)]


def refused(path: Path, kind: type[LogdiffError] = InputError) -> LogdiffError:
    with pytest.raises(kind) as caught:
        profile_result([path])
    assert str(path) in str(caught.value.value)
    assert caught.value.hint
    assert caught.value.exit_code == 2
    return caught.value


def test_a_database_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = made.database(tmp_path / "whole.db", OPS).read_bytes()
    file = tmp_path / "cut.db"
    for part in range(20):
        file.write_bytes(whole[: len(whole) * part // 20])
        error = refused(file)
        assert "empty" in error.message if part == 0 else "half-written" in error.message
        file.unlink()


def test_flipped_bytes_never_end_in_anything_but_a_result_or_a_refusal(tmp_path: Path) -> None:
    whole = bytearray(made.database(tmp_path / "whole.db", OPS).read_bytes())
    draw, file, errors = random.Random(5), tmp_path / "flipped.db", []
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 3, 30])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data)
        try:
            assert profile_result([file])["profile"]["sides"][0]["tasks"] > 0
        except LogdiffError as error:
            errors.append(error)
    assert all(error.exit_code == 2 and error.hint and str(file) in str(error.value) for error in errors)
    assert len(errors) > 20  # damage to the structure is noticed; a changed number inside a cell can't be


@pytest.mark.parametrize(
    ("table", "part"), [("TASK", "TASK"), ("COMPUTE_TASK_INFO", "no operator"), ("STRING_IDS", "names")]
)
def test_a_missing_table_is_named(tmp_path: Path, table: str, part: str) -> None:
    file = made.database(tmp_path / "a.db", OPS)
    with sqlite3.connect(file) as db:
        db.execute(f"alter table {table} rename to {table}_OF_ANOTHER_VERSION")
        if table == "TASK":
            db.execute("drop table COMMUNICATION_OP")
    db.close()
    error = refused(file, LogdiffError)
    assert part in error.message


def test_a_renamed_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", OPS)
    with sqlite3.connect(file) as db:
        db.execute("alter table TASK rename column startNs to begin")
    db.close()
    error = refused(file)
    assert "startNs" in error.message
    assert "begin" in error.message


def test_a_database_without_tables_or_operators_proves_nothing(tmp_path: Path) -> None:
    bare = tmp_path / "bare.db"
    with sqlite3.connect(bare) as db:
        db.execute("pragma user_version = 1")
    db.close()
    assert "no table" in refused(bare).message
    assert "no operator" in refused(made.database(tmp_path / "idle.db", []), EvidenceError).message


def test_a_database_that_another_process_writes_is_refused_and_read_afterwards(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", OPS)
    hold = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('begin exclusive'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", hold, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert "locked" in refused(file).message
    finally:
        child.communicate(timeout=30)
    assert profile_result([file])["profile"]["sides"][0]["tasks"] == 80


def test_changes_still_beside_a_database_are_not_passed_over(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", OPS)
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("pragma journal_mode = wal")
    writer.execute("pragma wal_autocheckpoint = 0")
    writer.execute("delete from COMPUTE_TASK_INFO where globalTaskId > 40")
    error = refused(file)
    assert "a.db-wal" in error.message
    writer.close()  # the last one out brings the changes in
    before = sorted(p.name for p in tmp_path.iterdir())
    assert profile_result([file])["profile"]["sides"][0]["tasks"] == 40
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_database_is_read_from_a_folder_that_nothing_can_be_written_to(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", OPS)
    with sqlite3.connect(file) as db:
        db.execute("pragma journal_mode = wal")
    db.close()
    before, names = file.read_bytes(), sorted(p.name for p in tmp_path.iterdir())
    profile_result([file])
    assert file.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_views_and_virtual_tables_are_not_run(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", OPS, without=["TASK", "COMMUNICATION_OP"])
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select i as startNs from n"
    with sqlite3.connect(file) as db:
        db.execute(f"create view TASK as {endless}")
    db.close()
    assert "no device tasks" in refused(file).message


def test_a_name_that_would_end_a_quoted_one_is_only_a_name(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", OPS)
    with sqlite3.connect(file) as db:
        db.execute('create table "x""; drop table TASK; --" (a)')
    db.close()
    assert profile_result([file])["profile"]["sides"][0]["tasks"] == 80


@pytest.mark.parametrize("name", ["notes.db", "kernel_details.csv"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)
    refused(file)


def test_folders_without_profiles_and_paths_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent"):
        assert "ascend_pytorch_profiler*.db" in refused(path).hint


def test_a_table_cut_off_in_a_row_is_refused_by_line_and_after_a_row_it_is_noted(tmp_path: Path) -> None:
    file = made.kernel_table(tmp_path / "kernel_details.csv", OPS)
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    file.write_text("".join(lines[:5]) + lines[5][: len(lines[5]) // 2])
    assert "line 6" in refused(file).message
    file.write_text(text.rstrip("\n"))
    (capture,) = profile_result([file])["profile"]["sides"][0]["captures"]
    assert any("may be cut off" in note for note in capture["notes"])
    file.write_text(lines[0])
    assert "no kernel" in refused(file, EvidenceError).message
    file.write_text("")
    assert "empty" in refused(file).message
    file.write_text("a,b\n1,2\n")
    assert "no column" in refused(file).message


def test_a_row_without_a_valid_duration_is_counted_not_believed(tmp_path: Path) -> None:
    file = made.kernel_table(tmp_path / "kernel_details.csv", [made.Op("MatMulV2", times=3)])
    lines = file.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace(",1.000,", ",nan,")
    lines[3] = lines[3].replace(",1.000,", ",-5,")
    file.write_text("".join(lines))
    (capture,) = profile_result([file])["profile"]["sides"][0]["captures"]
    assert (capture["tasks"], capture["notes"]) == (1, ["2 rows have no valid duration and are left out"])


def test_too_many_kinds_are_an_error_not_an_exhausted_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tasks", "csv_tables"):
        monkeypatch.setattr(f"logdiff.dispatch.ascend_profile.{module}.MAX_KINDS", 50)
    many = [made.Op("Add", shapes=f"{i}") for i in range(60)]
    assert profile_records.MAX_KINDS > 50
    for file in (made.database(tmp_path / "a.db", many), made.kernel_table(tmp_path / "k.csv", many)):
        assert "different kinds" in refused(file).message


def test_memory_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    peaks = []
    for times in (1_000, 10_000):
        file = made.database(tmp_path / f"{times}.db", [made.Op("MatMulV2", "aclnnMatmul", times=times)])
        tracemalloc.start()
        assert profile_result([file])["profile"]["sides"][0]["tasks"] == times
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 100_000
