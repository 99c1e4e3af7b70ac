"""What each aligned operator gives and costs: all operators aligned but one, real engines, the same tokens.

`python -m benchmarks.ablation --model smollm2 --ops linear attention` prints one JSON line per variant: tokens whose
bits differ between rollout and train, mean and max |d|, and the time of decoding and of scoring, each over the time
with that operator stock. `none` is the variant with every operator aligned, `all` the stock engines.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from logdiff.case.sequences import read_sequences
from logdiff.jsonio import dumps
from logdiff.live import RunFile, resolve_models
from logdiff.live.prompts import random_prompts, sample_ids
from logdiff.target import EngineSpec, start
from logdiff.target.alignment import OPERATORS, SIDES, VARIABLE, overlay_document

LEFT_OUT = ("none", "all", *(op for op in OPERATORS if op not in ("all_reduce", "reduce_scatter")))
"""`none`: nothing left stock. Reductions over ranks need several ranks."""
REPEATS = 2


def run_of(model: str, rollout: str, tokens: int) -> RunFile:
    """Eight prompts, given number of response tokens each."""
    vllm = {"enforce_eager": True, "block_size": 128, "max_model_len": 1024}
    return RunFile.from_dict(
        {
            "format": "logdiff-run/1",
            "model": f"builtin:{model}",
            "prompts": {"random": {"count": 8, "lengths": [7, 33, 64, 128], "seed": 1}},
            "sampling": {"max_tokens": tokens, "temperature": 1.0, "seed": 7, "ignore_eos": True},
            "rollout": {"engine": rollout, "args": vllm if rollout == "vllm" else {}},
            "train": {"engine": "transformers", "args": {"attn_implementation": "sdpa"}},
        }
    )


def measure(run: RunFile, left_out: str, tokens: Path, folder: Path) -> dict[str, Any]:
    """One variant: both engines on the given tokens, each task `REPEATS` times after a first."""
    models = resolve_models(run)
    overlay = ""
    if left_out != "all":
        overlay = str(folder / "align.json")
        ops = [op for op in OPERATORS if op != left_out]
        Path(overlay).write_text(dumps(overlay_document(ops, SIDES, left_out)))
    sampling = run.sampling.request()
    logprobs, seconds = {}, {}
    for side in SIDES:
        spec = replace(run.spec(side, str(models[side])), env={VARIABLE: overlay})
        task: dict[str, Any] = {"task": "force", "sampling": sampling, "batch": None, "order": "given"}
        if side == "train":
            task = {"task": "score", "sampling": sampling, "score": spec.score, "order": "given"}
        logprobs[side], seconds[side] = _timed(spec, {**task, "input": str(tokens)}, folder / f"{side}.safetensors")
    d = logprobs["train"].astype(np.float64) - logprobs["rollout"]
    different = logprobs["train"].view(np.uint32) != logprobs["rollout"].view(np.uint32)
    return {
        "left_out": left_out,
        "tokens": len(d),
        "mismatched": int(different.sum()),
        "mean_abs": float(np.abs(d).mean()),
        "max_abs": float(np.abs(d).max()),
        "rollout_s": seconds["rollout"],
        "train_s": seconds["train"],
    }


def _timed(spec: EngineSpec, task: dict[str, Any], output: Path) -> tuple[np.ndarray, float]:
    engine = start(spec, log=output.with_suffix(".log"))
    try:
        times = []
        for _ in range(REPEATS + 1):
            begin = time.perf_counter()
            engine.run({**task, "output": str(output)})
            times.append(time.perf_counter() - begin)
    finally:
        engine.close()
    return read_sequences(output).columns["logprobs"], min(times[1:])


def sample(run: RunFile, output: Path) -> None:
    """Tokens of the stock rollout engine."""
    from logdiff.case.sequences import build_sequences, write_sequences
    from logdiff.live.models import vocabulary

    models = resolve_models(run)
    folder, prompts = models["rollout"], run.prompts.random
    assert folder is not None
    assert prompts is not None
    ids = random_prompts(prompts, vocabulary(folder))
    given = output.with_name("prompts.safetensors")
    write_sequences(given, build_sequences(sample_ids(len(ids)), ids))
    engine = start(replace(run.spec("rollout", str(folder)), env={VARIABLE: ""}), log=output.with_suffix(".log"))
    try:
        task = {"task": "generate", "input": str(given), "sampling": run.sampling.request(), "output": str(output)}
        engine.run(task)
    finally:
        engine.close()


def main() -> int:
    """Run the variants that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rollout", default="vllm", choices=["vllm", "transformers-generate"])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ops", nargs="*", default=list(LEFT_OUT), choices=LEFT_OUT)
    parser.add_argument("--tokens", type=Path, help="sequence file of an earlier call; made where it does not exist")
    options = parser.parse_args()
    run = run_of(options.model, options.rollout, options.max_tokens)
    with tempfile.TemporaryDirectory(prefix="logdiff-ablation-") as name:
        folder = Path(name)
        tokens = options.tokens or folder / "tokens.safetensors"
        if not tokens.is_file():
            sample(run, tokens)
        for left_out in options.ops:
            print(json.dumps({"model": options.model, **measure(run, left_out, tokens, folder)}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
