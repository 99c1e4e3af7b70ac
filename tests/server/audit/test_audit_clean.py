"""Clean launches of every generation raise no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from logdiff.audit import audit_paths

CLEAN = Path(__file__).with_name("clean")
EXPECTED = {
    "verl08_ascend018": {"verl"},
    "verl09_ascend023": {"verl"},
    "verlmain_ascendmain": {"verl"},
    "verl09_gpu": {"verl"},
    "ascend018_serve": {"vllm"},
    "ascend023_serve": {"vllm"},
    "ascendmain_serve": {"vllm"},
    "megatron_mindspeed": {"megatron"},
    "slime_gpu": {"slime"},
    "miles_true_on_policy": {"miles-fsdp"},
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_clean_launch_raises_no_alarm(name: str) -> None:
    found = audit_paths([CLEAN / name])
    assert found.table.frameworks == EXPECTED[name]  # it was really read
    alarms = [(f.rule, f.key, f.value, f.where) for f in found.findings if f.severity != "info"]
    assert not alarms
    assert found.exit_code == 0


def test_every_clean_launch_is_tested() -> None:
    assert {p.name for p in CLEAN.iterdir()} == set(EXPECTED)


def test_effective_values_are_those_that_the_scripts_set() -> None:
    table = audit_paths([CLEAN / "verl08_ascend018"]).table
    expected = {
        ("rollout", "tensor_parallel_size"): 1, ("rollout", "pipeline_parallel_size"): 2,
        ("train", "pipeline_parallel_size"): 8, ("rollout", "attention_backend"): "FLASH_ATTN",
        ("rollout", "temperature"): 1.0, ("rollout", "calculate_log_probs"): True,
        ("train", "ppo_max_token_len_per_gpu"): 4096, ("train", "train_backend"): "megatron",
        ("rollout", "env.VLLM_BATCH_INVARIANT"): "1", ("train", "package.vllm-ascend"): "0.18.0",
    }  # fmt: skip
    for (side, key), value in expected.items():
        found = table.get(side, key)
        assert found is not None, key
        assert found.value == value, key
    place = table.get("rollout", "attention_backend")
    assert place is not None
    assert place.where.endswith("run.sh:54")
    assert (CLEAN / "verl08_ascend018" / "run.sh").read_text().splitlines()[53].strip().startswith("+actor_rollout_ref")


def test_a_sourced_file_of_the_same_folder_is_followed() -> None:
    table = audit_paths([CLEAN / "slime_gpu" / "run.sh"]).table
    layers = table.get("train", "model.num_hidden_layers")
    assert layers is not None
    assert layers.value == 36
