"""The on-policy example: its parts against their formulas, and short runs on real engines."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logdiff_kernels.errors import InputError

pytest.importorskip("torch")
import torch
from logdiff_kernels import align

from examples.true_on_policy import fp32_gradients
from examples.true_on_policy.grpo import advantages, objective
from examples.true_on_policy.loop import NotOnPolicyError, require_on_policy, write_overlay
from examples.true_on_policy.metrics import difference, ratios, unequal_weights
from examples.true_on_policy.plot import comparable_runs, summary, write_plots
from examples.true_on_policy.settings import Settings
from examples.true_on_policy.task import Task

ROOT = Path(__file__).resolve().parents[2]


def test_an_advantage_is_the_reward_in_standard_deviations_of_its_own_group() -> None:
    found = advantages([1.0, 3.0, 10.0, 10.0], group=2)
    assert found[:2] == pytest.approx([-1.0, 1.0], abs=2e-4)  # mean 2, standard deviation 1
    assert found[2:].tolist() == [0.0, 0.0]  # equal rewards teach nothing


def test_the_objective_at_ratio_one_has_the_gradient_of_advantage_times_logp() -> None:
    old = torch.tensor([-1.0, -2.0, -0.5])
    logp = old.clone().requires_grad_()
    advantage = torch.tensor([1.0, -2.0, 0.5])
    objective(logp, old, advantage, clip=0.2).backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == (-advantage).tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"),
    [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True)],
)
def test_the_objective_stops_where_clipping_makes_it_worse(ratio: float, advantage: float, flows: bool) -> None:
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    objective(logp, torch.zeros(1), torch.tensor([advantage]), clip=0.2).backward()
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(-ratio * advantage if flows else 0.0)


def test_difference_counts_bits_and_measures_nats() -> None:
    train = [np.array([-1.0, -2.0], np.float32), np.array([-0.5], np.float32)]
    one_ulp = np.nextafter(np.float32(-2.0), np.float32(0.0))
    rollout = [np.array([-1.0, one_ulp], np.float32), np.array([-0.5], np.float32)]
    found = difference(train, rollout)
    assert (found["tokens"], found["mismatched"]) == (3, 1)
    gap = 2.0**-23
    assert found["max_abs"] == gap
    assert found["mean_abs"] == pytest.approx(gap / 3)
    assert found["k3"] == pytest.approx(gap**2 / 2 / 3, rel=1e-6)  # exp(-g) - 1 + g = g^2/2 - ...
    assert difference(train, train)["mismatched"] == 0


@pytest.mark.parametrize(
    ("train", "rollout", "says"),
    [
        ([], [], "no response token"),
        ([np.zeros(0, np.float32)], [np.zeros(0, np.float32)], "no response token"),
        ([np.zeros(1, np.float32)], [np.zeros(2, np.float32)], "number of tokens"),
        ([np.full(1, np.nan, np.float32)], [np.full(1, np.nan, np.float32)], "not finite"),
    ],
)
def test_difference_is_never_zero_by_absence(train: Any, rollout: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        difference(train, rollout)


def test_ratios_tell_tokens_off_one_and_clipped_ones() -> None:
    values = np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), 1.5, 0.5], np.float32)
    found = ratios(values, clip=0.25)
    assert (found["not_one"], found["clipped"], found["min"], found["max"]) == (3, 0.5, 0.5, 1.5)


def test_weights_are_compared_by_name_and_through_ties() -> None:
    def document(sums: dict[str, str], tied: dict[str, str]) -> dict[str, Any]:
        return {"tensors": {name: {"sum": value} for name, value in sums.items()}, "tied": tied}

    both = document({"embed": "a", "layer": "b"}, {"head": "embed"})
    assert unequal_weights(both, both) == []
    stale_head = document({"embed": "a", "layer": "b", "head": "old"}, {})
    assert unequal_weights(both, stale_head) == ["head"]
    assert unequal_weights(both, document({"embed": "a"}, {"head": "embed"})) == ["layer"]
    assert unequal_weights(document({}, {}), document({}, {}))


def _line(step: int, d: float, off: int) -> dict[str, Any]:
    update = {"mean": 1.0, "min": 1.0 - d, "max": 1.0 + d, "not_one": off, "clipped": 0.0}
    return {
        "step": step,
        "tokens": 8,
        "mismatched": off,
        "max_abs": d,
        "k3": d * d / 2,
        "first_update": update,
        "last_update": {"mean": 1.0, "min": 0.9, "max": 1.1, "not_one": 8, "clipped": 0.0},
        "reward": 0.1 * step,
        "rollout_tokens_per_second": 100.0,
        "seconds": {"step": 2.0},
    }


def test_an_aligned_step_with_one_bit_off_is_refused() -> None:
    require_on_policy(_line(0, 0.0, 0))
    with pytest.raises(NotOnPolicyError, match="step 3: 1 of 8 tokens differ"):
        require_on_policy(_line(3, 2.0**-24, 1))


def test_plots_and_summary_hold_both_runs(tmp_path: Path) -> None:
    runs = {"stock": [_line(i, 0.25, 8) for i in range(8)], "aligned": [_line(i, 0.0, 0) for i in range(8)]}
    rows = {row[0]: row[1:] for row in summary(runs)}
    assert rows["tokens whose bits differ"] == ["64", "0"]
    assert rows["max abs d (nats)"] == ["0.25", "0"]
    assert rows["reward, first and last quarter"] == ["0.050 to 0.650"] * 2  # means of 0, 0.1 and of 0.6, 0.7
    png, page = write_plots(runs, tmp_path, "a <title>")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text(encoding="utf-8")
    assert "a &lt;title&gt;" in text
    assert "<svg" in text


def test_runs_of_other_settings_are_not_drawn_side_by_side(tmp_path: Path) -> None:
    def write(mode: str, step_count: int, age: float) -> None:
        (tmp_path / mode).mkdir(exist_ok=True)
        (tmp_path / mode / "settings.json").write_text(json.dumps({"mode": mode, "steps": step_count}))
        metrics = tmp_path / mode / "metrics.jsonl"
        metrics.write_text(json.dumps(_line(0, 0.0, 0)) + "\n")
        os.utime(metrics, (age, age))

    write("stock", 2, age=1000.0)
    write("aligned", 2, age=2000.0)
    assert list(comparable_runs(tmp_path)) == ["stock", "aligned"]
    write("aligned", 3, age=2000.0)
    assert list(comparable_runs(tmp_path)) == ["aligned"]


def test_the_reward_is_the_share_of_tokens_with_the_letter() -> None:
    class Words:
        def decode(self, ids: list[int]) -> str:
            return ["tea", "SEA", "sun"][ids[0]]

    task = Task(Words(), "e", seed=0)
    assert task.reward([0, 1, 2, 2]) == 0.5
    assert task.reward([]) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp32_gradients_keep_the_forward_and_are_near_the_fp64_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 40, dtype=dtype)
    x = torch.randn(3, 5, 96, dtype=dtype)
    seed = torch.randn(3, 5, 40, dtype=dtype)
    stock = layer(x)
    fp32_gradients.apply(torch.nn.Sequential(layer))
    leaf = x.clone().requires_grad_()
    ours = layer(leaf)
    assert torch.equal(ours, stock)
    ours.backward(seed)
    assert leaf.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    rows, grad = x.double().flatten(0, 1), seed.double().flatten(0, 1)
    half_ulp = torch.finfo(dtype).eps / 2
    for found, wanted in (
        (leaf.grad, seed.double() @ layer.weight.double()),
        (layer.weight.grad, grad.T @ rows),
        (layer.bias.grad, grad.sum(0)),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=1.01 * half_ulp, atol=1e-4)


@pytest.mark.parametrize("wrong", [{"group": 1}, {"minibatches": 99}, {"temperature": 0.0}, {"lr": 0.0}, {"steps": 0}])
def test_settings_that_cannot_be_run_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|between|needs"):
        Settings("stock", "folder", **wrong)


def test_the_overlay_is_one_that_engines_read(tmp_path: Path) -> None:
    path = write_overlay(tmp_path / "align.json", "linear,rope")
    assert path.is_absolute()
    for side in align.SIDES:
        spec = align.load(path, side)
        assert spec is not None
        assert spec.ops == {"linear", "rope"}
    with pytest.raises(InputError):
        write_overlay(tmp_path / "align.json", "linear,nonsense")


def _run(folder: Path, mode: str, *more: str, steps: int = 2) -> subprocess.CompletedProcess[str]:
    arguments = ["--model=qwen3", "--prompts=2", "--group=4", "--max-tokens=12", "--lr=3e-4", f"--steps={steps}"]
    command = [sys.executable, "-m", "examples.true_on_policy", f"--mode={mode}", f"--out={folder}", *arguments, *more]
    environment = {key: value for key, value in os.environ.items() if key != align.VARIABLE}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)


def _metrics(folder: Path, mode: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / mode / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.slow(seconds=150)
def test_aligned_is_exactly_on_policy_where_stock_is_not(tmp_path: Path) -> None:
    done = _run(tmp_path, "both", "--check-weights=1")
    assert done.returncode == 0, done.stderr
    stock, aligned = _metrics(tmp_path, "stock"), _metrics(tmp_path, "aligned")
    assert len(stock) == len(aligned) == 2
    for line in stock:
        assert line["mismatched"] > 0.5 * line["tokens"]
        assert line["first_update"]["not_one"] > 0
    for line in aligned:
        assert line["tokens"] > 50
        assert (line["mismatched"], line["max_abs"], line["k3"]) == (0, 0.0, 0.0)
        assert line["first_update"]["not_one"] == 0
        assert line["first_update"]["mean"] == line["first_update"]["max"] == 1.0
        assert line["last_update"]["not_one"] > 0  # the first update did move the policy
        assert line["weights_changed"] > 0
        assert line["weights_checked"]
    assert (tmp_path / "true-on-policy.png").is_file()


@pytest.mark.slow(seconds=60)
def test_a_run_with_one_operator_left_stock_is_refused(tmp_path: Path) -> None:
    others = ",".join(op for op in align.OPERATORS if op != "attention")
    done = _run(tmp_path, "aligned", f"--ops={others}", steps=1)
    assert done.returncode == 1, done.stderr
    assert "not on-policy" in done.stderr
    assert _metrics(tmp_path, "aligned")[0]["mismatched"] > 0


@pytest.mark.slow(seconds=90)
def test_an_aligned_run_repeats_itself_to_the_bit(tmp_path: Path) -> None:
    seen = []
    for name in ("one", "two"):
        done = _run(tmp_path / name, "aligned")
        assert done.returncode == 0, done.stderr
        lines = _metrics(tmp_path / name, "aligned")
        seen.append([{k: v for k, v in x.items() if k not in ("seconds", "rollout_tokens_per_second")} for x in lines])
    assert seen[0] == seen[1]
