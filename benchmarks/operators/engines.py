"""Whole engines, aligned against stock, on SmolLM2 in bf16: vLLM's decoding, Transformers' scoring, a training step.

`vllm-tokens`: two vLLM processes, eager, the same prompts, in turns; both with the libraries preloaded that vLLM's
documentation asks for, where they are there (the row's `preload` names them). `scoring`: forward and log-probabilities
of one sequence. `train-step`: the same with the backward pass. `shape` names length and layers. Before timing, what is
computed is checked: vLLM's log-probabilities are the bits of the aligned trainer, the others as near to fp64 as the
stock model's.

A case that can't run here gives one row {case, skipped: reason}.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from logdiff_kernels import align, models, ops
from logdiff_kernels.errors import RunnerError
from torch import Tensor

from benchmarks.operators.timing import compare

Row = dict[str, Any]
CHILD = Path(__file__).with_name("_vllm_child.py")
PROMPTS = (7, 33, 64, 128, 7, 33, 64, 128)  # lengths
LENGTHS = (512, 2048)
LAYERS = 6
"""Of SmolLM2's 30: stock bf16 products take minutes for all of them where the CPU has none."""
QUICK_LAYERS = 2
CHECKED = 64
"""Tokens that are compared with fp64."""
_PRELOAD = ("tcmalloc_minimal", "iomp5")


def vllm_tokens(quick: bool = False) -> list[Row]:
    """Time for eight requests; `tokens_per_s` of both sides."""
    model = _smollm2()
    if importlib.util.find_spec("vllm") is None:
        return [_skipped("vllm-tokens", "vllm is not installed")]
    if importlib.util.find_spec("transformers") is None:
        return [_skipped("vllm-tokens", "transformers is not installed")]
    tokens, rounds = (8, 2) if quick else (48, 4)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(100, 49152, (n,), generator=generator).tolist() for n in PROMPTS]
    with tempfile.TemporaryDirectory(prefix="logdiff-bench-") as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(_Vllm(model, Path(folder), aligned=True))
        stock = stack.enter_context(_Vllm(model, Path(folder), aligned=False))
        _check_rollout(model, prompts, ours.ask(prompts, 4), stock.ask(prompts, 4))
        calls = [lambda e=engine: e.ask(prompts, tokens) for engine in (ours, stock)]
        shape = f"{len(prompts)} requests x {tokens} tokens"
        rows = compare("vllm-tokens", shape, calls[0], {"vllm-stock": calls[1]}, seconds=None, rounds=rounds)
    made = tokens * len(prompts)
    for row in rows:
        row["tokens_per_s"] = {"ours": made / row["ours_ms"] * 1e3, "peer": made / row["peer_ms"] * 1e3}
        row["preload"] = [Path(path).name for path in ours.preload]
    return rows


def scoring(quick: bool = False) -> list[Row]:
    """Log-probabilities of one sequence, against the stock model in bf16 and in fp32."""
    if importlib.util.find_spec("transformers") is None:
        return [_skipped("scoring", "transformers is not installed")]
    with torch.no_grad():
        forms = _Forms(_smollm2(), quick)
        forms.check(lambda model, score, ids: score(model, ids))
        rows = []
        for length in LENGTHS:
            ids = _ids(length)
            rows += forms.compare("scoring", ids, lambda m, s, i: s(m, i), 1 if quick else 3)
    return rows


def train_step(quick: bool = False) -> list[Row]:
    """Mean log-probability of one sequence and its gradient for every weight, against the stock model."""
    if importlib.util.find_spec("transformers") is None:
        return [_skipped("train-step", "transformers is not installed")]
    forms = _Forms(_smollm2(), quick)
    forms.check(_gradient)
    rows = []
    for length in LENGTHS:
        rows += forms.compare("train-step", _ids(length), _step, 1 if quick else 3)
    return rows


CASES: dict[str, Callable[[bool], list[Row]]] = {
    "vllm-tokens": vllm_tokens,
    "scoring": scoring,
    "train-step": train_step,
}


def run(cases: tuple[str, ...] = tuple(CASES), quick: bool = False) -> list[Row]:
    """Rows {case, ours_ms, peer, peer_ms, ratio, spread, shape} of the named cases.

    `quick`: fewer tokens and layers, one round.
    """
    rows = []
    for case in cases:
        try:
            rows += CASES[case](quick)
        except RunnerError as error:  # no SmolLM2 here, or an engine that does not start
            rows.append(_skipped(case, str(error)))
    return rows


class _Vllm:
    """A vLLM process that answers one request at a time."""

    def __init__(self, model: Path, folder: Path, *, aligned: bool) -> None:
        name = "aligned" if aligned else "stock"
        overlay = folder / "overlay.json"
        fields = {"format": align.FORMAT, "contract": align.CONTRACT, "provider": align.PROVIDER, "id": "bench"}
        overlay.write_text(json.dumps({**fields, "ops": list(align.OPERATORS), "sides": ["rollout"]}))
        self.preload = list(_preload())
        env = {**os.environ, "LD_PRELOAD": ":".join(self.preload), "VLLM_NO_USAGE_STATS": "1"}
        env.pop(align.VARIABLE, None)
        if aligned:
            env[align.VARIABLE] = str(overlay)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(align.__file__).parents[1]), env.get("PYTHONPATH")]))
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                [sys.executable, str(CHILD), str(model)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> _Vllm:
        try:
            self.facts = self._answer()
        except BaseException:
            self._child.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def ask(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """`tokens` and `logprobs`, one list per prompt."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RunnerError(f"vLLM ended: {last[0] if last else 'no word'}"[:300])
        answer: dict[str, Any] = json.loads(line)
        return answer


def _preload() -> Iterator[str]:
    """What `LD_PRELOAD` holds already, and what vLLM's documentation for CPUs asks for and is there."""
    given = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
    yield from given
    for name in _PRELOAD:
        if any(name in path for path in given):
            continue
        beside = sorted(Path(sys.prefix, "lib").glob(f"lib{name}.so*"))
        found = str(beside[0]) if beside else ctypes.util.find_library(name)
        if found:
            yield found


class _Forms:
    """The same weights aligned, with eager attention and with SDPA in bf16, and with both in fp32."""

    def __init__(self, model: Path, quick: bool) -> None:
        from logdiff_kernels.engines.transformers.align import apply

        layers = QUICK_LAYERS if quick else LAYERS
        self.layers, self._folder = layers, model
        self.aligned = _load(model, layers, "sdpa")
        apply(self.aligned, align.AlignSpec())
        self.stock = {name: _load(model, layers, name) for name in ("eager", "sdpa")}
        for name in ("eager", "sdpa"):  # faster than bf16 where the CPU has no bf16 products
            self.stock[f"{name}-fp32"] = _load(model, layers, name, torch.float32)
        slow = quick and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self.left_out = ("eager", "sdpa") if slow else ()

    def check(self, call: Callable[..., Tensor]) -> None:
        """Ours is as near to fp64 as the stock model with eager attention is; raises `AssertionError`."""
        ids = _ids(CHECKED)
        exact = call(_load(self._folder, self.layers, "eager", torch.float64), _score_stock, ids)
        ours, stock = (
            float((found.double() - exact).norm() / exact.norm())
            for found in (call(self.aligned, _score_ours, ids), call(self.stock["eager"], _score_stock, ids))
        )
        if not ours <= 1.25 * stock:
            raise AssertionError(f"rms error {ours:.3g} of fp64's, stock {stock:.3g}")

    def compare(self, case: str, ids: Tensor, call: Callable[..., Any], rounds: int) -> list[Row]:
        """Rows of one length."""
        ours = lambda: call(self.aligned, _score_ours, ids)  # noqa: E731
        peers = {
            f"transformers-{n}": lambda m=m: call(m, _score_stock, ids)
            for n, m in self.stock.items()
            if n not in self.left_out
        }
        shape = f"L{ids.shape[1]} {self.layers} layers"
        rows = compare(case, shape, ours, peers, seconds=None, rounds=rounds)
        skipped = [
            _skipped(case, f"transformers-{name} at {ids.shape[1]} tokens: too slow for --quick, no bf16 in this CPU")
            for name in self.left_out
        ]
        return skipped + rows


def _smollm2() -> Path:
    return Path(models.build("smollm2"))


def _load(folder: Path, layers: int, attention: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, num_hidden_layers=layers
    ).eval()


def _ids(length: int) -> Tensor:
    return torch.randint(100, 49152, (1, length), generator=torch.Generator().manual_seed(2))


def _score_ours(model: Any, ids: Tensor) -> Tensor:
    logits = model(ids, use_cache=False).logits[0, :-1]
    found: Tensor = ops.logprob(logits, ids[0, 1:])
    return found


def _score_stock(model: Any, ids: Tensor) -> Tensor:
    logits = model(ids, use_cache=False).logits[0, :-1]
    dtype = torch.float64 if logits.dtype is torch.float64 else torch.float32
    return torch.log_softmax(logits, dim=-1, dtype=dtype).gather(1, ids[0, 1:, None])[:, 0]


def _step(model: Any, score: Callable[..., Tensor], ids: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    (-score(model, ids).mean()).backward()


def _gradient(model: Any, score: Callable[..., Tensor], ids: Tensor) -> Tensor:
    """Gradients of the first layer's weights: they have come through everything else."""
    _step(model, score, ids)
    found = torch.cat([weight.grad.double().flatten() for weight in model.model.layers[0].parameters()])
    model.zero_grad(set_to_none=True)
    return found


def _check_rollout(model: Path, prompts: list[list[int]], ours: dict[str, Any], stock: dict[str, Any]) -> None:
    """Log-probabilities of the aligned engine are the aligned trainer's bits; those of the stock one are near."""
    from logdiff_kernels.engines.transformers.align import apply

    trainer = _load(model, 30, "sdpa")
    apply(trainer, align.AlignSpec())
    for name, found, bound in (("aligned", ours, 0.0), ("stock", stock, 0.5)):
        for prompt, tokens, logprobs in zip(prompts, found["tokens"], found["logprobs"], strict=True):
            with torch.no_grad():
                want = _score_ours(trainer, torch.tensor([prompt + tokens]))[-len(tokens) :]
            far = float((torch.tensor(logprobs) - want).abs().max())
            if not far <= bound:
                raise AssertionError(f"{name} vLLM is {far} from the aligned trainer")


def _skipped(case: str, reason: str) -> Row:
    return {"case": case, "skipped": reason}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=[*CASES, []])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for line in run(tuple(options.cases), options.quick):
        print(json.dumps(line), flush=True)
