"""Profiles are read as documented: every spelling, every source, and what called what."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import make_profile as made
import pytest
from logdiff.dispatch.ascend_profile import profile_result

MATMUL = made.Op("MatMulV2", name="aclnnMatmul_MatMulCommon_MatMulV2", times=3, ns=2000, blocks=20, mix_blocks=2)
NORM = made.Op(
    "RmsNorm", shapes="128,4096;4096", formats="ND;ND", core="AI_VECTOR_CORE", blocks=48, attributes="epsilon: 1e-06"
)


def work(*paths: Path, op_type: str, side: str = "rollout") -> dict[str, Any]:
    rows = profile_result(paths)["profile"]["work"]
    (row,) = [r for r in rows if r["op_type"] == op_type and r["side"] == side]
    return dict(row)


@pytest.mark.parametrize("old", [False, True])
def test_every_field_of_a_database_comes_back_as_it_was_written(tmp_path: Path, old: bool) -> None:
    file = made.database(tmp_path / "ascend_pytorch_profiler.db", [MATMUL, NORM], old=old)
    row = work(file, op_type="MatMulV2")
    assert (
        row
        | {
            "name": MATMUL.name,
            "input_shapes": MATMUL.shapes,
            "output_shapes": MATMUL.out_shapes,
            "input_types": "BF16;BF16",
            "output_types": "BF16",
            "input_formats": "ND;ND",
            "core": "AI_CORE",
            "blocks": "20",
            "mix_blocks": "2",
            "state": "dynamic",
            "hf32": "NO",
            "count": 3,
            "time_ns": 3 * 2000,
            "least_ns": 2000,
            "most_ns": 2000,
            "streams": [7],
        }
        == row
    )
    assert work(file, op_type="RmsNorm")["attributes"] == "epsilon: 1e-06"
    assert "attributes" not in row  # N/A is nothing


def test_block_shape_of_newer_versions_is_not_taken_for_a_number_of_cores(tmp_path: Path) -> None:
    file = made.database(tmp_path / "msprof_1.db", [MATMUL])
    with sqlite3.connect(file) as db:
        db.execute("insert into STRING_IDS values (9001, '2,3,4'), (9002, '5,6,7')")
        db.execute("update COMPUTE_TASK_INFO set gridDim = 9001, blockDim = 9002")
    db.close()
    row = work(file, op_type="MatMulV2")
    assert (row["blocks"], row["grid"]) == ("20", "grid 2,3,4, block 5,6,7")


@pytest.mark.parametrize("keyed", [True, False])
def test_callers_are_the_innermost_operator_and_module(tmp_path: Path, keyed: bool) -> None:
    inside = MATMUL.but(torch_op="aten::mm", module="Qwen3MLP_0", times=2)
    outside = MATMUL.but(torch_op="aten::linear", times=1)
    unknown = NORM.but(times=4)
    file = made.database(tmp_path / "a.db", [inside, outside, unknown], keyed_strings=keyed)
    assert work(file, op_type="MatMulV2")["callers"] == [
        {"torch_op": "aten::mm", "module": "Qwen3MLP_0", "count": 2},
        {"torch_op": "aten::linear", "module": None, "count": 1},
    ]
    assert work(file, op_type="RmsNorm")["callers"] == []


def test_a_database_without_torch_tables_says_so_and_is_read(tmp_path: Path) -> None:
    file = made.database(tmp_path / "msprof_20260101.db", [MATMUL], torch=False)
    (capture,) = profile_result([file])["profile"]["sides"][0]["captures"]
    assert capture["notes"] == ["no torch operators were recorded (no table PYTORCH_API)"]
    assert capture["tasks"] == 3
    assert capture["facts"]["chip"] == "Ascend910B1"


def test_collectives_have_their_algorithm_and_events_are_only_counted(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", [MATMUL], [made.Collective(times=5)])
    row = work(file, op_type="hcom_allReduce_")
    assert row | {"kind": "communication", "algorithm": "MESH-RING", "input_types": "BFP16", "count": 5} == row
    assert profile_result([file])["profile"]["sides"][0]["others"] == {"EVENT_RECORD": 1}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("summary", [False, True])
def test_tables_give_the_same_as_the_database(tmp_path: Path, summary: bool, old: bool) -> None:
    table = made.kernel_table(tmp_path / "t.csv", [MATMUL, NORM.but(attributes=made.NA)], summary=summary, old=old)
    file = made.database(tmp_path / "t.db", [MATMUL, NORM.but(attributes=made.NA)])
    found = profile_result([file, table])["profile"]
    assert found["verdict"] == "same"
    assert not [d for d in found["differences"] if d["kind"] not in ("count", "time")]


def test_level_0_tables_are_known_by_name_alone_and_prove_nothing(tmp_path: Path) -> None:
    rows = [MATMUL.but(times=1), NORM]
    tables = [made.kernel_table(tmp_path / n / "kernel_details.csv", rows, level0=True) for n in "ab"]
    found = profile_result(tables)["profile"]
    assert found["verdict"] == "undetermined"
    assert "input_shapes" in found["why"]
    assert "Level1" in found["why"]


def test_operator_details_are_summed_by_operator_and_shape(tmp_path: Path) -> None:
    file = made.operator_table(
        tmp_path / "operator_details.csv",
        [
            ("aten::mm", "128,4096;4096,4096", 3.5, 20),
            ("aten::mm", "128,4096;4096,4096", 1.5, 22),
            ("aten::add", "", 1, 0),
        ],
    )
    rows = profile_result([file])["profile"]["torch_ops"]
    assert rows[0] == {
        "side": "rollout", "name": "aten::mm", "input_shapes": "128,4096;4096,4096", "count": 2,
        "host_self_ns": 5000, "device_self_ns": 42000,
    }  # fmt: skip


def test_a_folder_of_ranks_is_one_side_and_odd_ranks_are_named(tmp_path: Path) -> None:
    for rank in range(4):
        home = tmp_path / f"host_{rank}_2026_ascend_pt"
        ops = [MATMUL] if rank != 2 else [MATMUL.but(formats="ND;FRACTAL_NZ")]
        made.database(home / "ASCEND_PROFILER_OUTPUT" / f"ascend_pytorch_profiler_{rank}.db", ops, rank=rank)
        made.kernel_table(home / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", ops)
    (side,) = profile_result([tmp_path])["profile"]["sides"]
    assert [(c["label"], c["odd"]) for c in side["captures"]] == [
        ("rank 0", False), ("rank 1", False), ("rank 2", True), ("rank 3", False),
    ]  # fmt: skip
    assert side["tasks"] == 4 * 3  # the tables of the same captures are not counted again
    assert sum("kernel_details.csv" in line for line in side["left_out"]) == 4


def test_the_rank_of_tables_is_told_by_the_profilers_own_file(tmp_path: Path) -> None:
    home = tmp_path / "w_ascend_pt"
    made.kernel_table(home / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", [MATMUL])
    (home / "profiler_info_5.json").write_text("{}")
    (side,) = profile_result([tmp_path])["profile"]["sides"]
    assert [c["rank"] for c in side["captures"]] == [5]


def test_slices_of_one_summary_are_one_capture_and_a_later_export_replaces_an_earlier_one(tmp_path: Path) -> None:
    output = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    made.kernel_table(output / "op_summary_slice_0_1.csv", [MATMUL], summary=True)
    made.kernel_table(output / "op_summary_slice_1_1.csv", [NORM], summary=True)
    (side,) = profile_result([tmp_path])["profile"]["sides"]
    assert [c["tasks"] for c in side["captures"]] == [4]
    made.database(tmp_path / "PROF_1" / "msprof_100.db", [MATMUL])
    made.database(tmp_path / "PROF_1" / "msprof_200.db", [MATMUL, NORM, NORM])
    (side,) = profile_result([tmp_path])["profile"]["sides"]
    assert [c["tasks"] for c in side["captures"]] == [5]


def test_links_inside_a_folder_are_not_followed(tmp_path: Path) -> None:
    outside = made.database(tmp_path / "outside" / "msprof_1.db", [NORM])
    made.database(tmp_path / "in" / "msprof_2.db", [MATMUL])
    (tmp_path / "in" / "msprof_3.db").symlink_to(outside)
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (side,) = profile_result([tmp_path / "in"])["profile"]["sides"]
    assert side["tasks"] == 3
    assert len([line for line in side["left_out"] if "symbolic link" in line]) == 2
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert profile_result([tmp_path / "link"])["profile"]["sides"][0]["tasks"] == 3


def test_names_that_a_database_lacks_are_shown_by_number(tmp_path: Path) -> None:
    file = made.database(tmp_path / "a.db", [MATMUL])
    with sqlite3.connect(file) as db:
        db.execute("update COMPUTE_TASK_INFO set opType = 777777")
    db.close()
    found = profile_result([file])["profile"]
    assert [row["op_type"] for row in found["op_types"]] == ["string 777777"]
    assert any("not in STRING_IDS" in note for note in found["sides"][0]["captures"][0]["notes"])
