"""Several processes of one engine: each is judged by itself; one side alone is not told what the other does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from logdiff.audit import Audit, audit_paths

RUN = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.top_p={}\n"


def _audit(tmp_path: Path, text: str, *more: str) -> Audit:
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    for number, one in enumerate(more):
        (tmp_path / f"more{number}.sh").write_text(one, encoding="utf-8")
    return audit_paths([tmp_path / "run.sh", *(tmp_path / f"more{n}.sh" for n in range(len(more)))])


def _of(found: Audit, rule: str) -> list[tuple[str, str]]:
    """(value, places without their folder) of a rule's findings."""
    return [(str(f.value), re.sub(r"[^\s,]*/", "", f.where)) for f in found.findings if f.rule == rule]


@pytest.mark.parametrize(("first", "second"), [(0.9, 1.0), (1.0, 0.9)])
def test_a_fault_of_either_launch_is_found_whichever_comes_last(tmp_path: Path, first: float, second: float) -> None:
    found = _audit(tmp_path, RUN.format(first) + RUN.format(second))
    assert _of(found, "top-p-renormalises") == [("0.9", f"run.sh:{1 if first < 1 else 2}")]
    ((value, where),) = _of(found, "several-launches")
    assert value == f"{first} in one, {second} in the other"
    assert where == "run.sh:1, run.sh:2"


def test_faults_of_both_are_both_told(tmp_path: Path) -> None:
    found = _audit(tmp_path, RUN.format(0.9) + RUN.format(0.8))
    assert _of(found, "top-p-renormalises") == [("0.9", "run.sh:1"), ("0.8", "run.sh:2")]


def test_launches_in_two_files_count_alike(tmp_path: Path) -> None:
    found = _audit(tmp_path, RUN.format(0.9), RUN.format(1.0))
    assert _of(found, "top-p-renormalises") == [("0.9", "run.sh:1")]
    assert len(_of(found, "several-launches")) == 1


def test_replicas_that_differ_in_their_port_alone_are_one(tmp_path: Path) -> None:
    serve = "vllm serve /m/A --dtype bfloat16 --port {} &\n"
    assert _of(_audit(tmp_path, serve.format(1) + serve.format(2)), "several-launches") == []
    looped = "for p in 1 2 3; do vllm serve /m/A --dtype bfloat16 --port $p & done\n"
    assert _of(_audit(tmp_path, looped), "several-launches") == []


def test_a_loop_over_a_value_that_counts_is_several_launches(tmp_path: Path) -> None:
    looped = "for d in bfloat16 float16; do vllm serve /m/A --dtype $d & done\n"
    assert _of(_audit(tmp_path, looped), "several-launches") == [("bfloat16 in one, float16 in the other", "run.sh:1")]


def test_branches_stay_branches(tmp_path: Path) -> None:
    text = f'if [ "$1" = a ]; then\n{RUN.format(0.9)}else\n{RUN.format(1.0)}fi\n'
    found = _audit(tmp_path, text)
    assert _of(found, "several-launches") == []
    assert [f.severity for f in found.findings if f.rule == "top-p-renormalises"] == ["info"]


def test_a_variable_between_two_launches_is_of_the_second(tmp_path: Path) -> None:
    serve = "vllm serve /m/A --attention-backend FLASH_ATTN\n"
    found = _audit(tmp_path, f"{serve}export VLLM_BATCH_INVARIANT=1\n{serve}")
    ((value, where),) = _of(found, "several-launches")
    assert (value, where) == ("not set in one, 1 in the other", "run.sh:1, run.sh:2")


def test_more_launches_than_are_judged_are_told(tmp_path: Path) -> None:
    found = _audit(tmp_path, "".join(RUN.format(f"0.{n}") for n in range(11, 31)))
    assert "20 combinations of launches: 12 of them were judged" in [entry.why for entry in found.evidence.unread]


def test_a_server_and_a_trainer_are_no_two_launches_of_one_engine(tmp_path: Path) -> None:
    train = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --swiglu\n"
    found = _audit(tmp_path, f"vllm serve /m/A --dtype float16\n{train}")
    assert _of(found, "several-launches") == []
    assert not any("was read here" in f.consequence for f in found.findings)


def test_what_is_said_of_training_beside_a_server_alone_is_called_a_supposition(tmp_path: Path) -> None:
    found = _audit(tmp_path, "vllm serve /m/A --quantization fp8 --enable-expert-parallel\n")
    (one,) = [f for f in found.findings if f.rule == "quantised-rollout"]
    assert one.consequence.endswith("(Nothing of training was read here: what is said of it is supposed.)")
    for finding in found.findings:
        says = "train" in f"{finding.title} {finding.consequence}".replace("(Nothing of training was read here", "")
        assert says == ("was read here" in finding.consequence)


def test_a_setting_given_twice_on_one_line_names_its_place_once(tmp_path: Path) -> None:
    found = _audit(tmp_path, "vllm serve /m/A --tensor-parallel-size 2 --tensor-parallel-size 4\n")
    (one,) = [f for f in found.findings if f.rule == "set-twice"]
    assert one.where.endswith("run.sh:1")
    assert "," not in one.where
    assert one.side == "rollout"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("vllm serve m --max-model-length 8\n", "--max-model-len"),
        (
            RUN.format("1 +actor_rollout_ref.rollout.engine_kwargs.vllm.max_model_length=8"),
            "actor_rollout_ref.rollout.engine_kwargs.vllm.max_model_len",
        ),
        ("python3 train.py --hf-checkpoint m --vllm-max-model-length 8\n", "--vllm-max-model-len"),
    ],
)
def test_the_nearest_option_is_written_as_the_launch_writes_it(tmp_path: Path, text: str, fix: str) -> None:
    (one,) = [f for f in _audit(tmp_path, text).findings if f.rule == "unknown-engine-option"]
    assert one.fix == f"Write {fix}."
