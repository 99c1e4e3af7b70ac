"""Facts of the interpreter, without secrets."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from logdiff_kernels.observe import environment, fingerprint


def test_versions_are_those_that_run() -> None:
    facts = environment.environment()
    assert facts["format"] == "logdiff-env/1"
    assert facts["torch"]["version"] == torch.__version__
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert facts["packages"]["numpy"] == numpy.__version__


def test_only_variables_that_matter_are_read_and_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setenv("HCCL_DETERMINISTIC", "strict")
    monkeypatch.setenv("ATB_MATMUL_SHUFFLE_K_ENABLE", "0")
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    monkeypatch.setenv("TORCH_PROXY", "http://user:hush@host")
    monkeypatch.setenv("HOME_MADE_PASSWORD", "hush")
    found = environment.environment_variables()
    assert found["VLLM_BATCH_INVARIANT"] == "1"
    assert found["HCCL_DETERMINISTIC"] == "strict"
    assert found["ATB_MATMUL_SHUFFLE_K_ENABLE"] == "0"
    assert "HOME_MADE_PASSWORD" not in found
    assert "hush" not in str(found)


def test_cann_version_files_are_read_where_the_environment_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.info").write_text("Version=9.1.0\n", encoding="utf-8")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    found = environment.cann()
    assert found is not None
    assert found["toolkits"][str(tmp_path)]["version.info"] == "Version=9.1.0\n"


def test_a_fingerprint_has_every_documented_field_and_null_for_the_unknown() -> None:
    found = fingerprint.fingerprint({"engine": {"name": "x", "version": "1"}, "vocab_size": 5})
    documented = (
        "format engine python packages device config effective model env modules quantization adapters patched "
        "dispatch chat_template tokenizer_size vocab_size eos_token_ids"
    )
    assert set(documented.split()) <= set(found)
    assert found["vocab_size"] == 5
    assert found["patched"] is None


def test_each_fact_is_told_before_it_is_looked_for_and_the_end_once() -> None:
    told: list[tuple[int, int, str]] = []
    facts = environment.environment(lambda *step: told.append(step))
    names = [name for name in facts if name != "format"]
    assert told == [*((i, len(names), name) for i, name in enumerate(names)), (len(names), len(names), "")]
