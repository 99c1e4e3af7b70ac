"""Boundary names have one order, and boundary files give back what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import BoundaryFile, Entry, Header, write


def test_names_sort_in_the_order_in_which_a_model_passes_them() -> None:
    passed = ["embedding", "layers.0.input_norm", "layers.0.context", "layers.0.residual", "layers.2.q", "layers.10.q"]
    assert sorted([*reversed(passed), "logits"], key=names.order) == [*passed, "logits"]


def test_every_boundary_has_an_operator() -> None:
    assert set(names.OPERATORS) == {*names.BEFORE, *names.LAYER, *names.AFTER}


@pytest.mark.parametrize("name", ["layers.x.q", "layers.1.nothing", "q", "model.layers.1.q"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no boundary"):
        names.parse(name)


def test_a_file_gives_back_rows_and_header(tmp_path: Path) -> None:
    rows = torch.arange(5, dtype=torch.int32)
    entry = Entry("layers.0.q", "model.layers.0.self_attn.qkv_proj", ("layers.0.input_norm",), {"bias": False})
    header = Header("vllm", "rollout", "decode", "folder", "bfloat16", ["a"], [entry], [{"where": "x", "why": "y"}])
    values = torch.randn(2, 3).to(torch.bfloat16)
    tensors = {"rows.sample": rows * 0, "rows.position": rows, "layers.0.q": values}
    tensors["layers.0.q@rows"] = torch.tensor([1, 4], dtype=torch.int32)
    found = BoundaryFile(write(tmp_path / "b.safetensors", header, tensors))
    assert found.header == header
    assert torch.equal(found.tensor("layers.0.q").view(torch.int16), values.view(torch.int16))
    assert found.rows("layers.0.q").tolist() == [1, 4]


def test_another_file_is_an_input_error(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"{}")
    with pytest.raises(InputError, match="can't read"):
        BoundaryFile(other)
