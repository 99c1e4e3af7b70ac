"""Two profiles are told apart by every recorded field, ranked, and called equal only where that was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_profile as made
import pytest
from logdiff.dispatch.ascend_profile import profile_result
from logdiff.dispatch.ascend_profile.compare import KINDS, MILD

MATMUL = made.Op("MatMulV2", times=4, ns=3000)
NORM = made.Op("RmsNorm", shapes="128,4096;4096", core="AI_VECTOR_CORE", attributes="epsilon: 1e-06")
REDUCE = made.Collective(times=2)


def compared(tmp_path: Path, left: list[Any], right: list[Any]) -> dict[str, Any]:
    files = []
    for name, ops in (("left", left), ("right", right)):
        compute = [op for op in ops if isinstance(op, made.Op)]
        file = tmp_path / f"{name}.db"
        file.unlink(missing_ok=True)
        files.append(made.database(file, compute, [op for op in ops if not isinstance(op, made.Op)]))
    return dict(profile_result(files)["profile"])


def kinds(found: dict[str, Any]) -> list[str]:
    return [d["kind"] for d in found["differences"]]


def test_a_profile_against_itself_is_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, [MATMUL, NORM, REDUCE], [MATMUL, NORM, REDUCE])
    assert (found["verdict"], found["differences"]) == ("same", [])


@pytest.mark.parametrize(
    ("change", "kind", "field", "values"),
    [
        ({"types": "DT_BF16;FLOAT"}, "dtype", "input_types", (["BF16;BF16"], ["BF16;FLOAT"])),
        ({"out_types": "FLOAT"}, "dtype", "output_types", (["BF16"], ["FLOAT"])),
        ({"formats": "ND;FRACTAL_NZ"}, "format", "input_formats", (["ND;ND"], ["ND;FRACTAL_NZ"])),
        ({"out_formats": "NCHW"}, "format", "output_formats", (["ND"], ["NCHW"])),
        ({"core": "MIX_AIC"}, "core", "core", (["AI_CORE"], ["MIX_AIC"])),
        ({"hf32": "YES"}, "precision", "hf32", (["NO"], ["YES"])),
        ({"state": "static"}, "state", "state", (["dynamic"], ["static"])),
        ({"blocks": 8}, "blocks", "blocks", (["24"], ["8"])),
        ({"mix_blocks": 8}, "blocks", "mix_blocks", (["0"], ["8"])),
        ({"out_shapes": "1,4096"}, "output", "output_shapes", (["128,4096"], ["1,4096"])),
        ({"name": "aclnnOther"}, "name", "name", (["aclnn_MatMulV2"], ["aclnnOther"])),
    ],
)
def test_each_field_that_differs_on_the_same_shapes_is_named_with_both_values(
    tmp_path: Path, change: dict[str, Any], kind: str, field: str, values: tuple[list[str], list[str]]
) -> None:
    found = compared(tmp_path, [MATMUL, NORM], [MATMUL.but(**change), NORM])
    (difference,) = found["differences"]
    assert (difference["kind"], difference["field"], difference["op_type"]) == (kind, field, "MatMulV2")
    assert (difference["rollout"], difference["train"]) == values
    assert difference["examples"] == [MATMUL.shapes]
    assert found["verdict"] == ("same" if kind in MILD else "different")


def test_attributes_and_algorithms_are_compared_too(tmp_path: Path) -> None:
    found = compared(
        tmp_path, [NORM, REDUCE], [NORM.but(attributes="epsilon: 1e-05"), made.Collective(times=2, algorithm="HD")]
    )
    assert [(d["kind"], d["rollout"], d["train"]) for d in found["differences"]] == [
        ("algorithm", ["MESH-RING"], ["HD"]),
        ("attributes", ["epsilon: 1e-06"], ["epsilon: 1e-05"]),
    ]


def test_an_operator_of_one_side_leads_and_a_shape_of_one_side_is_counted(tmp_path: Path) -> None:
    decode = MATMUL.but(shapes="1,4096;4096,4096", out_shapes="1,4096")
    fused = made.Op("FusedInferAttentionScore", shapes="1,8,128")
    found = compared(tmp_path, [MATMUL, decode, fused, NORM], [MATMUL, NORM.but(hf32="YES")])
    assert kinds(found) == ["operator", "precision", "shapes", "count"]
    shapes = found["differences"][2]
    assert (shapes["rollout"], shapes["train"], shapes["examples"]) == ("1 of 2", "0 of 1", [decode.shapes])


def test_formats_are_compared_over_all_shapes_where_no_shape_is_shared(tmp_path: Path) -> None:
    prefill = MATMUL.but(shapes="64,4096;4096,4096", formats="ND;FRACTAL_NZ", blocks=3)
    found = compared(tmp_path, [MATMUL], [prefill])
    told = {d["kind"]: d for d in found["differences"]}
    assert set(told) == {"format", "shapes"}  # cores depend on shapes, so they are compared on the same ones alone
    assert told["format"]["basis"] == "any shapes"


def test_only_what_both_sides_recorded_is_compared(tmp_path: Path) -> None:
    left = made.database(tmp_path / "l.db", [NORM])
    right = made.kernel_table(tmp_path / "kernel_details.csv", [NORM])
    found = profile_result([left, right])["profile"]
    assert found["verdict"] == "same"
    assert found["not_compared"]["attributes"] == "recorded on the rollout side only"
    assert "attributes" in found["why"]


def test_differences_come_most_telling_first_and_by_time_within_a_kind(tmp_path: Path) -> None:
    short, long = made.Op("Short", ns=10), made.Op("Long", ns=90_000)
    found = compared(
        tmp_path, [short, long, NORM], [short.but(types="FLOAT"), long.but(types="FLOAT"), NORM.but(blocks=1)]
    )
    assert [(d["kind"], d["op_type"]) for d in found["differences"]] == [
        ("dtype", "Long"), ("dtype", "Short"), ("blocks", "RmsNorm"),
    ]  # fmt: skip
    order = list(KINDS)
    assert order.index("dtype") < order.index("format") < order.index("blocks") < order.index("count")


def test_lists_are_bounded_and_say_what_they_left_out(tmp_path: Path) -> None:
    many = [made.Op(f"Op{i}x", ns=100 + i) for i in range(30)]
    files = [made.database(tmp_path / "l.db", many), made.database(tmp_path / "r.db", [NORM])]
    found = profile_result(files, limit=10)["profile"]
    assert len(found["differences"]) == len(found["op_types"]) == 10
    assert (found["difference_count"], found["left_out"]["differences"]) == (31, 21)
    assert found["op_types"][0]["op_type"] == "RmsNorm"  # all of its side's time
