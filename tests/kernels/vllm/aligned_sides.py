"""Both engines of a comparison, each in a runner of its own, with an alignment overlay; and the bits they give."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from logdiff_kernels.sequences import Sequences, build, read, write

ARGS = {
    "enforce_eager": True,
    "max_model_len": 512,
    "block_size": 32,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 16,
}
SAMPLING = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "topk": 0, "ignore_eos": True}


def overlay(path: Path, ops: Any = "all", sides: tuple[str, ...] = ("rollout", "train")) -> Path:
    """Write an overlay file; `ops` is "all" or a list of operator names."""
    from logdiff_kernels.align import OPERATORS

    names = list(OPERATORS) if ops == "all" else list(ops)
    body = {"format": "logdiff-overlay/1", "contract": "aligned/1", "provider": "aligned-cpu", "id": "test"}
    path.write_text(json.dumps({**body, "ops": names, "sides": list(sides)}))
    return path


class Side:
    """One interactive runner; `with` ends it."""

    def __init__(
        self, folder: Path, name: str, aligned: Path | None, env: dict[str, str] | None = None, **request: Any
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log = folder, folder / f"{name}.log"
        body = {"format": "logdiff-request/1", "sampling": SAMPLING, "interactive": True, **request}
        path = folder / f"{name}.json"
        path.write_text(json.dumps(body), encoding="utf-8")
        variables = {**os.environ, "OMP_NUM_THREADS": "2", **(env or {})}
        variables.pop("LOGDIFF_ALIGN", None)
        if aligned is not None:
            variables["LOGDIFF_ALIGN"] = str(aligned)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "logdiff_kernels.runner", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
            text=True,
            start_new_session=True,
            env=variables,
        )
        self._count = 0

    def wait(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            event = dict(json.loads(line))
            if event["event"] in ("result", "error"):
                return event
        raise AssertionError(f"the runner ended ({self.child.wait(timeout=20)}):\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def task(self, name: str, **fields: Any) -> tuple[Path, dict[str, Any]]:
        """(output file, the whole event) of a task. Fails with the log's end if the task does."""
        self._count += 1
        output = self.folder / f"{self.log.stem}-{self._count}-{name}"
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps({"id": name, "task": name, "output": str(output), **fields}) + "\n")
        self.child.stdin.flush()
        event = self.wait()
        assert event["event"] == "result", f"{event}\n{self.tail()}"
        return output, event

    def sequences(self, name: str, source: Path, **fields: Any) -> Path:
        return self.task(name, input=str(source), **fields)[0]

    def document(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.task(name)[0].read_text()))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(timeout=20)

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rollout(folder: Path, model: Path | str, aligned: Path | None, **more: Any) -> Side:
    """A vLLM engine. `args` are added to `ARGS`, `env` to the environment; `dtype` and `name` as given."""
    args = {**ARGS, **more.pop("args", {})}
    name, env, dtype = more.pop("name", "rollout"), more.pop("env", None), more.pop("dtype", "bfloat16")
    request = {"engine": "vllm", "side": "rollout", "model": str(model), "dtype": dtype, "args": args, **more}
    return Side(folder, name, aligned, env, **request)


def train(folder: Path, model: Path | str, aligned: Path | None, **more: Any) -> Side:
    """A Transformers engine."""
    args = more.pop("args", {"attn_implementation": "sdpa"})
    name, env, dtype = more.pop("name", "train"), more.pop("env", None), more.pop("dtype", "bfloat16")
    request = {"engine": "transformers", "side": "train", "model": str(model), "dtype": dtype, "args": args, **more}
    return Side(folder, name, aligned, env, **request)


def prompts(path: Path, lengths: tuple[int, ...], vocabulary: int = 1024, seed: int = 5, shared: int = 0) -> Path:
    """Random prompts of these lengths; the first `shared` tokens are the same in all that are longer."""
    rng = np.random.default_rng(seed)
    head = rng.integers(3, vocabulary, shared).tolist()
    ids = []
    for length in lengths:
        own = rng.integers(3, vocabulary, length).tolist()
        ids.append([*head, *own[shared:]] if length > shared else own)
    return write(path, build([str(i) for i in range(len(ids))], ids))


def differing(one: Path | Sequences, other: Path | Sequences) -> tuple[int, int, float]:
    """(tokens whose log-probabilities differ in any bit, tokens, largest difference) of the same tokens."""
    a, b = (read(side) if not isinstance(side, Sequences) else side for side in (one, other))
    assert a.responses == b.responses
    assert a.prompts == b.prompts
    x, y = (side.columns["logprobs"].astype(np.float32) for side in (a, b))
    assert len(x) > 0
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    return int((x.view(np.uint32) != y.view(np.uint32)).sum()), len(x), float(np.abs(x - y).max())


def report(what: str, result: tuple[int, int, float]) -> None:
    print(f"{what}: {result[0]} of {result[1]} tokens differ, max abs d {result[2]:.3g}", flush=True)


if __name__ == "__main__":
    import argparse
    import tempfile
    import time

    from logdiff_kernels.models import build as build_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--args", default="{}", help="JSON, arguments of vllm.LLM")
    parser.add_argument("--lengths", default="5,41,90,13")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--ops", default="all")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--stock", action="store_true")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    model = build_model(chosen.model)
    ops = chosen.ops if chosen.ops == "all" else chosen.ops.split(",")
    aligned = None if chosen.stock else overlay(folder / "align.json", ops)
    sampling = {**SAMPLING, "max_tokens": chosen.tokens, "temperature": chosen.temperature}
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    source = prompts(folder / "prompts", tuple(map(int, chosen.lengths.split(","))), vocabulary)
    start = time.time()
    args = json.loads(chosen.args)
    with rollout(folder, model, aligned, dtype=chosen.dtype, args=args, sampling=sampling) as side:
        decoded = side.sequences("generate", source, sampling=sampling)
        print(f"decoded after {time.time() - start:.1f} s", flush=True)
        report("decode against rescore", differing(decoded, side.sequences("rescore", decoded, sampling=sampling)))
        one = side.sequences("force", decoded, sampling=sampling, batch=1)
        report("decode against decode one by one", differing(decoded, one))
    if not chosen.no_train:
        with train(folder, model, aligned, dtype=chosen.dtype, sampling=sampling) as side:
            scored = side.sequences("score", decoded, sampling=sampling)
        report("decode against train", differing(decoded, scored))
