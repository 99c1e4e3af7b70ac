"""What is added to the user's arguments, and what is refused before vLLM starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from logdiff_kernels.engines.vllm import launch
from logdiff_kernels.errors import InputError
from logdiff_kernels.protocol import Request


def request(model: Path) -> Request:
    return Request("vllm", "rollout", str(model), "bfloat16")


def test_a_folder_that_holds_no_model_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such"):
        launch.start(request(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"config\.json"):
        launch.start(request(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="no weights") as caught:
        launch.start(request(tmp_path))
    assert caught.value.value == str(tmp_path)


def test_the_model_comes_from_the_run_file_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'model' can't be given") as caught:
        launch.start(Request("vllm", "rollout", str(tmp_path), "bfloat16", {"model": "/another"}))
    assert caught.value.value == "/another"


def test_a_size_that_is_no_number_is_left_for_vllm_to_refuse() -> None:
    assert launch._count({}, "tensor_parallel_size") == 1
    assert launch._count({"tensor_parallel_size": 2}, "tensor_parallel_size") == 2
    for wrong in ("two", 0, None, True):
        assert launch._count({"tensor_parallel_size": wrong}, "tensor_parallel_size") == 1


@pytest.mark.parametrize(
    "words",
    [
        "Following weights were not initialized from checkpoint: {'model.norm.weight'}",
        "Error while deserializing header: incomplete metadata, file not fully covered",
        "start (0) + length (512) exceeds dimension size (300).",
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(words: str) -> None:
    refusal = launch._refusal(ValueError(words), {"model": "/some/folder", "max_model_len": 16})
    assert refusal.value == {"model": "/some/folder"}
    assert "checkpoint" in refusal.hint


def test_a_refusal_names_the_argument() -> None:
    arguments = {"model": "/some/folder", "max_model_len": 16}
    length = launch._refusal(ValueError("`max_model_len` is too small"), arguments)
    assert length.value == {"max_model_len": 16}


def test_a_tokenizer_is_found_by_its_files(tmp_path: Path) -> None:
    assert not launch.has_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert launch.has_tokenizer(str(tmp_path))
    assert launch.has_tokenizer("some/hub-name")


@pytest.mark.parametrize(
    ("cpus", "workers", "expected"),
    [({0, 1}, 2, "0|1"), ({0, 1, 2, 3, 8}, 2, "0,1|2,3"), ({3}, 2, "nobind"), ({4, 5, 6}, 3, "4|5|6")],
)
def test_cpus_are_shared_out_among_workers(
    cpus: set[int], workers: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    assert launch._threads(workers) == expected


def test_defaults_fill_gaps_only_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    platforms = pytest.importorskip("vllm.platforms")
    if not platforms.current_platform.is_cpu():
        pytest.skip("the defaults are those of vLLM's CPU backend")
    monkeypatch.setattr(launch, "_memory_nodes", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for name in ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    assert launch._environment({"tensor_parallel_size": 2}) == {
        "VLLM_PLUGINS": "theirs,logdiff",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    assert os.environ["VLLM_PLUGINS"] == "theirs,logdiff"
    assert launch._environment({"tensor_parallel_size": 2}) == {}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    assert launch._environment({"kv_cache_memory_bytes": 5}) == {}
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "")
    assert launch._environment({"kv_cache_memory_bytes": 5}) == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def test_the_plug_in_does_nothing_unless_it_is_asked_to() -> None:
    code = (
        "import sys; from logdiff_kernels.engines.vllm.plugin import register; register();"
        "print(sorted(m for m in sys.modules if m == 'vllm' or m == 'torch'))"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LOGDIFF_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
