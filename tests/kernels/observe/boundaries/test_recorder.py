"""Recorder of boundaries: rows in logical order whatever the passes, inputs resolved by bits, bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries.files import BoundaryFile
from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder, Rows
from logdiff_kernels.observe.boundaries.rowhash import row_hash, row_sketch

PROMPTS = [[5, 6, 7], [8, 9]]
RESPONSES = [[1, 2], [3, 4, 11]]
WHOLE = [[*p, *r] for p, r in zip(PROMPTS, RESPONSES, strict=True)]
NAMES = ["a", "b"]


def recorder(folder: Path, **keep: Any) -> Recorder:
    return Recorder(NAMES, PROMPTS, RESPONSES, Keep(**keep), folder)


def truth(name: str, sample: int, position: int, width: int = 6) -> torch.Tensor:
    """What a boundary's row is: told by name and place, so that a misplaced row shows."""
    seed = sum(map(ord, name)) * 10007 + sample * 101 + position
    return torch.randn(width, generator=torch.Generator().manual_seed(seed))


def feed(one: Recorder, places: list[tuple[int, int]], boundaries: list[str], inputs: dict[str, list[str]]) -> None:
    """One pass over rows (sample, position); sample -1 is padding, whose values are NaN."""
    sample, position = (np.array(v) for v in zip(*places, strict=True))
    ids = [0 if s < 0 else WHOLE[s][p] for s, p in places]
    one.begin(Rows(sample, position, np.array(ids), position + 100))

    def rows(name: str) -> torch.Tensor:
        return torch.stack([truth(name, s, p) if s >= 0 else torch.full((6,), torch.nan) for s, p in places])

    for name in boundaries:
        one.give(name, rows(name), where=f"module.{name}", inputs=[rows(n) for n in inputs.get(name, [])])
    one.end()


def write(one: Recorder, folder: Path) -> tuple[BoundaryFile, dict[str, Any]]:
    data = one.write(folder / "out.safetensors", engine="e", side="train", phase="score", model="m", dtype="float32")
    one.close()
    return BoundaryFile(folder / "out.safetensors"), data


def places_of(file: BoundaryFile, name: str) -> list[tuple[int, int]]:
    at = file.rows(name)
    return list(zip(file.tensor("rows.sample")[at].tolist(), file.tensor("rows.position")[at].tolist(), strict=True))


def expect_rows(file: BoundaryFile, name: str, what: str) -> None:
    places = places_of(file, name)
    assert torch.equal(file.tensor(name), torch.stack([truth(what, s, p) for s, p in places]))


def test_rows_of_shuffled_padded_passes_come_out_by_sample_and_position(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    feed(one, [(1, 3), (-1, 0), (0, 1), (1, 2), (0, 0)], ["embedding", "layers.0.input_norm"], {})
    feed(one, [(0, 4), (-1, 0), (1, 0), (0, 2), (1, 1), (1, 4), (0, 3)], ["embedding", "layers.0.input_norm"], {})
    file, data = write(one, tmp_path)
    everything = [(s, p) for s in range(2) for p in range(5)]
    assert places_of(file, "embedding") == everything
    expect_rows(file, "embedding", "embedding")
    expect_rows(file, "layers.0.input_norm", "layers.0.input_norm")
    assert file.tensor("rows.input_id").tolist() == [i for ids in WHOLE for i in ids]
    assert file.tensor("rows.position_id").tolist() == [p + 100 for _, p in everything]
    assert file.tensor("rows.pass").tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0, 1]
    assert data["rows"] == 10
    assert data["passes"] == 2
    assert data["boundaries"] == 2
    assert data["values"] == 2 * 10 * 6


def test_a_row_that_two_passes_compute_keeps_the_last_values_and_is_noted(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    one.begin(Rows([0, 0], [0, 1], [5, 6]))
    one.give("embedding", torch.zeros(2, 3))
    one.end()
    one.begin(Rows([0], [1], [6]))
    one.give("embedding", torch.ones(1, 3))
    one.end()
    file, data = write(one, tmp_path)
    assert file.tensor("embedding").tolist() == [[0.0] * 3, [1.0] * 3]
    assert file.tensor("rows.pass").tolist() == [0, 1]
    assert "rows.position_id" not in file
    assert any("1 rows were computed by several passes" in note for note in data["notes"])


def test_only_the_samples_and_the_last_rows_asked_for_are_kept_but_every_row_of_the_cache(tmp_path: Path) -> None:
    one = recorder(tmp_path, samples=("b",), last=2)
    feed(one, [(s, p) for s in range(2) for p in range(5)], ["layers.0.v", "layers.0.q_rope", "layers.0.k_rope"], {})
    file, _ = write(one, tmp_path)
    assert file.header.sample_ids == ["b"]
    assert places_of(file, "layers.0.v") == [(0, p) for p in range(5)]
    # the last token scores nothing: the last scored rows are those of positions 2 and 3, and 4 lies after them
    assert places_of(file, "layers.0.q_rope") == [(0, 2), (0, 3), (0, 4)]
    assert torch.equal(file.tensor("layers.0.q_rope")[0], truth("layers.0.q_rope", 1, 2))


def test_rows_of_a_part_of_the_pass_are_placed_by_at_and_only_scored_ones_kept(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    one.begin(Rows([0] * 5 + [1] * 5, list(range(5)) * 2, [i for ids in WHOLE for i in ids]))
    one.give("logits", torch.arange(4.0).unsqueeze(-1), at=torch.tensor([1, 3, 6, 9]))
    one.end()
    one.logprobs(np.arange(5, dtype=np.float32), np.array([0, 1, 0, 0, 0]))
    file, _ = write(one, tmp_path)
    assert places_of(file, "logits") == [(0, 3), (1, 1)]  # 1 lies in the prompt, 9 scores nothing
    assert file.tensor("logits").tolist() == [[1.0], [2.0]]
    assert places_of(file, "logprob") == [(0, 2), (1, 1), (1, 2), (1, 3)]
    assert file.tensor("logprob").flatten().tolist() == [0.0, 2.0, 3.0, 4.0]


CHAIN = ["layers.0.input_norm", "layers.0.q", "layers.0.k", "layers.0.v", "layers.0.attn_residual"]


def test_inputs_are_named_where_their_bits_are_a_boundarys(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    fed = {n: ["layers.0.input_norm"] for n in CHAIN[1:4]} | {CHAIN[4]: ["something else", "layers.0.v"]}
    for part in ([(0, 0), (1, 0), (0, 1)], [(1, 1), (0, 2)]):
        feed(one, part, CHAIN, fed)
    file, _ = write(one, tmp_path)
    entries = {entry.name: entry for entry in file.entries()}
    assert entries["layers.0.q"].inputs == entries["layers.0.v"].inputs == ("layers.0.input_norm",)
    assert "layers.0.q<in" not in file
    assert entries[CHAIN[4]].inputs == ("", "layers.0.v")
    expect_rows_of_key(file, CHAIN[4], f"{CHAIN[4]}<in", "something else")


def expect_rows_of_key(file: BoundaryFile, name: str, key: str, what: str) -> None:
    assert torch.equal(file.tensor(key), torch.stack([truth(what, s, p) for s, p in places_of(file, name)]))


def test_an_input_that_stops_being_a_boundary_is_kept_for_all_rows(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    feed(one, [(0, 0), (1, 0)], CHAIN[:2], {CHAIN[1]: [CHAIN[0]]})
    feed(one, [(0, 1), (1, 1)], CHAIN[:2], {CHAIN[1]: ["another"]})
    file, _ = write(one, tmp_path)
    entry = next(e for e in file.entries() if e.name == CHAIN[1])
    assert entry.inputs == ("",)
    expected = [truth("another" if p else CHAIN[0], s, p) for s, p in places_of(file, CHAIN[1])]
    assert torch.equal(file.tensor("layers.0.q<in"), torch.stack(expected))


def test_an_input_whose_boundary_is_not_asked_for_is_kept(tmp_path: Path) -> None:
    one = recorder(tmp_path, boundaries=("*.q",))
    feed(one, [(0, 0), (1, 0)], CHAIN, {CHAIN[1]: [CHAIN[0]]})
    file, _ = write(one, tmp_path)
    assert [entry.name for entry in file.entries()] == ["layers.0.q"]
    expect_rows_of_key(file, "layers.0.q", "layers.0.q<in", CHAIN[0])


def test_boundaries_that_do_not_fit_are_left_out_whole_and_named(tmp_path: Path) -> None:
    room = 2 * 10 * 6 * 4
    one = recorder(tmp_path, max_bytes=room)
    for s in range(2):
        feed(one, [(s, p) for p in range(5)], ["embedding", "layers.0.input_norm", "layers.0.q"], {})
    file, data = write(one, tmp_path)
    assert [entry.name for entry in file.entries()] == ["embedding", "layers.0.input_norm"]
    assert any(note.startswith("layers.0.q was left out") for note in data["notes"])


def test_sketches_hold_hash_and_projections_of_each_row(tmp_path: Path) -> None:
    one = recorder(tmp_path, level="sketch")
    feed(one, [(1, 1), (0, 0)], ["embedding", "layers.0.input_norm"], {"layers.0.input_norm": ["embedding"]})
    file, _ = write(one, tmp_path)
    rows = torch.stack([truth("embedding", 0, 0), truth("embedding", 1, 1)])
    assert "embedding" not in file
    assert torch.equal(file.tensor("embedding#hash"), row_hash(rows))
    assert torch.equal(file.tensor("embedding#sketch"), row_sketch(rows))
    assert [e.inputs for e in file.entries()] == [(), ("embedding",)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("width", [1, 3, 8, 129])
def test_a_changed_bit_changes_the_hash(dtype: torch.dtype, width: int) -> None:
    rows = torch.randn(4, width).mul(100).to(dtype)
    raw = rows.view(torch.uint8)
    before = row_hash(rows)
    assert torch.equal(before, torch.cat([row_hash(row.unsqueeze(0)) for row in rows]))
    for byte in {0, raw.shape[1] // 2, raw.shape[1] - 1}:
        for bit in range(8):
            changed = raw.clone()
            changed[2, byte] ^= 1 << bit
            after = row_hash(changed.view(dtype))
            assert (after != before).tolist() == [False, False, True, False]


def test_two_changed_signs_and_two_swapped_features_change_the_hash() -> None:
    rows = torch.arange(1.0, 65.0).view(1, 64)
    base = int(row_hash(rows))
    seen = {base}
    for i in range(0, 64, 2):
        signs, swapped = rows.clone(), rows.clone()
        signs[0, i + 1], signs[0, (i + 3) % 64] = -signs[0, i + 1], -signs[0, (i + 3) % 64]
        swapped[0, [i, (i + 2) % 64]] = swapped[0, [(i + 2) % 64, i]]
        seen |= {int(row_hash(signs)), int(row_hash(swapped))}
    assert len(seen) == 1 + 2 * 32


def test_the_sketch_estimates_the_size_of_a_difference() -> None:
    generator = torch.Generator().manual_seed(1)
    difference = torch.randn(200, 300, generator=generator)
    estimate = row_sketch(difference).square().sum(-1) / difference.square().sum(-1)
    assert 0.9 < float(estimate.mean()) < 1.1


def test_what_is_asked_for_is_checked() -> None:
    for bad in ({"level": "half"}, {"rows": {"first": 1}}, {"rows": {"last": 0}}, {"max_bytes": -1}):
        with pytest.raises(InputError):
            Keep.parse(bad)
    with pytest.raises(InputError, match="no sample 'c'"):
        Recorder(NAMES, PROMPTS, RESPONSES, Keep(samples=("c",)), "/tmp")


def test_rows_that_do_not_fit_the_pass_are_refused(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    with pytest.raises(ValueError, match="beyond the end"):
        one.begin(Rows([0], [5], [1]))
    one.begin(Rows([0, 0], [0, 1], [5, 6]))
    with pytest.raises(ValueError, match="3 rows"):
        one.give("embedding", torch.zeros(3, 2))
    with pytest.raises(ValueError, match="no boundary"):
        one.give("layers.0.nothing", torch.zeros(2, 2))
    one.close()
