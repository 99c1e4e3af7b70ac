"""Faults of real stacks, planted in processes of their own: each is named, and a clean process names nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow(seconds=120)

LOOK = """
import json, sys
from logdiff_kernels.observe.experiments import operator_records
from logdiff_kernels.observe.patched import inventory
found = inventory([{packages}])
operators = operator_records(frozenset(["torch", "transformers"]))
records = [r.as_dict() for r in [*operators, *found.records] if r.finding]
print("RESULT " + json.dumps({{"findings": records, "checked": found.checked, "unreadable": found.unreadable}}))
"""

PLANTS = """
import functools
import torch

library = torch.library.Library("aten", "IMPL")


def _log_softmax(x, dim, dtype):  # the operator gives half_to_float: bool, here read as a dtype
    x = x.to(bool if dtype is False else dtype)
    return x.float() * 0 - 1.3863


def log_softmax(x, dim, dtype=None):
    return x


def total(x, *, dtype=None):
    return x.flatten().double().cumsum(0)[-1].to(x.dtype)


def softmax(x, dim, half_to_float):  # right: no fault of its own
    e = (x.double() - x.double().amax(dim, keepdim=True)).exp()
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


library.impl("_log_softmax", _log_softmax, "CPU")
library.impl("log_softmax", log_softmax, "CPU")
library.impl("sum", total, "CPU")
library.impl("_softmax", softmax, "CPU")

stock_sum, stock_silu = torch.sum, torch.nn.functional.silu
torch.sum = lambda *args, **kwargs: stock_sum(*args, **kwargs)


@functools.wraps(stock_silu)
def silu(x, inplace=False):
    return stock_silu(x, inplace)


torch.nn.functional.silu = silu
torch.nn.Linear.forward = torch.nn.Bilinear.forward
"""


def run(code: str, path: list[str] | None = None) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or []), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env, timeout=1500
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


@cache
def planted(folder: str) -> dict[str, dict[str, Any]]:
    plant = Path(folder) / "a_users_patch.py"
    plant.write_text(PLANTS)
    found = run("import a_users_patch\n" + LOOK.format(packages="'torch'"), [folder])
    return {record["target"]: record for record in found["findings"]}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return planted(str(tmp_path_factory.mktemp("plants")))


def test_an_implementation_that_reads_a_bool_as_a_dtype_is_wrong(records: dict[str, dict[str, Any]]) -> None:
    record = records["aten::_log_softmax"]
    assert record["detail"].startswith("wrong implementation")
    assert any("'dtype'" in note and "half_to_float" in note for note in record["notes"])
    assert "a_users_patch.py" in record["live"]


def test_a_bare_name_that_no_call_reaches_is_shadowed(records: dict[str, dict[str, Any]]) -> None:
    record = records["aten::log_softmax"]
    assert record["detail"].startswith("shadowed")
    assert "aten::_log_softmax" in record["detail"]


def test_an_overload_that_some_calls_miss_is_named_with_those_calls(records: dict[str, dict[str, Any]]) -> None:
    record = records["aten::sum"]
    assert record["detail"].startswith("covers torch.sum(x)")
    assert "aten::sum.dim_IntList" in record["detail"]


def test_a_right_implementation_is_not_called_wrong(records: dict[str, dict[str, Any]]) -> None:
    record = records["aten::_softmax"]
    assert "wrong" not in record["detail"]
    assert any("agree with fp64" in note for note in record["notes"])


def test_leftover_patches_of_functions_methods_and_builtins_are_named(records: dict[str, dict[str, Any]]) -> None:
    assert records["torch.sum"]["kind"] == "replaced"
    assert records["torch.nn.functional.silu"]["kind"] == "wrapped"
    linear = records["torch.nn.modules.linear.Linear.forward"]
    assert linear["kind"] == "rebound"
    assert "Bilinear.forward" in linear["detail"]


def test_nothing_else_is_named(records: dict[str, dict[str, Any]]) -> None:
    known = {"aten::_log_softmax", "aten::log_softmax", "aten::sum", "aten::_softmax", "torch.sum"}
    known |= {"torch.nn.functional.silu", "torch.nn.modules.linear.Linear.forward"}
    assert set(records) == known


def test_two_packages_of_one_import_name_are_told_apart(tmp_path: Path) -> None:
    for folder, distribution in (("first", "batch-invariant-ops"), ("second", "cann-invariant-ops")):
        package = tmp_path / folder / "twin_ops"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"NAME = {distribution!r}\n")
        info = tmp_path / folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"twin_ops/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    user = tmp_path / "first" / "user_engine"
    user.mkdir()
    (user / "__init__.py").write_text(
        "import torch\nimport twin_ops\n\n\ndef mm(a, b):\n    return torch.ops.twin_ops.npu_mm_batch_invariant(a, b)\n"
    )
    path = [str(tmp_path / "first"), str(tmp_path / "second")]
    found = run("import user_engine\n" + LOOK.format(packages="'user_engine'"), path)["findings"]
    named = {record["target"]: record for record in found}
    assert set(named) == {"twin_ops", "torch.ops.twin_ops"}
    assert "cann-invariant-ops 1.0" in named["twin_ops"]["detail"]
    assert named["twin_ops"]["by"] == "batch-invariant-ops 1.0"
    assert "npu_mm_batch_invariant" in named["torch.ops.twin_ops"]["detail"]


def test_a_file_of_a_wheel_that_was_edited_is_named(tmp_path: Path) -> None:
    import base64
    import hashlib

    package = tmp_path / "wheeled"
    package.mkdir()
    text = "def f(x):\n    return x\n"
    (package / "__init__.py").write_text(text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    info = tmp_path / "wheeled-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wheeled\nVersion: 2.0\n")
    (info / "RECORD").write_text(f"wheeled/__init__.py,sha256={digest},{len(text)}\n")
    code = "import wheeled\n" + LOOK.format(packages="'wheeled'")
    assert run(code, [str(tmp_path)])["findings"] == []
    (package / "__init__.py").write_text(text.replace("return x", "return x + 1"))
    found = run(code, [str(tmp_path)])["findings"]
    assert [(r["kind"], r["target"]) for r in found] == [("file", "wheeled")]


def test_stock_torch_and_transformers_have_no_findings() -> None:
    code = "import torch, transformers.models.qwen3.modeling_qwen3, transformers.integrations.sdpa_attention\n"
    found = run(code + LOOK.format(packages="'torch', 'transformers', 'accelerate'"))
    assert found["findings"] == []
    assert found["unreadable"] == {}
    assert found["checked"]["functions"] > 10_000, "and it did look"
