"""Launches on an NPU and the operators' way there, against a stand-in for torch_npu; its names against the real one."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import stand_in_npu
import torch
from fake_cann import install
from logdiff_kernels import ops
from logdiff_kernels.ascendc.cases import CASES
from logdiff_kernels.build import compile
from logdiff_kernels.build.arch import arch_name, arch_number, arch_of_chip
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops import bench

HERE = Path(__file__).parent

PROBE = """
#include <cstdint>
struct Plan { uint32_t value; int32_t status; };
extern "C" int ld_launch_probe(uint32_t blocks, void* stream, void* const* pointers, uint32_t count, const void* plan,
                               uint32_t bytes) {
  const Plan& p = *static_cast<const Plan*>(plan);
  double seen[] = {double(blocks), double(reinterpret_cast<uintptr_t>(stream)), double(count), double(bytes),
                   double(p.value), 0, 0, 0};
  for (uint32_t i = 1; i < count && i < 4; ++i) seen[4 + i] = double(reinterpret_cast<uintptr_t>(pointers[i]));
  for (int i = 0; i < 8; ++i) static_cast<double*>(pointers[0])[i] = seen[i];
  return p.status;
}
"""


def session(script: str, *arguments: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.cpp").write_text(PROBE)
    library = folder / "probe.so"
    compiler = shutil.which("g++") or "c++"
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "probe.cpp"), "-o", str(library)], check=True)
    cann = install(folder / "cann-8.5.0")
    return session("npu_session.py", str(library), ASCEND_HOME_PATH=str(cann.home))


@pytest.fixture(scope="module")
def operators() -> Any:
    return session("npu_operators.py")


@pytest.fixture(scope="module")
def drivers() -> Any:
    return session("npu_drivers.py")


@pytest.fixture(scope="module")
def timed() -> Any:
    return session("npu_bench.py")


def test_launcher_takes_cores_and_architecture_from_the_device(launches: Any) -> None:
    assert launches["facts"] == [2201, 24, 2, False, "npu:0"]
    assert launches["workspace"] == ["npu:0", "torch.uint8", 48]


def test_kernel_gets_blocks_pointers_and_plan(launches: Any) -> None:
    _, scratch = launches["addresses"]
    for value, launch in zip((7, 8), launches["launches"], strict=True):
        blocks, _, count, size, seen, absent, third, _ = launch["seen"]
        assert (blocks, count, size, seen) == (24, 3, 8, value)
        assert (absent, third) == (0, scratch)  # None is the null pointer


def test_handle_is_read_once_for_each_launch_last_of_all_and_under_the_device(launches: Any) -> None:
    """An earlier handle would let the kernel overtake operators that are still queued on the host."""
    target, scratch = launches["addresses"]
    handles = []
    for launch in launches["launches"]:
        kinds = [event[0] for event in launch["events"]]
        assert kinds == ["enter", "stream", "record", "record", "handle", "leave"]
        assert [event[1] for event in launch["events"] if event[0] == "record"] == [target, scratch]
        assert {event[1] for event in launch["events"] if event[0] in ("enter", "stream")} == {"npu:0"}
        (handle,) = (event[1] for event in launch["events"] if event[0] == "handle")
        assert launch["seen"][1] == handle
        handles.append(handle)
    assert handles[0] != handles[1]


def test_fingerprint_has_binary_chip_architecture_and_exp_of_an_npu_that_was_used(launches: Any) -> None:
    """What both sides of a run compare: server/logdiff/measure/gates/alignment.py."""
    (record,), built = launches["fingerprint"]
    assert (record["name"], record["device"]) == ("aligned-ascendc", "npu")
    assert (record["arch"], record["chip"], record["exact_exp"]) == ("dav-2201", "Ascend910B2", False)
    assert record["binary_hash"] == built
    assert len(built) == 64


def test_kernels_are_compiled_when_an_npu_is_first_used(launches: Any) -> None:
    assert launches["first use"] == ["dav-2201", True, "8.5.0", True]
    assert launches["compiled"] == [source.stem for source in compile.sources()]
    kind, message = launches["unloadable"]  # what a stand-in makes is no library
    assert kind == "UnsupportedError"
    assert "a kernel's library does not load" in message


def test_queue_that_could_not_be_drained_starts_nothing(launches: Any) -> None:
    kind, message, seen = launches["undrained"]
    assert (kind, seen) == ("EngineError", -1)
    assert "could not be drained" in message


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("shape", "InputError", "a shape that the kernel doesn't take"),
        ("runtime", "EngineError", "could not be launched"),
        ("elsewhere", "InputError", "lies on cpu, the kernel runs on npu:0"),
        ("no block", "InputError", "no block"),
        ("too many", "InputError", "more than there are cores"),
        ("unknown", "UnsupportedError", "no Ascend C kernel 'other'"),
        ("chip", "UnsupportedError", "no kernels for the chip Ascend310P3"),
        ("no device", "UnsupportedError", "torch_npu sees no NPU"),
    ],
)
def test_what_a_launch_refuses(case: str, kind: str, words: str, launches: Any) -> None:
    assert launches[case][0] == kind
    assert words in launches[case][1]


def test_without_torch_npu_that_is_what_is_missing(launches: Any) -> None:
    assert launches["without"][0].startswith("torch_npu can't be imported")


def test_operators_of_cpu_tensors_import_nothing_of_npus(operators: Any) -> None:
    assert operators["imported for CPU tensors"] == []
    assert operators["CPU tensors"] == []


@pytest.mark.parametrize("way", ["direct", "dispatcher"])
def test_operator_on_an_npu_goes_to_its_driver(way: str, operators: Any) -> None:
    assert operators[way] == ["npu:0", True, ["rms_norm npu:0 exact_exp=False"]]


def test_gradient_on_an_npu_goes_to_its_driver(operators: Any) -> None:
    same, calls = operators["gradient"]
    assert same
    assert calls == [f"{name} npu:0 exact_exp=False" for name in ("rms_norm", "rms_norm_backward")]


def test_mixed_devices_and_what_has_no_driver_are_refused(operators: Any) -> None:
    assert operators["mixed"][0] == "UnsupportedError"
    assert operators["no driver"] == ["UnsupportedError", "there are no Ascend C kernels for activation"]
    assert operators["meta"][0] == "UnsupportedError"


def test_rehearsal_sends_cpu_tensors_to_the_drivers(operators: Any) -> None:
    assert operators["rehearsal"] == ["rms_norm a twin"]


def test_every_driver_works_on_an_npus_tensors(drivers: Any) -> None:
    """All that a driver makes has to be on its launcher's device, and has the bits of the CPU library."""
    assert len(drivers["cases"]) == len(CASES)
    assert {name: wrong for name, wrong in drivers["cases"].items() if wrong} == {}


def test_every_public_operator_works_on_an_npus_tensors(drivers: Any) -> None:
    made = {name.partition(",")[0] for name in drivers["operators"]}
    # the rest of `moe`, `logprob_merge` and `tree_combine`
    parts = {"moe_rows", "moe_combine", "moe_combine_slots", "logprob_partial", "linear_row_partial"}
    assert made | parts == set(ops.__all__)
    assert {name: wrong for name, wrong in drivers["operators"].items() if wrong} == {}


def test_every_operator_of_torch_has_an_implementation_for_npus() -> None:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("logdiff::")]
    assert len(names) > 30
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [name for name in names if not has(name, "CPU") or not has(name, "PrivateUse1")] == []


def test_launchers_that_are_wrong_are_seen(drivers: Any) -> None:
    assert drivers["planted"]["idle"] == "result 0 has other bits"
    assert drivers["planted"]["scratch"] == "RuntimeError: attention: a tensor on cpu"


def test_bench_times_every_case_against_torch_on_the_npu(timed: Any) -> None:
    assert timed["skipped"] == []
    assert (timed["provider"], timed["arch"], timed["chip"]) == ("aligned-ascendc", "dav-2201", "stand-in")
    assert list(dict.fromkeys(row["case"] for row in timed["results"])) == list(bench.CASES)
    assert [step[3] for step in timed["seen"]] == list(bench.CASES)
    for row in timed["results"]:
        assert row["ours_ms"] > 0
        assert row["ratio"] > 0
    assert timed["waits"] >= 2 * 2 * 15 * len(timed["results"])  # before and after each time of either side


def test_bench_times_nothing_that_is_far_from_torchs_result(timed: Any) -> None:
    results, skipped = timed["apart"]
    assert results == []
    assert "differs from torch's by" in skipped[0]["reason"]
    assert timed["unknown"][0] == "InputError"
    assert "paged-decode" in timed["unknown"][1]


@pytest.mark.parametrize(
    ("chip", "arch"),
    [
        ("Ascend910B1", 2201),
        ("Ascend910B4-1", 2201),
        ("Ascend910B2C", 2201),
        ("Ascend910_9391", 2201),
        ("Ascend950PR_9579", 3510),
        ("Ascend910_958b", 3510),
    ],
)
def test_chips_have_the_architecture_that_bisheng_wants(chip: str, arch: int) -> None:
    assert arch_of_chip(chip) == arch
    assert arch_number(arch_name(arch)) == arch


@pytest.mark.parametrize("chip", ["Ascend910B", "Ascend910A", "Ascend310P3", "H200"])
def test_chips_of_other_architectures_are_refused(chip: str) -> None:
    """`Ascend910B` without a number is a chip of the first generation."""
    with pytest.raises(UnsupportedError, match=chip):
        arch_of_chip(chip)


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(InputError, match="dav-9999"):
        arch_number("dav-9999")


@pytest.mark.slow(seconds=60)
def test_names_of_the_stand_in_are_those_of_the_real_torch_npu(tmp_path: Path) -> None:
    """torch_npu can't be imported without CANN, but its wheel can be read."""
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check", "torch_npu"]
    done = subprocess.run([*argv, "-d", str(tmp_path)], capture_output=True, text=True, timeout=600, check=False)
    wheels = list(tmp_path.glob("torch_npu-*.whl"))
    if not wheels:
        pytest.skip(f"torch_npu can't be downloaded here: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        tree = ast.parse(wheel.read("torch_npu/npu/__init__.py"))
        binary = wheel.read("torch_npu/lib/libtorch_npu.so")
    exported = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert set(stand_in_npu.NAMES) <= set(exported)
    for name in (*stand_in_npu.STREAM_NAMES, *stand_in_npu.PROPERTY_NAMES):
        assert b"\0" + name.encode() + b"\0" in binary
