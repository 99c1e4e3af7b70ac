"""Which experts a mixture-of-experts model chose, recorded by hooks on its routers."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch


def find_routers(model: Any) -> list[torch.nn.Module]:
    """The router modules in layer order, as the model itself declares them for `output_router_logits`; else empty."""
    targets: list[Any] = []
    for module in model.modules():
        declared = (getattr(type(module), "_can_record_outputs", None) or {}).get("router_logits")
        for entry in declared if isinstance(declared, (list, tuple)) else [declared]:
            target = getattr(entry, "target_class", entry)
            if isinstance(target, type) and target not in targets:
                targets.append(target)
    kinds: tuple[type[torch.nn.Module], ...] = tuple(targets)
    return [module for module in model.modules() if isinstance(module, kinds)]


class RoutingRecorder:
    """Context in which the choice of every router is kept until `take`.

    `missing` says why nothing can be had; it is None while the routers answer as expected.
    """

    def __init__(self, model: Any) -> None:
        self._routers = find_routers(model)
        config = model.config.get_text_config(decoder=True)
        self._k = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
        self._handles: list[Any] = []
        self._seen: dict[int, torch.Tensor] = {}
        self.missing: str | None = None

    def __enter__(self) -> RoutingRecorder:
        for layer, router in enumerate(self._routers):
            self._handles.append(router.register_forward_hook(self._hook(layer)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def take(self, batch: int, length: int) -> torch.Tensor | None:
        """Choices of the last forward over [batch, length] tokens: int64 [batch, length, layers, k], on the CPU."""
        seen, self._seen = self._seen, {}
        if not self._routers or self.missing:
            return None
        choices = [seen.get(layer) for layer in range(len(self._routers))]
        if any(choice is None or len(choice) != batch * length for choice in choices):
            self.missing = "a router did not see every token of the forward"
            return None
        stacked = torch.stack([choice.cpu() for choice in choices if choice is not None], dim=1)
        return stacked.reshape(batch, length, *stacked.shape[1:])

    def _hook(self, layer: int) -> Any:
        def record(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            choice = self._choice(output)
            if choice is None:
                self.missing = "the routers give neither expert ids nor logits"
            else:
                self._seen[layer] = choice.detach()

        return record

    def _choice(self, output: Any) -> torch.Tensor | None:
        """Expert ids in order of choice: given by the router, or the top k of its logits."""
        outputs = output if isinstance(output, (tuple, list)) else [output]
        tensors = [value for value in outputs if isinstance(value, torch.Tensor)]
        for value in tensors:
            if not value.dtype.is_floating_point and value.dtype != torch.bool and value.shape[-1] == self._k:
                return value.reshape(-1, value.shape[-1])
        if tensors and self._k and tensors[0].shape[-1] >= self._k:
            return tensors[0].reshape(-1, tensors[0].shape[-1]).topk(self._k, dim=-1).indices
        return None
