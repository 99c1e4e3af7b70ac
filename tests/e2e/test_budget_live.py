"""The budget of real engines: shares and unexplained are one, and the named smallest set gives exactly zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from logdiff.live import RunFile, run
from logdiff.localize.budget_run import Budget, budget


def run_file(model: str, rollout: dict[str, Any], train: dict[str, Any] | None = None, **more: Any) -> RunFile:
    return RunFile.from_dict(
        {
            "format": "logdiff-run/1",
            "model": f"builtin:{model}",
            "dtype": "bfloat16",
            "prompts": {"random": {"count": 8, "lengths": [7, 33, 64], "seed": 1}},
            "sampling": {"max_tokens": 16, "temperature": 1.0, "seed": 7, "ignore_eos": True},
            "rollout": rollout,
            "train": {"engine": "transformers", "args": {"attn_implementation": "sdpa", **(train or {})}},
            **more,
        }
    )


def measured(file: RunFile, folder: Path, **limits: Any) -> Budget:
    found: list[Budget] = []

    def then(session: Any, _measurement: Any) -> None:
        session.close("rollout")
        found.append(budget(session, **{"seconds": 900.0, **limits}))

    run(file, folder, then=then)
    return found[0]


def mismatched(case: Path) -> int:
    from logdiff.case import Case

    with Case.open(case) as opened:
        return int(opened.read_result("measure")["measure"]["mismatched_tokens"])


def check(found: Budget, file: RunFile, folder: Path) -> None:
    """Sums, the set's own pass, and the set again by `logdiff run` on all tokens of the stock case."""
    assert found.complete, found.reason
    assert found.details["stock_again"] is True
    assert sum(share.share for share in found.shares) == 1.0
    assert found.shares[-1].component == "unexplained"
    assert found.shares[-1].share == 0
    assert found.smallest is not None
    assert (found.smallest["reaches"], found.smallest["mismatched_tokens"]) == ("zero", 0)
    assert found.smallest["all_tokens"]
    ops = found.smallest["ops"]
    assert {share.component for share in found.shares if share.share > 0} <= {*ops}
    assert mismatched(folder / "stock") > 0
    aligned = RunFile.from_dict({**file.model_dump(), "align": {"ops": ops, "tokens": str(folder / "stock")}})
    assert mismatched(run(aligned, folder / "set").path) == 0
    for op in ops:
        fewer = [other for other in ops if other != op]
        subset = next(p for p in found.details["passes"] if set(p["ops"]) == set(fewer))
        assert subset["mismatched_tokens"] > 0


@pytest.mark.slow(seconds=60)
def test_two_transformers_engines(tmp_path: Path) -> None:
    file = run_file("qwen3", {"engine": "transformers-generate", "args": {"attn_implementation": "eager"}})
    check(measured(file, tmp_path / "stock"), file, tmp_path)


@pytest.mark.slow(seconds=60)
def test_another_function_on_one_side_stays_unexplained(tmp_path: Path) -> None:
    """The train side's norms add another epsilon: replacing an operator keeps it, so no operator's share holds it."""
    rollout = {"engine": "transformers-generate", "args": {"attn_implementation": "eager"}}
    found = measured(run_file("qwen3", rollout, {"rms_norm_eps": 0.05}), tmp_path / "stock")
    shares = {share.component: share.share for share in found.shares}
    assert sum(shares.values()) == 1.0
    assert shares["unexplained"] > 0.8
    assert found.smallest is not None
    assert found.smallest["reaches"] == "what all leave"


@pytest.mark.slow(seconds=150)
def test_vllm_and_transformers(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    args = {"enforce_eager": True, "block_size": 128, "max_model_len": 512}
    file = run_file("qwen3", {"engine": "vllm", "args": args})
    found = measured(file, tmp_path / "stock")
    assert found.details["switched_in_place"] == {"rollout": True, "train": True}
    assert found.details["starts"] <= 2
    check(found, file, tmp_path)
