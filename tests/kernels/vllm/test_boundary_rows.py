"""Logical rows of steps, and files of ranks put together, on stand-ins, against values made here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.engines.vllm.boundaries.ranks import join  # noqa: E402
from logdiff_kernels.engines.vllm.boundaries.rows import step_rows  # noqa: E402
from logdiff_kernels.errors import EngineError  # noqa: E402
from logdiff_kernels.observe.boundaries.files import BoundaryFile, Entry, Header, given, write  # noqa: E402
from logdiff_kernels.observe.boundaries.rowhash import row_hash  # noqa: E402


def batch(**computed: int) -> Any:
    """Requests by id ("3_x" for "3-x") with the tokens that are computed before the step."""
    return SimpleNamespace(
        req_ids=[name.strip("r").replace("_", "-") for name in computed],
        num_computed_tokens_cpu=np.array(list(computed.values())),
    )


WANTED = {0: (5, 9), 2: (3, 50)}


def test_rows_of_a_mixed_step_are_named_and_others_are_left_out() -> None:
    # request 2 starts with a chunk of 4, request 1 is not kept, request 0 decodes its second token
    found, again, cached = step_rows(batch(r2_a=0, r1_b=7, r0_c=6), {"2-a": 4, "1-b": 2, "0-c": 1}, WANTED, {0: {5}})
    assert found.index.tolist() == [0, 1, 2, 3, 6]
    assert list(zip(found.sample.tolist(), found.position.tolist(), strict=True)) == [
        (2, 0), (2, 1), (2, 2), (2, 3), (0, 6),
    ]  # fmt: skip
    assert found.last.tolist() == [3, 5, 6]
    assert (found.total, again, cached) == (7, 0, {})


def test_requests_that_this_step_leaves_out_have_no_rows() -> None:
    found, _, _ = step_rows(batch(r2_a=4, r0_c=6), {"0-c": 1}, WANTED, {})
    assert found.sample.tolist() == [0]
    assert found.index.tolist() == [0]


def test_a_start_beyond_the_first_token_comes_from_the_prefix_cache() -> None:
    seen: dict[int, set[int]] = {}
    _, _, cached = step_rows(batch(r2_a=16), {"2-a": 8}, WANTED, seen)
    assert cached == {2: 16}
    assert step_rows(batch(r2_a=24), {"2-a": 8}, WANTED, seen)[2] == {}  # its next chunk is no start


def test_rows_that_are_computed_again_after_a_preemption_are_counted_and_the_first_stand() -> None:
    seen: dict[int, set[int]] = {}
    step_rows(batch(r2_a=0), {"2-a": 5}, WANTED, seen)
    found, again, cached = step_rows(batch(r2_a=0), {"2-a": 7}, WANTED, seen)
    assert again == 5
    assert found.position.tolist() == [5, 6]
    assert found.index.tolist() == [5, 6]
    assert cached == {}


def test_a_step_beyond_the_end_of_a_sample_is_none_of_its_rows() -> None:
    found, _, _ = step_rows(batch(r0_c=8), {"0-c": 3}, WANTED, {})
    assert found.position.tolist() == [8]
    assert found.total == 3


ROWS, HEADS = 5, 4


def rank_file(path: Path, rank: int, whole: dict[str, Any], **change: Any) -> Path:
    """One of two ranks: `q` in halves, `experts_out` as a term, `attn_out` whole, whose argument lies in halves."""
    half = slice(rank * HEADS, (rank + 1) * HEADS)
    tensors = {
        "rows.sample": torch.zeros(ROWS, dtype=torch.int32),
        "rows.position": torch.arange(ROWS, dtype=torch.int32),
        "rows.input_id": torch.arange(ROWS),
        "rows.pass": torch.zeros(ROWS, dtype=torch.int32),
        "layers.0.q": whole["q"][:, half],
        "layers.0.attn_out": whole["attn_out"],
        given("layers.0.attn_out"): whole["in"][:, half],
        "layers.0.experts_out": whole["terms"][rank],
        "logits": whole["logits"],
        "logits@rows": torch.tensor([3, 4], dtype=torch.int32),
        **change.get("tensors", {}),
    }
    columns = ["columns", rank * HEADS, 2 * HEADS]
    shards = {
        "layers.0.q": [columns],
        "layers.0.attn_out": [["whole", 0, 0], columns],
        "layers.0.experts_out": [["sum", 0, 0]],
        **change.get("shards", {}),
    }
    entries = [
        Entry("layers.0.q", "qkv", ("layers.0.input_norm",)),
        Entry("layers.0.attn_out", "o", ("",)),
        Entry("layers.0.experts_out", "experts"),
        Entry("logits", "head", ("final_norm",)),
    ]
    extra = {"shards": shards, "tensor_parallel": 2, "passes": 3}
    header = Header("vllm", "rollout", "decode", "m", "bfloat16", ["s"], entries, extra=extra)
    return write(path, header, {key: value.contiguous() for key, value in tensors.items()})


@pytest.fixture
def whole() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)

    def rows(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    return {
        "q": rows(ROWS, 2 * HEADS), "attn_out": rows(ROWS, 3), "in": rows(ROWS, 2 * HEADS),
        "terms": rows(2, ROWS, 3), "logits": rows(2, 7),
    }  # fmt: skip


def test_parts_of_ranks_are_put_side_by_side_and_terms_are_added(tmp_path: Path, whole: dict[str, Any]) -> None:
    paths = [rank_file(tmp_path / f"{rank}", rank, whole) for rank in (0, 1)]
    data = join(paths, str(tmp_path / "all"), "full")
    file = BoundaryFile(tmp_path / "all")
    assert torch.equal(file.tensor("layers.0.q"), whole["q"])
    assert torch.equal(file.tensor("layers.0.attn_out"), whole["attn_out"])
    assert torch.equal(file.tensor(given("layers.0.attn_out")), whole["in"])
    exact = whole["terms"].double().sum(0)
    assert torch.equal(file.tensor("layers.0.experts_out"), exact.to(torch.bfloat16))
    assert file.rows("logits").tolist() == [3, 4]
    facts = {entry.name: entry.facts for entry in file.entries()}
    assert facts["layers.0.experts_out"] == {"partial_sums": 2}
    assert "shards" not in file.header.extra
    assert (data["rows"], data["boundaries"], data["passes"]) == (ROWS, 4, 3)


def test_a_sketch_of_ranks_is_one_of_whole_rows(tmp_path: Path, whole: dict[str, Any]) -> None:
    paths = [rank_file(tmp_path / f"{rank}", rank, whole) for rank in (0, 1)]
    join(paths, str(tmp_path / "all"), "sketch")
    file = BoundaryFile(tmp_path / "all")
    assert torch.equal(file.tensor("layers.0.q#hash"), row_hash(whole["q"]))
    assert "layers.0.q" not in file


def test_ranks_that_saw_other_rows_are_told(tmp_path: Path, whole: dict[str, Any]) -> None:
    other = {"rows.input_id": torch.arange(ROWS) + 1}
    paths = [rank_file(tmp_path / "0", 0, whole), rank_file(tmp_path / "1", 1, whole, tensors=other)]
    with pytest.raises(EngineError, match="different rows"):
        join(paths, str(tmp_path / "all"), "full")


def test_features_that_no_rank_holds_are_told(tmp_path: Path, whole: dict[str, Any]) -> None:
    both_first = {"layers.0.q": [["columns", 0, 2 * HEADS]]}
    paths = [rank_file(tmp_path / "0", 0, whole), rank_file(tmp_path / "1", 1, whole, shards=both_first)]
    with pytest.raises(EngineError, match="4 of 8"):
        join(paths, str(tmp_path / "all"), "full")
