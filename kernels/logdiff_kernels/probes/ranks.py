"""Sums over rank processes: gloo, nccl or hccl by one path, the aligned tree beside the library's own all-reduce.

Rank processes are started once per number of ranks and kept until this process ends. Tensors cross by safetensors
files in a folder of their own; each job is one line on a rank's standard input, each answer one line on its output.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from logdiff_kernels.probes.records import AbsentError

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
START_SECONDS = 120
_MARK = "logdiff-rank"


def backend(device: str) -> str:
    """The collective library of a device type."""
    return BACKENDS[device]


def reducer(op: str, library: str, *, aligned: bool = False) -> Callable[..., Tensor]:
    """`call(partial [rows, ranks, n])` -> [rows, n]: the sum over ranks, by processes.

    Args:
        op: `all_reduce`, or `reduce_scatter`, whose parts are put together again.
        library: torch.distributed's backend.
        aligned: the contract's tree over gathered fp32 partials in place of the library's sum.
    """

    def call(partial: Tensor) -> Tensor:
        rows, ranks, n = partial.shape
        if op == "reduce_scatter" and rows * n % ranks:
            raise NotImplementedError(f"reduce_scatter of {rows * n} values over {ranks} ranks")
        flat = partial.detach().transpose(0, 1).contiguous().cpu().reshape(ranks, rows * n)
        found = pool(ranks, library).reduce(op, flat, aligned)
        if not all(torch.equal(_bits(found[0]), _bits(x)) for x in found[1:]):
            raise RuntimeError("the ranks have different results of one all-reduce")
        return found[0].view(rows, n)

    return call


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


class Pool:
    """The processes of one world."""

    def __init__(self, ranks: int, library: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="logdiff-ranks-"))
        self._ranks = ranks
        self._jobs = 0
        command = [sys.executable, "-m", "logdiff_kernels.probes.ranks", str(self._folder), str(ranks), library]
        threads = str(max(1, torch.get_num_threads() // ranks))
        self._processes: list[subprocess.Popen[str]] = [
            subprocess.Popen(
                [*command, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": threads},
            )
            for rank in range(ranks)
        ]
        for rank in range(ranks):
            self._answer(rank)

    def reduce(self, op: str, partials: Tensor, aligned: bool) -> list[Tensor]:
        """partials [ranks, n]: the result [n] that each rank holds (of reduce_scatter: all parts, once)."""
        self._jobs += 1
        job = {"op": op, "aligned": aligned, "number": self._jobs}
        for rank, process in enumerate(self._processes):
            save_file({"x": partials[rank].contiguous()}, str(self._folder / f"in{rank}.safetensors"))
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        for rank in range(self._ranks):
            self._answer(rank)
        found = [load_file(str(self._folder / f"out{rank}.safetensors"))["x"] for rank in range(self._ranks)]
        return found if op == "all_reduce" else [torch.cat(found)]

    def _answer(self, rank: int) -> None:
        stream = self._processes[rank].stdout
        assert stream is not None
        for line in stream:
            if line.startswith(_MARK):
                words = line.removeprefix(_MARK).strip()
                if words != "done":
                    raise AbsentError(f"rank {rank}: {words}")
                return
        raise AbsentError(f"rank {rank} ended with {self._processes[rank].wait()}")

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_pools: dict[tuple[int, str], Pool] = {}


def pool(ranks: int, library: str) -> Pool:
    """The processes of a world, started on first use."""
    if (ranks, library) not in _pools:
        if library != "gloo":
            count = torch.cuda.device_count() if library == "nccl" else torch.npu.device_count()  # type: ignore[attr-defined]
            if count < ranks:
                raise AbsentError(f"{library} over {ranks} ranks needs as many devices, there are {count}")
        if not _pools:
            atexit.register(close)
        _pools[ranks, library] = Pool(ranks, library)
    return _pools[ranks, library]


def close() -> None:
    """End every rank process of this process."""
    while _pools:
        _pools.popitem()[1].close()


def _main(folder: Path, ranks: int, library: str, rank: int) -> None:
    import torch.distributed as dist

    def say(words: str) -> None:
        sys.stdout.write(f"{_MARK} {words}\n")
        sys.stdout.flush()

    device = {"gloo": "cpu", "nccl": f"cuda:{rank}", "hccl": f"npu:{rank}"}[library]
    if library == "hccl":
        import_module("torch_npu")
    dist.init_process_group(library, init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    say("done")
    for line in sys.stdin:
        job = json.loads(line)
        try:
            x = load_file(str(folder / f"in{rank}.safetensors"))["x"].to(device)
            out = _reduce(job, x, ranks, rank)
            save_file({"x": out.cpu().contiguous()}, str(folder / f"out{rank}.safetensors"))
        except Exception as error:
            say(f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
            continue
        say("done")


def _reduce(job: dict[str, Any], x: Tensor, ranks: int, rank: int) -> Tensor:
    import torch.distributed as dist

    width = x.shape[0] // ranks
    if job["aligned"]:
        from logdiff_kernels import ops

        gathered = [torch.empty_like(x, dtype=torch.float32) for _ in range(ranks)]
        dist.all_gather(gathered, x.float())
        whole = ops.tree_combine(torch.stack(gathered)[:, None], None, x.dtype)[0]
        return whole if job["op"] == "all_reduce" else whole[rank * width : (rank + 1) * width]
    if job["op"] == "all_reduce":
        dist.all_reduce(x)
        return x
    part = torch.empty(width, dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(part, x)
    return part


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
