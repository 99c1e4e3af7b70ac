"""The tasks behind `logdiff kernels`, without a runner: a machine without CANN, and one with a stand-in."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cann import FakeCann
from logdiff_kernels.actions import EngineFree
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.build import compile, npu, selftest, twin
from logdiff_kernels.errors import InputError, RunnerError, UnsupportedError
from logdiff_kernels.ops import devices, registry


def do(what: str, **fields: Any) -> dict[str, Any]:
    return EngineFree().run({"task": f"kernels_{what}", **fields}, lambda *_: None).data


@pytest.mark.parametrize("what", ["build", "selftest", "bench"])
def test_without_cann_and_torch_npu_the_way_out_is_the_twin(what: str, nowhere: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        do(what, provider="ascendc")
    assert "--provider twin" in caught.value.hint


def test_build_with_cann_makes_every_kernel_and_the_list_then_knows_their_hash(fake: FakeCann) -> None:
    with pytest.raises(InputError, match="which architecture"):
        do("build", provider="ascendc")
    seen: list[Any] = []
    task = {"task": "kernels_build", "provider": "ascendc", "arch": "dav-2201"}
    made = EngineFree().run(task, lambda *step: seen.append(step)).data
    assert (made["provider"], made["arch"], made["cann"]) == ("aligned-ascendc", "dav-2201", "8.5.0")
    assert [kernel["kernel"] for kernel in made["kernels"]] == ["alpha", "beta"]
    assert seen[-1][:2] == (2, 2)
    (listed,) = do("list", provider="ascendc", arch="dav-2201")["providers"]
    assert listed["binary_hash"] == made["sha256"]
    assert listed["missing"] == [listed["missing"][0]]  # torch_npu alone
    assert "torch_npu" in listed["missing"][0]
    fake.forget()
    (other,) = do("list", provider="ascendc", arch="dav-3510")["providers"]
    assert other["binary_hash"] is None
    assert fake.calls() == []  # a list compiles nothing


def test_failing_build_is_an_error_with_the_compilers_words(fake: FakeCann) -> None:
    fake.order("beta", "fail no member named 'Mmadd'")
    with pytest.raises(UnsupportedError, match="beta") as caught:
        do("build", provider="ascendc", arch="dav-2201")
    assert "no member named 'Mmadd'" in caught.value.hint


def test_twin_is_listed_for_either_architecture_without_compiling() -> None:
    found = {arch: do("list", provider="twin", arch=arch)["providers"][0] for arch in ("dav-2201", "dav-3510")}
    for arch, row in found.items():
        assert (row["name"], row["arch"], row["available"]) == ("aligned-twin", arch, True)
        assert len(row["binary_hash"]) == 64
    assert found["dav-2201"]["binary_hash"] != found["dav-3510"]["binary_hash"]


def test_selftest_of_the_twin_tries_its_checks_and_names_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    def sections(launcher: twin.TwinLauncher, scope: selftest.Scope) -> list[selftest.Section]:
        assert (launcher.arch, launcher.exact_exp, scope) == (3510, True, selftest.Scope.QUICK)
        one, two = selftest.Section("one", "tells", "matters"), selftest.Section("two", "", "")
        one.check("a", "holds", lambda: one.record("a", order="ascending") or "")
        two.check("b", "does not", lambda: two.note("b is slow") or "3 of 9 differ")
        return [one, two]

    monkeypatch.setattr(selftest, "sections", sections)
    seen: list[Any] = []
    task = {"task": "kernels_selftest", "provider": "twin", "arch": "dav-3510", "scope": "quick"}
    found = EngineFree().run(task, lambda *step: seen.append(step)).data
    assert (found["format"], found["provider"], found["arch"]) == ("logdiff-selftest/1", "aligned-twin", "dav-3510")
    assert (found["failed"], found["scope"], found["notes"]) == (1, "quick", ["b is slow"])
    assert found["laws"][1] == {"kernel": "b", "law": "does not", "ok": False, "detail": "3 of 9 differ"}
    assert seen == [(1, 2, "law", "a"), (2, 2, "law", "b")]
    assert found["binary"] == twin.source_hash(3510, True)
    assert [(part["name"], part["checks"], part["failed"]) for part in found["sections"]] == [
        ("one", 1, 0),
        ("two", 1, 1),
    ]
    assert found["sections"][0]["facts"] == {"a": {"order": "ascending"}}


@pytest.mark.parametrize(("provider", "scope"), [("twin", "quickly"), ("cpu", "quick")])
def test_scopes_that_there_are_not_are_refused(provider: str, scope: str) -> None:
    with pytest.raises(InputError, match=r"scope|for NPU providers"):
        do("selftest", provider=provider, scope=scope)


def test_bench_of_the_twin_gives_the_models_figures_and_no_times() -> None:
    found = do("bench", provider="twin", quick=True)
    assert (found["format"], found["results"], found["arch"]) == ("logdiff-bench/1", [], "dav-2201")
    assert "not time" in found["note"]
    assert {row["case"] for row in found["skipped"]} == {row["case"] for row in found["model"]} != set()
    for row in found["model"]:
        assert row["cycles"] > 0
        assert 0 < row["balance"] <= 1
        assert row["over_bound"] >= 1
        assert all(0 <= share <= 1 for share in row["busy"].values())


def test_cases_of_the_cost_model_are_chosen_by_name() -> None:
    found = do("bench", provider="twin", quick=True, families=["paged-decode"])
    assert {row["case"] for row in found["model"]} == {"paged-decode"}
    with pytest.raises(InputError, match="no such case") as caught:
        do("bench", provider="twin", families=["rms_norm"])
    assert "paged-decode" in caught.value.hint


def test_twin_says_which_kernels_it_has_compiled_now(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure(source: Path, arch: int, exact_exp: bool) -> Path:
        library = nowhere / f"{source.stem}.so"
        if source.stem != "alpha":
            library.write_bytes(source.stem.encode())
        return library

    (nowhere / "alpha.so").write_bytes(b"alpha")
    os.utime(nowhere / "alpha.so", (1e9, 1e9))
    monkeypatch.setattr(compile, "chosen", lambda kernels: [Path("alpha.asc"), Path("beta.asc")])
    monkeypatch.setattr("logdiff_kernels.twin.build.ensure_library", ensure)
    made = do("build", provider="twin", arch="dav-3510")
    assert made["arch"] == "dav-3510"
    assert [(row["kernel"], row["cached"], row["log"]) for row in made["kernels"]] == [
        ("alpha", True, None),
        ("beta", False, None),
    ]


@pytest.mark.parametrize(
    ("what", "fields", "words"),
    [
        ("list", {"provider": "gpu"}, "no such provider"),
        ("list", {"provider": "cpu", "arch": "dav-2201"}, "for NPU providers"),
        ("build", {"arch": "dav-2201"}, "for NPU providers"),
        ("build", {"provider": "twin", "arch": "dav-1"}, "unknown architecture|no kernels for architecture"),
    ],
)
def test_providers_and_architectures_that_do_not_fit_are_refused(what: str, fields: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        do(what, **fields)


def test_fingerprint_names_what_operators_have_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_used", [])
    assert [record["name"] for record in registry.fingerprint()["providers"]] == ["aligned-cpu"]
    with devices.rehearse(twin.TwinLauncher("dav-3510", cores=20)):
        pass
    cpu, twins = registry.fingerprint()["providers"]
    assert (cpu["name"], cpu["arch"], cpu["chip"]) == ("aligned-cpu", "", "")
    assert (twins["name"], twins["arch"], twins["chip"]) == ("aligned-twin", "dav-3510", "twin")
    assert (twins["exact_exp"], twins["binary_hash"]) == (True, twin.source_hash(3510, True))
    assert twins["contract"] == cpu["contract"]


def test_provider_that_cannot_run_here_is_refused_with_what_is_missing(nowhere: Path) -> None:
    with pytest.raises(UnsupportedError, match="torch_npu"):
        registry.provider("aligned-ascendc")
    assert registry.provider("aligned-twin").name == "aligned-twin"


def test_exact_exp_is_chosen_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(devices.EXACT_EXP, raising=False)
    assert not devices.exact_exp()
    monkeypatch.setenv(devices.EXACT_EXP, "1")
    assert devices.exact_exp()
    monkeypatch.setenv(devices.EXACT_EXP, "yes")
    with pytest.raises(InputError, match="LOGDIFF_EXACT_EXP"):
        devices.exact_exp()


def test_launch_in_the_twin_gives_the_bits_of_the_cpu_library() -> None:
    """One kernel from the operator to the twin and back: the way an NPU's tensors take."""
    from logdiff_kernels import ops

    x = torch.randn(9, 130, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight = torch.linspace(-2, 2, 130)
    expected = ops.rms_norm(x, weight, 1e-6)
    launcher = twin.TwinLauncher("dav-2201", cores=2, trace=True)
    with devices.rehearse(launcher):
        found = ops.rms_norm(x, weight, 1e-6)
        with pytest.raises(RunnerError, match="already going on"), devices.rehearse(launcher):
            pass
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
    ((kernel, result),) = launcher.results
    assert kernel == "rms_norm"
    assert result.races_checked
    assert result.trace is not None


class _AnyPlan(ctypes.Structure):
    _fields_ = [("status", ctypes.c_uint32)]


@pytest.mark.parametrize(("kernel", "blocks"), [("rms_norm", 9), ("rms_norm", 0), ("linear", 5)])
def test_a_launch_has_at_most_the_cores_of_its_kind(kernel: str, blocks: int) -> None:
    """4 cube cores with two vector cores each: a kernel of more would wait for cores that never come."""
    tensors = [None] * len(kernels()[kernel].pointers)
    with pytest.raises(InputError, match="no block, or more than there are cores"):
        twin.TwinLauncher(cores=4).launch(kernel, tensors, _AnyPlan(), blocks)


@pytest.mark.parametrize("wrong", [{"cores": 0}, {"cores": -1}, {"seed": "a"}, {"mmad": "pairwise16"}], ids=str)
def test_a_twin_of_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        twin.TwinLauncher(**wrong)
    assert caught.value.value == next(iter(wrong.values()))


def test_a_launch_has_the_tensors_that_its_kernel_takes() -> None:
    with pytest.raises(InputError, match="rms_norm takes 6 tensors") as caught:
        twin.TwinLauncher().launch("rms_norm", [None], _AnyPlan(), 1)
    assert "weight" in caught.value.hint


def test_missing_parts_of_an_npu_are_sentences(nowhere: Path) -> None:
    assert [sentence.split(" ")[0] for sentence in npu.missing()] == ["torch_npu", "CANN"]
