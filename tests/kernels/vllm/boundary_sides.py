"""What tests of captures share: an engine in the test's process, tokens of it, captures, and comparisons of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import BoundaryFile
from logdiff_kernels.protocol import Request
from logdiff_kernels.sequences import build, read, write

SAMPLING = {"max_tokens": 10, "temperature": 1.0, "seed": 3, "ignore_eos": True}
ARGS = {"enforce_eager": True, "max_model_len": 256, "gpu_memory_utilization": 0.3}
SHARED = 40
TASKS = {"decode": "force", "prefill": "rescore"}
NOISE = 0.03
"""bf16 keeps 8 bits, so that one rounding is up to 2^-9 of a value; four layers of a few roundings each."""


def silent(*_: Any, **__: Any) -> None:
    return None


class Side:
    """A running vLLM with tokens that it sampled: two prompts of their own, two that share their first 40 tokens."""

    def __init__(self, model: Path, folder: Path, **args: Any) -> None:
        from logdiff_kernels.engines.vllm.adapter import create

        self.model, self.folder, self._count = model, folder, 0
        self.engine = create(Request("vllm", "rollout", str(model), "bfloat16", {**ARGS, **args}, sampling=SAMPLING))
        rng = np.random.default_rng(5)
        head = rng.integers(3, 1000, SHARED).tolist()
        prompts = [rng.integers(3, 1000, n).tolist() for n in (7, 33)] + [[*head, 11, 12], [*head, 13]]
        given = write(folder / "prompts.safetensors", build([f"s{i}" for i in range(len(prompts))], prompts))
        self.tokens = folder / "tokens.safetensors"
        self.run(task="generate", input=str(given), output=str(self.tokens))
        self.source = read(self.tokens)

    def run(self, **task: Any) -> Any:
        return self.engine.run(task, silent)

    def logprobs(self, phase: str, **options: Any) -> bytes:
        """The bits of the phase's log-probabilities without a capture."""
        self._count += 1
        path = self.folder / f"{self._count}.safetensors"
        self.run(task=TASKS[phase], input=str(self.tokens), output=str(path), **options)
        return read(path).columns["logprobs"].tobytes()

    def capture(self, phase: str, **options: Any) -> Taken:
        """A capture of a phase."""
        self._count += 1
        path, logprobs = (self.folder / f"{self._count}-{kind}.safetensors" for kind in ("rows", "logprobs"))
        done = self.run(
            task="capture", phase=phase, input=str(self.tokens), output=str(path), logprobs=str(logprobs), **options
        )
        return Taken(BoundaryFile(path), done.data, read(logprobs).columns["logprobs"].tobytes())

    def swap(self, boundary: str, inputs: BoundaryFile) -> BoundaryFile:
        """This engine's operator over the inputs in a file."""
        self._count += 1
        path = self.folder / f"{self._count}-swap.safetensors"
        self.run(task="swap", boundary=boundary, inputs=str(inputs.path), output=str(path))
        return BoundaryFile(path)

    def loaded(self) -> Any:
        """The model in this process."""
        core = self.engine.llm.llm_engine.engine_core.engine_core
        return core.model_executor.driver_worker.worker.model_runner.get_model()

    def score(self) -> BoundaryFile:
        """The same tokens captured from Transformers in one forward pass per sample."""
        from logdiff_kernels.engines.transformers.adapter import TransformersAdapter

        args = {"attn_implementation": "eager"}
        train = TransformersAdapter(Request("transformers", "train", str(self.model), "bfloat16", args))
        path = self.folder / "score.safetensors"
        task = {"task": "capture", "phase": "score", "input": str(self.tokens), "output": str(path)}
        train.run({**task, "sampling": SAMPLING, "logprobs": str(self.folder / "score-lp.safetensors")}, silent)
        train.close()
        return BoundaryFile(path)


class Taken:
    """A capture: its file, what the task said, the bits of its log-probabilities."""

    def __init__(self, file: BoundaryFile, data: dict[str, Any], logprobs: bytes) -> None:
        self.file, self.data, self.logprobs = file, data, logprobs


@pytest.fixture(scope="module")
def in_process() -> Iterator[pytest.MonkeyPatch]:
    """The engine's core lives in the test's process, so that a test can reach its model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("LOGDIFF_HOOKS", "")
        patch.delenv("LOGDIFF_ALIGN", raising=False)
        patch.delenv("LOGDIFF_BUDGET", raising=False)
        yield patch


@pytest.fixture(scope="module")
def side(
    request: pytest.FixtureRequest, in_process: Any, model_folder: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Side]:
    """An engine with the module's `MODEL` and, where it has them, its `ARGUMENTS`."""
    arguments = getattr(request.module, "ARGUMENTS", {})
    found = Side(model_folder(request.module.MODEL), tmp_path_factory.mktemp("side"), **arguments)
    yield found
    found.engine.close()


@pytest.fixture(scope="module")
def taken(side: Side) -> dict[str, Taken]:
    """A capture of each phase."""
    return {phase: side.capture(phase) for phase in TASKS}


def keys(file: BoundaryFile, name: str) -> dict[tuple[int, int], int]:
    """{(sample, position): row of the boundary}."""
    sample, position = file.tensor("rows.sample"), file.tensor("rows.position")
    return {(int(sample[r]), int(position[r])): i for i, r in enumerate(file.rows(name).tolist())}


def paired(one: BoundaryFile, other: BoundaryFile, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the boundary that both files have, in the same order; at least one."""
    a, b = keys(one, name), keys(other, name)
    both = sorted(set(a) & set(b))
    assert both, name
    return one.tensor(name)[[a[k] for k in both]], other.tensor(name)[[b[k] for k in both]]


def away(one: BoundaryFile, other: BoundaryFile, name: str) -> float:
    """rms(a - b) / rms(b)."""
    a, b = (rows.double() for rows in paired(one, other, name))
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def differ(one: BoundaryFile, other: BoundaryFile) -> list[str]:
    """Boundaries with differing bits, in execution order."""
    both = {e.name for e in one.entries()} & {e.name for e in other.entries()}
    assert both
    found = (name for name in sorted(both, key=names.order) if not torch.equal(*paired(one, other, name)))
    return list(found)


def received(side: Side, file: BoundaryFile, phase: str) -> None:
    """Ids and positions of every token that the phase feeds are there, and are the tokens'."""
    sample, position = file.tensor("rows.sample").tolist(), file.tensor("rows.position").tolist()
    whole = [[*p, *r] for p, r in zip(side.source.prompts, side.source.responses, strict=True)]
    fed = [(s, i) for s, ids in enumerate(whole) for i in range(len(ids) - (phase == "decode"))]
    assert list(zip(sample, position, strict=True)) == fed
    assert file.tensor("rows.input_id").tolist() == [whole[s][i] for s, i in fed]
    assert file.tensor("rows.position_id").tolist() == [i for _, i in fed]


def connected(file: BoundaryFile) -> None:
    """Every operator was fed boundaries of the file, to the bit; nothing has weights and no boundary."""
    for entry in file.entries():
        expected = () if entry.name == "embedding" else None
        assert entry.inputs == expected if expected is not None else entry.inputs and "" not in entry.inputs, entry
    assert file.header.unmapped == []


def whole(side: Side, taken: Taken, phase: str) -> None:
    """The capture changed no bit, and has every row and every edge."""
    assert taken.logprobs == side.logprobs(phase)
    received(side, taken.file, phase)
    connected(taken.file)
