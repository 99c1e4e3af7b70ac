"""Hooks on a model's modules: what each was given and left, layer by layer, while the runner computes a step.

Observers alone: every tensor is copied, nothing is replaced but `forward` wrappers that hand on what they got. Hooks
are registered last, so they see what the module really receives and leaves, whatever user code has put around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.engines.vllm.boundaries.calls import Call
from logdiff_kernels.engines.vllm.boundaries.kinds import kind_of

Rows = Callable[[torch.Tensor], "torch.Tensor | None"]
"""A tensor of the flat batch -> [n, F] copy of the rows that are kept on the CPU; None for another shape."""


class ModelHooks:
    """Watches one model.

    Args:
        model: vLLM's model.
        rows: takes the kept rows of a tensor; None while no step is computed that has any.
        begin_layer: called with (index, name, hidden state rows or None) before a layer.
        end_layer: called with (index, name, calls, outputs) after it.
        outside: called with each call outside of layers.
        raw: called with (kind, arguments) of embeddings ("ids") and rotary embeddings ("positions").
        wanted: whether anything of a layer (index) is asked for; the calls of others are not looked at.
    """

    def __init__(
        self,
        model: Any,
        rows: Callable[[], Rows | None],
        begin_layer: Callable[[int, str, torch.Tensor | None], None],
        end_layer: Callable[[int, str, list[Call], list[torch.Tensor]], None],
        outside: Callable[[Call], None],
        raw: Callable[[str, torch.Tensor], None],
        wanted: Callable[[int], bool],
    ) -> None:
        self._model, self._taker, self._wanted = model, rows, wanted
        self._begin, self._end, self._outside, self._raw = begin_layer, end_layer, outside, raw
        self._handles: list[Any] = []
        self._patches = Patches()
        self._calls: list[Call] | None = None
        self._skipping = False
        self.watched = self.seen = 0
        self.skipped: set[str] = set()

    def install(self) -> None:
        """Register every hook."""
        names = {id(module): name for name, module in self._model.named_modules()}
        layers = dict(decoder_layers(self._model))
        for module in self._model.modules():
            name = names[id(module)]
            if name in layers:
                self._watch_layer(layers[name], name, module)
            kind = kind_of(module)
            if kind is not None:
                self._watch(kind, name, module)
                self.watched += 1
            if kind == "moe":
                self._watch_experts(name, module)

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        self._patches.restore()
        self._handles = []

    def _rows(self) -> Rows | None:
        return None if self._skipping else self._taker()

    def _watch_layer(self, index: int, name: str, module: Any) -> None:
        asked = self._wanted(index)
        if not asked:
            self.skipped.add(name)

        def before(_module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            take = self._rows()
            self._skipping = not asked
            if take is None:
                return
            hidden = next((t for t in tensors([*arguments, *named.values()]) if t.is_floating_point()), None)
            self._begin(index, name, None if hidden is None else take(hidden))
            self._calls = [] if asked else None

        def after(_module: Any, _arguments: Any, output: Any) -> None:
            self._skipping = False
            take, calls = self._rows(), self._calls
            self._calls = None
            if take is not None and calls is not None:
                left = [rows for t in tensors(_flat(output)) if (rows := take(t)) is not None]
                self._end(index, name, calls, left)

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after))

    def _watch(self, kind: str, name: str, module: Any) -> None:
        pending: list[list[torch.Tensor]] = []

        def before(_module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            found = list(tensors([*arguments, *named.values()]))
            if kind == "embedding" and found:
                self._raw("ids", found[0])
            if kind == "rope" and found:
                self._raw("positions", found[0])
                found = found[1:]
            take = self._rows()
            if take is None:
                return
            pending.append([rows for t in found if t.is_floating_point() and (rows := take(t)) is not None])

        def after(_module: Any, _arguments: Any, output: Any) -> None:
            take = self._rows()
            if take is None or not pending:
                return
            results = list(tensors(_flat(output)))
            if kind == "linear":
                results = results[:1]  # the second is a bias that was not added
            left = [rows for t in results if (rows := take(t)) is not None]
            self._keep(Call(kind, name, module, pending.pop(), left))

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after))

    def _watch_experts(self, name: str, runner: Any) -> None:
        """The two parts of a mixture of experts that are methods and no modules: choice and routed experts."""
        router: Any = getattr(runner, "router", None)
        experts: Any = getattr(runner, "routed_experts", None)
        chosen: list[tuple[torch.Tensor, torch.Tensor]] = []

        def routing(*arguments: Any, **named: Any) -> Any:
            logits = named.get("router_logits", arguments[1] if len(arguments) > 1 else None)
            take = self._rows()
            given = None if take is None or logits is None else take(logits)
            weights, ids = compute(*arguments, **named)
            if take is not None and given is not None:
                order = weights.argsort(dim=-1, descending=True, stable=True)
                best, numbers = take(weights.gather(-1, order)), take(ids.gather(-1, order))
                if best is not None and numbers is not None:
                    chosen[:] = [(best, numbers)]
                    self._keep(Call("router", f"{name}.router", router, [given], [best, numbers]))
            return weights, ids

        def apply(stock: Any) -> Any:
            def forward(*arguments: Any, **named: Any) -> Any:
                take = self._rows()
                x = next(tensors([*arguments, *named.values()]), None)
                given = None if take is None or x is None else take(x)
                output = stock(*arguments, **named)
                if take is not None and given is not None and isinstance(output, torch.Tensor):
                    rows = take(output)
                    extra = list(chosen.pop()) if chosen else []
                    if rows is not None:
                        self._keep(Call("experts", f"{name}.routed_experts", experts, [given, *extra], [rows]))
                return output

            return forward

        if hasattr(router, "_compute_routing"):
            compute = router._compute_routing
            self._patches.set(router, "_compute_routing", routing)
        for method in ("forward_modular", "forward_monolithic"):
            if hasattr(experts, method):
                self._patches.set(experts, method, apply(getattr(experts, method)))

    def _keep(self, call: Call) -> None:
        self.seen += 1
        if self._calls is None:
            self._outside(call)
        else:
            self._calls.append(call)


def decoder_layers(model: Any) -> Iterator[tuple[str, int]]:
    """(qualified name, index) of the decoder layers: members of the module list whose members hold attention."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    best: list[tuple[str, int]] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList):
            continue
        held = [
            (f"{name}.{index}", index)
            for index, layer in enumerate(module)
            if any(isinstance(part, AttentionLayerBase) for part in layer.modules())
        ]
        if len(held) > len(best):
            best = held
    return iter(best)


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors with at least one axis among values."""
    return (value for value in values if isinstance(value, torch.Tensor) and value.dim() > 0)


def _flat(output: Any) -> list[Any]:
    return list(output) if isinstance(output, (tuple, list)) else [output]
