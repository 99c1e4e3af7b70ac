"""Which experts every router chose, by request and token position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.engines.vllm.requests import starts


class ExpertCapture:
    """Keeps the chosen experts of every position of every request while it is installed.

    Ids are logical (before expert-parallel or load-balancing maps), by descending weight: vLLM's own top-k leaves
    them in any order. Memory: positions x layers x k x 2 bytes.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._patches = Patches()
        self._layers = 0
        self._step: dict[int, npt.NDArray[np.int16]] = {}
        self._scheduled: dict[str, int] = {}
        self._rows: list[tuple[str, int, int]] | None = None
        self._seen: dict[str, dict[int, npt.NDArray[np.int16]]] = {}

    def install(self) -> str | None:
        """Watch the routers. Returns the reason why that can't be, or None."""
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        found = [module for module in self._runner.get_model().modules() if isinstance(module, MoERunner)]
        if not found:
            return "the model has no routed experts"
        for module in found:
            if module._quant_method.is_monolithic or not isinstance(module.router, BaseRouter):
                return f"the routing of {type(module.router).__name__} happens inside a fused kernel"
        if self._runner.vllm_config.parallel_config.data_parallel_size > 1:
            return "rows of several data-parallel ranks are mixed in the router"
        for layer, module in enumerate(found):
            router: Any = module.router
            self._patches.set(router, "_compute_routing", self._watched(layer, router._compute_routing))
        self._layers = len(found)
        return None

    def remove(self) -> None:
        """Give the routers back what they had, be it their own method or another observer's."""
        self._patches.restore()

    def begin_step(self, scheduled: dict[str, int]) -> None:
        """A forward pass begins with so many tokens per request."""
        self._scheduled, self._step, self._rows = scheduled, {}, None

    def end_step(self) -> None:
        """The forward pass ended: sort its rows into requests and positions."""
        if self._rows is None or len(self._step) != self._layers:
            return
        stacked = np.stack([self._step[layer] for layer in range(self._layers)], axis=1)
        row = 0
        for request, start, count in self._rows:
            self._seen.setdefault(request, {})[start] = stacked[row : row + count].copy()
            row += count
        self._step = {}

    def collected(self) -> tuple[dict[str, Any], bytes]:
        """{request id: [offset in int16 elements, positions, layers, k]} and the int16 bytes, position 0 first."""
        index: dict[str, list[int]] = {}
        parts: list[npt.NDArray[np.int16]] = []
        offset = 0
        for request, pieces in self._seen.items():
            length = max(start + len(piece) for start, piece in pieces.items())
            layers, k = next(iter(pieces.values())).shape[1:]
            whole = np.full((length, layers, k), -1, dtype=np.int16)
            for start, piece in pieces.items():
                whole[start : start + len(piece)] = piece
            index[request] = [offset, length, layers, k]
            offset += whole.size
            parts.append(whole.reshape(-1))
        return index, (np.concatenate(parts).tobytes() if parts else b"")

    def _watched(self, layer: int, compute: Any) -> Any:
        def compute_routing(*arguments: Any, **named: Any) -> Any:
            weights, ids = compute(*arguments, **named)
            self._keep(layer, ids.gather(-1, weights.argsort(dim=-1, descending=True, stable=True)))
            return weights, ids

        return compute_routing

    def _keep(self, layer: int, ids: Any) -> None:
        if self._rows is None:
            batch = self._runner.input_batch
            self._rows = [
                (request, int(batch.num_computed_tokens_cpu[row]), self._scheduled[request])
                for row, request in enumerate(batch.req_ids)
                if request in self._scheduled
            ]
        total = sum(count for _, _, count in self._rows)
        self._step[layer] = ids[:total].detach().to("cpu").numpy().astype(np.int16)


def received_experts(answers: Sequence[tuple[dict[str, Any], bytes]]) -> dict[int, npt.NDArray[np.int16]]:
    """{sample index: int16 [positions, layers, k]} of what `ExpertCapture.collected` handed over."""
    found: dict[int, npt.NDArray[np.int16]] = {}
    for index, blob in answers:
        values = np.frombuffer(blob, dtype=np.int16)
        for request, (offset, length, layers, k) in index.items():
            piece = values[offset : offset + length * layers * k].reshape(length, layers, k)
            found[int(request.partition("-")[0])] = piece  # vLLM adds a random suffix to request ids
    return found


def aligned_experts(
    found: dict[int, npt.NDArray[np.int16]], prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> npt.NDArray[np.int32]:
    """int32 [T, layers, k]: for each response token the experts of the position before it, -1 where unknown."""
    layers, k = next((piece.shape[1:] for piece in found.values()), (0, 0))
    aligned = np.full((sum(map(len, responses)), layers, k), -1, dtype=np.int32)
    for index, start in enumerate(starts(responses)):
        if index in found:
            first = len(prompts[index]) - 1
            piece = found[index][first : first + len(responses[index])]
            aligned[start : start + len(piece)] = piece
    return aligned
