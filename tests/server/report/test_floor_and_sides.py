from __future__ import annotations

from logdiff.measure import floor_summary
from logdiff.report.floor import ROW_LIMIT, read_floor
from logdiff.report.sides import flatten, side_table


def _axis(side: str, axis: str, value: object, size: float, tokens: int = 5) -> dict[str, object]:
    numbers = {"max_abs": size, "mean_abs": size / 2, "p99": size, "tokens": tokens, "mismatched_tokens": int(size > 0)}
    return {"side": side, "axis": axis, "value": value, **numbers}


def test_every_axis_is_a_row_and_the_reference_is_the_largest_of_each() -> None:
    floor = read_floor(
        floor_summary(
            [_axis("rollout", "batch", 1, 0.25), _axis("train", "rerun", None, 0.0), _axis("train", "x", 1, 0, 0)]
        )
    )
    assert [(row.name, row.max_abs) for row in floor.rows] == [("rollout: batch 1", 0.25), ("train: rerun", 0.0)]
    assert floor.reference is not None
    assert (floor.reference.max_abs, floor.reference.mean_abs) == (0.25, 0.125)
    assert floor.empty == ["train/x=1"]


def test_no_floor_and_broken_floors_give_no_row() -> None:
    for broken in ({}, {"axes": "text"}, {"axes": [1, None, {"side": 3}]}, {"max_abs": []}):
        floor = read_floor(broken)
        assert floor.rows == []
        assert floor.reference is None


def test_axes_beyond_the_limit_are_counted() -> None:
    floor = read_floor(floor_summary([_axis("train", "batch", n, 0.5) for n in range(ROW_LIMIT + 3)]))
    assert (len(floor.rows), floor.left_out) == (ROW_LIMIT, 3)


def test_sides_are_split_into_differing_equal_and_one_sided_keys() -> None:
    shown = side_table(
        {
            "rollout": {"format": "f", "config": {"dtype": "bfloat16", "block_size": 16}, "packages": {"torch": "2.1"}},
            "train": {"format": "f", "config": {"dtype": "float32"}, "packages": {"torch": "2.1"}},
        }
    )
    assert [(r.key, r.rollout, r.train) for r in shown.differing] == [("config.dtype", "bfloat16", "float32")]
    assert [(r.key, r.kind) for r in shown.single] == [("config.block_size", "single")]
    assert [r.key for r in shown.equal] == ["packages.torch"]


def test_values_that_python_calls_equal_but_json_does_not_are_different() -> None:
    shown = side_table({"rollout": {"a": True, "b": 1}, "train": {"a": 1, "b": 1.0}})
    assert [r.key for r in shown.differing] == ["a", "b"]


def test_one_missing_fingerprint_makes_no_key_look_equal_or_different() -> None:
    shown = side_table({"rollout": {"a": 1}})
    assert shown.differing == shown.equal == []
    assert [r.train for r in shown.single] == ["–"]


def test_deep_objects_are_flattened_only_so_far() -> None:
    deep: object = "end"
    for _ in range(50):
        deep = {"x": deep}
    (key,) = flatten(deep)
    assert key == "x.x.x.x.x.x"


def test_a_null_is_unknown_and_no_difference() -> None:
    shown = side_table({"rollout": {"seed": 7, "mode": None}, "train": {"seed": None, "mode": None}})
    assert shown.differing == shown.equal == []
    assert [(r.key, r.rollout, r.train) for r in shown.single] == [
        ("seed", "7", "unknown"),
        ("mode", "unknown", "unknown"),
    ]


def test_axes_that_were_not_measured_keep_their_reason() -> None:
    skipped = [{"side": "rollout", "axis": "restart", "value": "same", "reason": "a running server"}]
    floor = read_floor({**floor_summary([_axis("train", "batch", 1, 0.5)]), "skipped": skipped})
    assert floor.skipped == [("rollout: restart", "a running server")]


def test_the_floor_says_which_share_of_the_tokens_it_was_measured_on() -> None:
    part = {"samples": 3, "of_samples": 8, "tokens": 4000, "of_tokens": 12000, "budget": 4096}
    assert read_floor({"measured_on": part}).measured_on.startswith(
        "measured on 3 of 8 samples, 4,000 of 12,000 tokens"
    )
