"""The agent without a model, sent out with the real server: from evidence to a verdict, and from a mismatch to a proven
zero and a proven revert."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import scripted_agent
from tests.e2e.scripted_agent import Walk, server, walk

pytestmark = pytest.mark.anyio
TOKENS = 64


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def logprobs(count: int, rng: random.Random) -> list[float]:
    return [-rng.expovariate(1.0) - 1e-3 for _ in range(count)]


def write_pairs(path: Path, seed: int, train: Any, **fields: Any) -> None:
    """Six samples whose trainer column is `train(rollout column, rng)`; log-probabilities far from uniform."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = [{"format": "logdiff-pair/1", "meta": {"vocab_size": 1000, "temperature": 1.0}}]
    for i in range(6):
        rollout = logprobs(TOKENS, rng)
        prompt = [rng.randrange(1000) for _ in range(5)]
        response = [rng.randrange(1000) for _ in range(TOKENS)]
        rows.append(
            {"sample_id": f"s{i}", "prompt_token_ids": prompt, "response_token_ids": response,
             "rollout_logprobs": rollout, "train_logprobs": train(rollout, rng),
             **{name: make(prompt, response) for name, make in fields.items()}}
        )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def other_ids(prompt: list[int], response: list[int]) -> list[int]:
    """The trainer's ids of a response that was split in another way: one id more near its beginning."""
    return [*prompt, *response[:3], 7, *response[3:-1]]


def say(done: Walk) -> str:
    return "\n".join(f"{v.tool} {v.arguments}: {v.error or v.result.get('summary')}" for v in done.visits)


@pytest.mark.parametrize(
    ("train", "fields", "classes"),
    [
        (lambda rollout, rng: list(rollout), {}, {"none"}),
        (lambda rollout, rng: [*rollout[1:], -1.0], {}, {"data"}),
        (lambda rollout, rng: logprobs(TOKENS, rng), {"train_token_ids": other_ids}, {"data"}),
        (lambda rollout, rng: [None] * TOKENS, {}, {"invalid-evidence"}),
    ],
    ids=["equal", "shifted by one", "other ids", "no trainer"],
)
async def test_from_a_pair_file_in_a_workspace_to_its_verdict(
    tmp_path: Path, train: Any, fields: dict[str, Any], classes: set[str]
) -> None:
    write_pairs(tmp_path / "evidence.jsonl", 3, train, **fields)
    done = await walk(server(tmp_path))
    assert done.verdict is not None, say(done)
    assert done.verdict["class"] in classes, say(done)
    assert len(done.visits) <= 15
    assert not any(visit.error for visit in done.visits), say(done)


async def test_nothing_to_look_at_ends_with_a_question_for_a_person(tmp_path: Path) -> None:
    done = await walk(server(tmp_path))
    assert done.verdict is None
    assert len(done.visits) == 1
    assert "ask for" in done.visits[0].facts["page"]


async def test_a_walk_to_the_end_ends_by_itself(tmp_path: Path) -> None:
    write_pairs(tmp_path / "evidence.jsonl", 4, lambda rollout, rng: [*rollout[1:], -1.0])
    done = await walk(server(tmp_path), until="end")
    assert len(done.visits) < 15, say(done)
    assert not done.visits[-1].result["next_steps"]


def test_the_agent_knows_no_tool_by_name() -> None:
    tree = ast.parse(Path(scripted_agent.__file__).read_text(encoding="utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    snapshots = Path(__file__).resolve().parents[1] / "server" / "mcp" / "snapshots"
    tools = {file.stem for file in snapshots.glob("*.json")}
    assert len(tools) > 10
    for tool in tools:
        assert not any(tool in word for word in words), tool


def run_file(model: str, rollout: dict[str, Any], **train: Any) -> str:
    return yaml.safe_dump(
        {
            "format": "logdiff-run/1",
            "model": model,
            "dtype": "bfloat16",
            "prompts": {"random": {"count": 4, "lengths": [9, 33], "seed": 1}},
            "sampling": {"max_tokens": 24, "temperature": 1.0, "seed": 7, "ignore_eos": True},
            "rollout": rollout,
            "train": {"engine": "transformers", "args": {"attn_implementation": "sdpa", **train}},
        }
    )


VLLM = {"engine": "vllm", "args": {"enforce_eager": True, "block_size": 128, "max_model_len": 512}}


@pytest.mark.parametrize(
    ("model", "rollout"),
    [
        pytest.param("qwen3", {"engine": "transformers-generate"}, marks=pytest.mark.slow(seconds=240)),
        pytest.param("smollm2", VLLM, marks=pytest.mark.slow(seconds=600)),
    ],
    ids=["transformers", "vllm"],
)
@pytest.mark.timeout(1800)
async def test_a_stock_mismatch_ends_with_a_proven_zero_and_a_proven_revert(
    tmp_path: Path, model: str, rollout: dict[str, Any]
) -> None:
    """Rounding, shown by an intervention, switched on in the user's own engines, and taken back."""
    if rollout["engine"] == "vllm":
        pytest.importorskip("vllm")
    (tmp_path / "run.yaml").write_text(run_file(f"builtin:{model}", rollout))
    done = await walk(server(tmp_path, allow_write=True), until="end", calls=80)
    assert not any(visit.error for visit in done.visits), say(done)
    assert done.verdict is not None, say(done)
    assert done.verdict["class"] == "operator", say(done)
    stock, *others = [v.facts["measure"] for v in done.visits if v.facts.get("measure")]
    assert stock["mismatched_tokens"] > 0
    zero = others[-1]
    assert (zero["tokens"], zero["mismatched_tokens"]) == (stock["tokens"], 0), say(done)
    last = done.visits[-1].facts["facts"]
    assert last["native"] is True, say(done)
    assert last["proof"]["bits"], say(done)
    assert all(entry["same"] for entry in last["proof"]["bits"].values()), say(done)


@pytest.mark.slow(seconds=240)
@pytest.mark.timeout(900)
async def test_a_side_with_another_epsilon_is_told_from_rounding_and_leads_to_its_fix(tmp_path: Path) -> None:
    rollout = {"engine": "transformers-generate"}
    (tmp_path / "run.yaml").write_text(run_file("builtin:qwen3", rollout, rms_norm_eps=1e-2))
    done = await walk(server(tmp_path))
    assert done.verdict is not None, say(done)
    assert len(done.visits) <= 15
    assert done.verdict["path"] == "framework", say(done)
    assert done.verdict["side"] == "train", say(done)
    assert done.visits[-1].result["next_steps"][0]["arguments"]["name"] == "apply-and-prove"
