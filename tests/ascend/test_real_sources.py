"""What the real vllm-ascend sources put in place of others, and what their switches really choose.

The sources run under `tests/ascend/standin`, which computes nothing: these tests are about who is called, not numbers.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import recipe_like
from conftest import VERSIONS

OWN = {"packages": ["vllm", "torch", "torch_npu"], "stock": ["vllm", "torch"]}
"""Compare vLLM and torch with their files; vllm-ascend's changes are not taken for theirs."""

LOADED = {"packages": ["vllm", "vllm_ascend", "torch"], "stock": ["vllm", "vllm_ascend", "torch"]}
"""As a user's process is looked at: the plug-in's own changes are its to make."""

pytestmark = [pytest.mark.slow(seconds=60), pytest.mark.timeout(1800)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_plugin_itself_replaces_is_named_with_its_file(driven: Any, version: str) -> None:
    seen = driven(version, patches=True, inventory=OWN)
    assert seen["platform"] == "vllm_ascend.platform.NPUPlatform"
    by_plugin = {name: live for name, (_, by, live) in seen["findings"].items() if by.startswith("vllm-ascend")}
    expected = {
        "vllm.distributed.parallel_state.GroupCoordinator": "patch_distributed.py",
        "vllm.model_executor.models.qwen3.Qwen3Attention.forward": "patch_qwen3vl.py",
        "vllm.model_executor.models.qwen3_moe.Qwen3MoeAttention.forward": "patch_qwen3vl.py",
    }
    if version == "0.18":
        expected["vllm.model_executor.layers.utils.default_unquantized_gemm"] = "patch_unquantized_gemm.py"
    for name, file in expected.items():
        assert name in by_plugin
        assert file in by_plugin[name]
    assert seen["called"] == []  # nothing of the device was needed to see it


@pytest.mark.parametrize("version", VERSIONS)
def test_every_replacement_that_the_patch_files_write_is_found(driven: Any, version: str) -> None:
    seen = driven(version, patches=True, inventory=OWN)
    root = Path(seen["files"][1]).parent.parent
    written = set()
    for module in seen["patch_modules"]:
        file = root / f"{module.replace('.', '/')}.py"
        if file.is_file() and "torchair" not in file.read_text():  # which is a stand-in here
            written |= _functions_assigned_to_attributes(file)
    found = {name.rpartition(".")[2] for name, by in seen["records"].items() if by.startswith("vllm-ascend")}
    # Names that vLLM does not have are recorded and explained: nothing of vLLM looks them up. A method of a class
    # that is replaced as a whole is behind that class's own record.
    missed = sorted(f"{owner}.{name}" for owner, name in written if not {owner, name} & found)
    assert len(written) > 20
    # Protocol classes that take over the originals' names and modules, without a function of their own.
    assert {name.rpartition(".")[2] for name in missed} <= {"UsageInfo", "CompletionTokenUsageInfo"}


def _functions_assigned_to_attributes(file: Path) -> set[tuple[str, str]]:
    """(`b`, `name`) of each `a.b.name = function` at the top of a file, where the function is defined in that file."""
    tree = ast.parse(file.read_text())
    own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in own:
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    found.add((ast.unparse(target.value).rpartition(".")[2], target.attr))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_without_its_patches_nothing_of_the_plugin_stands_in_vllm(driven: Any, version: str) -> None:
    seen = driven(version, inventory=OWN)
    patched = [name for name, (_, by, live) in seen["findings"].items() if "vllm_ascend/patch/" in live]
    assert patched == []


@pytest.mark.parametrize("version", VERSIONS)
def test_patches_like_the_recipes_are_named_one_by_one_and_only_they(driven: Any, version: str) -> None:
    clean = driven(version, patches=True, inventory=LOADED)
    seen = driven(version, patches=True, inventory=LOADED, recipe=True)
    new = {name for name, (_, _, live) in seen["findings"].items() if "recipe_like.py" in live}
    assert {*recipe_like.PATCHED, "torch.sum", "torch.Tensor.sum"} <= new
    assert not [name for name, (_, _, live) in clean["findings"].items() if "recipe_like.py" in live]
    registered = {name.removesuffix(" PrivateUse1"): declared for name, (_, declared) in seen["foreign"].items()}
    assert set(recipe_like.REGISTERED) <= set(registered)
    # A name without an overload of its own is registered and never reached: the trap of the bare log_softmax.
    assert registered["aten::log_softmax"] is False
    assert registered["aten::_log_softmax"] is True
    assert not set(recipe_like.REGISTERED) & {name.removesuffix(" PrivateUse1") for name in clean["foreign"]}


BY_ASCENDC = {"mm", "matmul", "sum"}
BY_TRITON_ALWAYS = {"addmm", "bmm", "softmax", "_softmax"}
BY_TRITON_ALONE = {"mm", "matmul", "linear"}


@pytest.mark.parametrize("version", VERSIONS)
def test_without_operators_and_triton_the_switch_is_skipped_with_a_warning_alone(driven: Any, version: str) -> None:
    seen = driven(version, operators=None)["invariance"]
    assert (seen["registered"], seen["torch_sum"], seen["replaced_of_torch_npu"]) == ({}, False, [])
    assert "HCCL_DETERMINISTIC" not in seen["switches"]
    assert [line for line in seen["heard"] if line.startswith("WARNING") and "skipping" in line]
    assert seen["error"] is None  # VLLM_BATCH_INVARIANT=1 was set, and nothing stopped


@pytest.mark.parametrize("version", VERSIONS)
def test_with_the_operators_the_same_switch_changes_registrations(driven: Any, version: str) -> None:
    seen = driven(version, operators="ascendc")["invariance"]
    assert set(seen["registered"]) == BY_ASCENDC
    assert seen["torch_sum"]
    assert seen["replaced_of_torch_npu"] == ["npu_add_rms_norm", "npu_fused_infer_attention_score"]
    assert seen["switches"]["HCCL_DETERMINISTIC"] == "strict"
    assert not [line for line in seen["heard"] if line.startswith("WARNING")]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_package_of_the_same_name_stops_the_switch_half_way(driven: Any, version: str) -> None:
    seen = driven(version, operators="namesake")["invariance"]
    assert "npu_mm_batch_invariant" in seen["error"]
    assert not BY_ASCENDC & set(seen["registered"])
    assert seen["switches"]["HCCL_DETERMINISTIC"] == "strict"  # set before it failed: half on


def test_triton_alone_registers_other_operators_than_ascendc(driven: Any) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no triton in this environment")
    seen = driven("0.18", operators=None, triton=True)["invariance"]
    assert set(seen["registered"]) == BY_TRITON_ALWAYS | BY_TRITON_ALONE
    assert not seen["torch_sum"]  # sums, and attention, stay as they were
    assert seen["replaced_of_torch_npu"] == []


FIA = "vllm_ascend.attention.attention_v1.AscendAttentionBackend"
FA3 = "vllm_ascend.attention.fa3_v1.AscendFABackend"


def test_the_first_generation_has_no_fa3_whatever_is_asked_for(driven: Any) -> None:
    chosen = driven("0.18", select=True, flash_attn=True)["selected"]
    assert {value for key, value in chosen.items() if key != "reads"} == {FIA}
    assert chosen["reads"] == "False"


def test_the_second_generation_needs_both_switches_and_the_package(driven: Any) -> None:
    chosen = driven("0.23", select=True, flash_attn=True)["selected"]
    assert chosen["FLASH_ATTN, batch invariant True"] == FA3
    for key in ("none, batch invariant False", "none, batch invariant True", "FLASH_ATTN, batch invariant False"):
        assert chosen[key] == FIA
    without = driven("0.23", select=True)["selected"]
    assert "flash_attn_npu_v3 is not installed" in without["FLASH_ATTN, batch invariant True"]


@pytest.mark.parametrize(
    ("enabled", "consistency", "chosen"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_third_generation_asks_rl_config_alone(enabled: bool, consistency: bool, chosen: bool) -> None:
    source = os.environ.get("LOGDIFF_VLLM_ASCEND_MAIN")
    if not source:
        pytest.skip("no source of vllm-ascend's main: LOGDIFF_VLLM_ASCEND_MAIN=path of its platform.py")
    tree = ast.parse(Path(source).read_text())
    (node,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "_validate_fa3_backend"]
    config = SimpleNamespace(rl_config=SimpleNamespace(enabled=enabled, enable_training_consistency=consistency))
    names: dict[str, Any] = {
        "get_ascend_config": lambda: config,
        "logger": SimpleNamespace(info=lambda *words: None),
        "util": SimpleNamespace(find_spec=lambda name: name),
        "import_module": lambda name: SimpleNamespace(flash_attn_with_kvcache=None),
    }
    exec(compile(ast.Module([node], []), source, "exec"), names)
    for invariant in (False, True):  # the older switch has no say any more
        asked = SimpleNamespace(use_batch_invariant=invariant)
        assert names["_validate_fa3_backend"]((False, False), asked) is chosen
