"""What only a running interpreter or a case knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from logdiff import actions
from logdiff.audit import audit, audit_environment, audit_paths
from logdiff.case.batch import PairMeta
from logdiff.measure import RunFacts
from logdiff.measure.gates.configuration import config_gate

FOREIGN = ("batch_invariant_ops/__init__.py", "batch_invariant_ops/kernels.py")
CANN = ("batch_invariant_ops/__init__.py", "batch_invariant_ops/lib/libnpu_ops.so")


def installed(folder: Path, files: tuple[str, ...]) -> Path:
    """A site folder with a distribution of the ambiguous name; importing it would fail."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise RuntimeError('imported')\n")
    info = folder / "batch_invariant_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: batch_invariant_ops\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return folder


@pytest.mark.parametrize(("files", "npu"), [(FOREIGN, False), (CANN, True)])
def test_the_package_behind_an_import_name_is_told_without_importing_it(
    files: tuple[str, ...], npu: bool, tmp_path: Path
) -> None:
    site = installed(tmp_path, files)
    code = (
        f"import sys, json; sys.path[:0] = [{str(site)!r}, 'kernels']\n"
        "from logdiff_kernels.observe.environment import ambiguous_distributions\n"
        "print(json.dumps(ambiguous_distributions()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out)["batch_invariant_ops"]["npu_files"] is npu


def test_a_foreign_package_of_the_right_name_is_found() -> None:
    facts = {
        "format": "logdiff-env/1", "packages": {"torch-npu": "2.10.0", "vllm-ascend": "0.23.0"},
        "env": {"VLLM_BATCH_INVARIANT": "1"},
        "distributions": {"batch_invariant_ops": {"name": "batch_invariant_ops", "npu_files": False}},
    }  # fmt: skip
    found = audit(audit_environment(facts, "python"))
    assert "batch-invariant-ops-foreign" in {f.rule for f in found.findings}
    facts["distributions"] = {"batch_invariant_ops": {"name": "batch_invariant_ops", "npu_files": True}}
    assert "batch-invariant-ops-foreign" not in {f.rule for f in audit(audit_environment(facts, "p")).findings}


def test_live_reads_this_interpreter() -> None:
    done = actions.audit(live=True)
    assert done.data["format"] == "logdiff-audit/1"
    assert done.data["versions"]["torch"]
    assert done.data["read"] == [{"path": "this interpreter", "form": "environment"}]


def fingerprints(folder: Path, rollout: dict[str, object], train: dict[str, object]) -> Path:
    """A case folder with both sides' fingerprints."""
    (folder / "manifest.json").write_text("{}")
    for side, facts in (("rollout", rollout), ("train", train)):
        (folder / "sides" / side).mkdir(parents=True)
        document = {"format": "logdiff-fingerprint/1", "packages": {}, "env": {}, "torch": None, **facts}
        (folder / "sides" / side / "fingerprint.json").write_text(json.dumps(document))
    return folder


def test_both_sides_of_a_case_are_compared(tmp_path: Path) -> None:
    left = {"engine": {"name": "vllm", "version": "0.22.0"}, "model": {"rms_norm_eps": 1e-6},
            "effective": {"temperature": 0.7, "logprobs_mode": "processed_logprobs"}}  # fmt: skip
    right = {
        "engine": {"name": "transformers"},
        "model": {"rms_norm_eps": 1e-5},
        "effective": {"scored_temperature": 1.0},
    }
    found = audit_paths([fingerprints(tmp_path, left, right)])
    rules = {f.rule: f for f in found.findings if f.severity == "error"}
    assert set(rules) == {"norm-epsilon-differs", "temperature-scored-otherwise"}
    assert rules["norm-epsilon-differs"].value == "rollout 1e-06, train 1e-05"


def test_a_log_beats_the_script(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve m --enforce-eager --dtype float16 --quantization fp8\n")
    line = "INFO [core.py:1] Initializing a V1 LLM engine (v0.22.0) with config: model='m', dtype=torch.bfloat16, "
    graphs = "compilation_config={'mode': 3, 'cudagraph_mode': <CUDAGraphMode.FULL: 2>}"
    rest = f"quantization=None, enforce_eager=False, {graphs}"
    (tmp_path / "serve.log").write_text(line + rest + "\n")
    table = audit_paths([tmp_path]).table
    expected = {"dtype": "bfloat16", "quantization": None, "enforce_eager": False, "cudagraph_mode": "FULL"}
    for key, value in expected.items():
        found = table.get("rollout", key)
        assert found is not None
        assert found.value == value
        assert "serve.log:1" in found.where
    assert table.versions("vllm") == ["0.22.0"]


def test_a_case_keeps_the_audit(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.top_p=0.9\n")
    done = actions.audit(paths=[script], case=tmp_path / "case")
    assert done.exit_code == 1
    stored = json.loads((tmp_path / "case" / "results" / "audit.json").read_text())
    assert stored["findings"] == done.data["findings"]
    rows = json.loads(Path(done.data["effective"]).read_text())["settings"]
    assert {"side": "rollout", "key": "top_p", "value": 0.9} in [
        {k: row[k] for k in ("side", "key", "value")} for row in rows
    ]
    again = actions.audit(paths=[script], case=tmp_path / "case")  # a sealed case takes a second audit
    assert again.data["findings"] == done.data["findings"]
    report = tmp_path / "report.html"
    actions.report(case=tmp_path / "case", output=report)
    page = report.read_text()
    assert "Configuration audit" in page
    assert "top-p with processed log-probabilities" in page
    assert f"logdiff audit {script}" in page
    assert "logdiff query" not in page  # there are no tokens


COMMON = {"model_type": "qwen3", "rms_norm_eps": 1e-6, "vocab_size": 1000, "hidden_act": "silu"}


@pytest.mark.parametrize(
    ("rollout", "train", "fault"),
    [
        ({}, {}, False),
        ({"model": {**COMMON, "rope_theta": 1e6}}, {"model": {**COMMON, "rope_theta": 1e4}}, True),
        ({"model": {**COMMON, "hidden_act": "gelu"}}, {"model": COMMON}, True),
        ({"model": {**COMMON, "logit_scale": 0.5}}, {"model": {**COMMON, "logit_scale": 1.0}}, True),
        ({"model": {**COMMON, "sliding_window": None}}, {"model": {**COMMON, "sliding_window": 4}}, False),
        ({"model": {**COMMON, "use_cache": True}}, {"model": {**COMMON, "use_cache": False}}, False),
        ({"effective": {"logprobs_mode": "raw_logprobs", "temperature": 0.7}}, {}, True),
        ({"effective": {"logprobs_mode": "processed_logprobs", "temperature": 0.7}}, {}, False),
        ({"effective": {"logprobs_mode": "processed_logprobs", "top_p": 0.9, "temperature": 1.0}}, {}, True),
        ({"effective": {"logprobs_mode": "raw_logprobs", "top_p": 0.9, "temperature": 1.0}}, {}, False),
        ({"effective": {"logprobs_mode": "processed_logprobs", "repetition_penalty": 1.1}}, {}, True),
        ({"effective": {"logprobs_mode": "raw_logprobs", "repetition_penalty": 1.1, "temperature": 1.0}}, {}, False),
        ({"effective": {"logprobs_mode": "raw_logprobs", "min_p": 0.1, "temperature": 1.0}}, {}, False),
        ({"effective": {"logprobs_mode": "processed_logits", "temperature": 1.0}}, {}, True),
        ({"effective": {"temperature": 0.7, "logprobs_mode": "processed_logprobs"}},
         {"effective": {"scored_temperature": 1.0}}, True),
    ],
)  # fmt: skip
def test_the_audit_and_the_configuration_gate_agree(
    rollout: dict[str, object], train: dict[str, object], fault: bool, tmp_path: Path
) -> None:
    left = {"engine": {"name": "vllm"}, "model": COMMON, "effective": {}, **rollout}
    right = {"engine": {"name": "transformers"}, "model": COMMON, "effective": {}, **train}
    gate = config_gate(PairMeta({}), RunFacts(fingerprints={"rollout": left, "train": right}))
    findings = audit_paths([fingerprints(tmp_path, left, right)]).findings
    errors = [(f.rule, f.value) for f in findings if f.severity == "error"]
    assert (gate.ok is False) == fault, gate.detail
    assert bool(errors) == fault, errors
