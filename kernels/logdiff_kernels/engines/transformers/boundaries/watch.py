"""Hooks on a Transformers model: every forward becomes calls, every layer's calls become boundaries.

Observers alone: hooks return nothing and rows are copies. They are registered last, so they see what a module really
receives and leaves, whatever user code has put around it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from logdiff_kernels.engines.transformers.boundaries import kinds
from logdiff_kernels.engines.transformers.boundaries.calls import Batch, Call, Found
from logdiff_kernels.engines.transformers.boundaries.functions import Functions
from logdiff_kernels.engines.transformers.boundaries.layer import place_layer
from logdiff_kernels.engines.transformers.boundaries.tree import (
    decoder_layers,
    embedding_scale,
    expert_blocks,
    hidden_of,
    rotation_layout,
    tensors,
)
from logdiff_kernels.observe.boundaries.rowhash import same

Emit = Callable[[Found], None]


class Watch:
    """Watches one model while it is entered as a context.

    Args:
        model: a causal language model of transformers.
        wants: whether a layer (its index; None: what lies outside of layers) is of interest.

    Attributes:
        batch: the rows of the forwards to come; None: nothing is watched.
        emit: is given each boundary, in execution order.
        received: called with ("ids" or "positions", int64 [B, L] or [1, L]) as the model's own modules receive them.
        trouble: what could not be read, and why.
    """

    def __init__(self, model: Any, wants: Callable[[int | None], bool] = lambda _layer: True) -> None:
        self.model = model
        self.batch: Batch | None = None
        self.emit: Emit = lambda _found: None
        self.received: Callable[[str, torch.Tensor], None] = lambda _what, _values: None
        self.config = model.config.get_text_config(decoder=True)
        self._wants = wants
        self._names = {id(module): name for name, module in model.named_modules()}
        self._kinds = kinds.kinds_of(model)
        self._modules = dict(model.named_modules())
        self._layers = dict(decoder_layers(model, self._kinds))
        rotary = [self._modules[name] for name, kind in self._kinds.items() if kind == "rope"]
        self._rotary = {2 * int(b.numel()) for m in rotary for k, b in m.named_buffers() if k.endswith("inv_freq")}
        self._blocks = expert_blocks(self._kinds)
        self._attention = [self._modules[name] for name, kind in self._kinds.items() if kind == "attention"]
        self._functions = Functions(
            self._attention, self._before_rotation, self._after_rotation, self._before_attention, self._after_attention
        )
        self.trouble: set[str] = set()
        self._handles: list[Any] = []
        self._calls: list[Call] | None = None
        self._pending: dict[int, list[list[torch.Tensor]]] = {}
        self._entered: tuple[int, torch.Tensor | None] | None = None
        self._passing_by = False  # inside a layer that is of no interest
        self._embedding: Call | None = None
        self._outside: list[Call] = []
        self._stood: set[int] = set()
        self._layers_seen: set[int] = set()
        self._head_given: torch.Tensor | None = None
        self._head: Any = model.get_output_embeddings()

    def __enter__(self) -> Watch:
        for name, index in self._layers.items():
            self._hook(self._modules[name], self._before_layer(index), self._after_layer(index, name))
        for name, kind in self._kinds.items():
            module = self._modules[name]
            if module is not self._head:
                self._hook(module, self._before(kind), self._after(kind, name))
        for name in self._blocks:
            self._hook(self._modules[name], self._before("block"), self._after("block", name))
        if self._head is not None:
            self._handles.append(self._head.register_forward_pre_hook(self._before_head, with_kwargs=True))
        self._hook(self.model, self._before_model, self._after_model)
        self._functions.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._functions.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def unmapped(self) -> list[dict[str, str]]:
        """[{"where", "why"}] of modules with weights of their own that no boundary stood for in the forwards so far.

        What is of no interest (see `wants`) is left out.
        """
        skipped = tuple(f"{name}." for name, index in self._layers.items() if not self._wants(index))
        head = None if self._wants(None) else self._head
        found = []
        inside = tuple(f"{name}." for name, kind in self._kinds.items() if kind in ("router", "experts", "linear"))
        for name, module in self._modules.items():
            own = [key for key, p in module._parameters.items() if p is not None]
            if not own or id(module) in self._stood or name.startswith((*inside, *skipped)) or module is head:
                continue
            kind = self._kinds.get(name)
            what = "no operator that is known" if kind is None else f"a call of kind {kind} that was not placed"
            found.append({"where": name or "model", "why": f"{type(module).__name__} with {', '.join(own)}: {what}"})
        for layer in sorted(set(self._layers.values()) - self._layers_seen):
            if not self._wants(layer):
                continue
            found.append({"where": f"layers.{layer}", "why": "its attention does not use transformers' interface"})
        return found

    def compiled(self) -> list[str]:
        """Parts that torch.compile replaced: hooks may see less of them."""
        return [n or "(model)" for n, m in self._modules.items() if getattr(m, "_compiled_call_impl", None) is not None]

    def _hook(self, module: Any, before: Any, after: Any) -> None:
        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    # modules

    def _taken(self, kind: str, values: Any, heads_first: bool | None = None) -> list[torch.Tensor]:
        batch = self.batch
        assert batch is not None
        found = []
        for value in tensors(values):
            if kind == "linear" and value.ndim == 4:
                heads_first = True  # latents as one head
            rows = batch.rows(value, heads_first=heads_first)
            if rows is not None:
                found.append(rows)
        return found

    def _before(self, kind: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.batch is None or (self._calls is None and kind in ("block", "activation", "router", "experts")):
                return
            values = [*args, *kwargs.values()]
            first = next((v for v in values if isinstance(v, torch.Tensor)), None)
            if kind == "embedding" and first is not None:
                self._receive("ids", first)
                return
            if kind == "rope":
                found = next((v for v in values if isinstance(v, torch.Tensor) and not v.is_floating_point()), None)
                if found is not None:
                    self._receive("positions", found)
                return
            if self._passing_by:
                return
            if kind in ("attention", "block"):
                return
            layout = first is not None and first.ndim == 4 and self.batch.heads_first(first)
            self._pending.setdefault(id(module), []).append(self._taken(kind, values, layout))

        return hook

    def _after(self, kind: str, name: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if self.batch is None or kind == "rope" or self._passing_by:
                return
            stack = self._pending.get(id(module))
            given = stack.pop() if stack else []
            if kind in ("linear", "norm", "activation", "router", "experts") and not given:
                return
            first = next((v for v in [*args, *kwargs.values()] if isinstance(v, torch.Tensor)), None)
            layout = first is not None and first.ndim == 4 and self.batch.heads_first(first)
            left = self._taken(kind, [output] if isinstance(output, torch.Tensor) else output, layout)
            if not left:
                return
            named = "attention_block" if kind == "attention" else kind
            call = Call(named, name, module, given, left)
            if kind == "embedding" and self._calls is None:
                self._embedding = self._embedding or call
            elif self._calls is not None:
                self._calls.append(call)
            else:
                self._outside.append(call)

        return hook

    def _receive(self, what: str, values: torch.Tensor) -> None:
        assert self.batch is not None
        if values.ndim == 2 and values.shape[1] == self.batch.size[1]:
            self.received(what, values.detach())

    # functions of attention layers

    def _before_rotation(self, turned: list[Any], named: dict[str, Any]) -> Any:
        if self.batch is None or self._calls is None:
            return None
        layout = named.get("unsqueeze_dim", 1) != 2
        tensors = [x for x in turned if isinstance(x, torch.Tensor)]
        taken = [self.batch.rows(x, heads_first=layout) for x in tensors]
        if not taken or any(rows is None for rows in taken):
            layout = not layout
            taken = [self.batch.rows(x, heads_first=layout) for x in tensors]
        if any(rows is None for rows in taken):
            return None
        return taken, layout, int(tensors[0].shape[-1]) if tensors else 0, named

    def _after_rotation(self, taken: Any, result: Any) -> None:
        if taken is None or self._calls is None or self.batch is None:
            return
        given, layout, size, named = taken
        results = list(tensors([result] if isinstance(result, torch.Tensor) else result))
        left = [rows for x in results if (rows := self.batch.rows(x, heads_first=layout)) is not None]
        if len(left) != len(given):
            return
        width = size
        table = next((named[key] for key in ("cos", "freqs_cis") if isinstance(named.get(key), torch.Tensor)), None)
        if table is not None:  # of every rotated feature, of every pair of them, or complex
            tabled = int(table.shape[-1])
            width = min(size, tabled if tabled in self._rotary and not table.is_complex() else 2 * tabled)
        facts = {"size": size, "rotary_dim": width, "layout": rotation_layout(given[0], left[0], size, width)}
        self._calls.append(Call("rotation", "", None, given, left, facts))

    def _before_attention(self, module: Any, query: Any, key: Any, value: Any, named: dict[str, Any]) -> Any:
        if self.batch is None or self._calls is None:
            return None
        taken = [self.batch.rows(x, heads_first=True) for x in (query, key, value)]
        if any(rows is None for rows in taken):
            return None
        where = self._names.get(id(module), "")
        for call in self._calls:
            if call.kind == "rotation" and not call.where:
                call.where, call.module = where, module
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        scale, window, cap = (named.get(k) for k in ("scaling", "sliding_window", "softcap"))
        facts = {
            "scale": query.shape[-1] ** -0.5 if scale is None else float(scale),
            "window": int(window) if window else None,
            "softcap": float(cap) if cap else None,
            "sinks": named.get("s_aux") is not None,
            "heads": int(query.shape[1]),
            "kv_heads": int(key.shape[1]),
            "head_dim": int(query.shape[-1]),
            "v_head_dim": int(value.shape[-1]),
            "implementation": implementation,
        }
        return Call("attention", where, module, [r for r in taken if r is not None], [], facts)

    def _after_attention(self, call: Any, result: Any) -> None:
        if call is None or self._calls is None or self.batch is None:
            return
        out = result[0] if isinstance(result, tuple) else result
        rows = self.batch.rows(out, heads_first=False) if isinstance(out, torch.Tensor) else None
        if rows is not None:
            call.left = [rows]
            self._calls.append(call)

    # layers and model

    def _before_layer(self, index: int) -> Any:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.batch is None:
                return
            hidden = hidden_of(args, kwargs)
            rows = None if hidden is None else self.batch.rows(hidden)
            if rows is not None and index == min(self._layers.values()):
                self._emit_embedding(rows)
            wanted = rows is not None and self._wants(index)
            self._calls, self._passing_by = [] if wanted else None, not wanted
            self._entered = (index, rows) if wanted else None

        return hook

    def _after_layer(self, index: int, name: str) -> Any:
        def hook(module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            calls, entered = self._calls, self._entered
            self._calls, self._entered, self._passing_by = None, None, False
            if self.batch is None or calls is None or entered is None or entered[1] is None:
                return
            hidden = output[0] if isinstance(output, (tuple, list)) else output
            left = self.batch.rows(hidden) if isinstance(hidden, torch.Tensor) else None
            if left is None:
                return
            if any(call.kind == "attention" for call in calls):
                self._layers_seen.add(index)
            block = next((b for b in self._blocks if b.startswith(f"{name}.")), "")
            try:
                found = place_layer(index, name, module, self.config, calls, entered[1], left, block)
            except (ValueError, RuntimeError, IndexError) as error:  # what the model does goes on
                self.trouble.add(f"layer {index} could not be read: {error}")
                return
            for one in found:
                self._give(one)

        return hook

    def _emit_embedding(self, rows: torch.Tensor) -> None:
        call, self._embedding = self._embedding, None
        facts: dict[str, Any] = {"scale": embedding_scale(self.model, self.config)}
        modules: tuple[Any, ...] = ()
        where, take = "", "what the first layer is given"
        if call is not None:
            modules, where = (call.module,), call.where
            inside = same(call.left[0], rows)
            take = "output" if inside else take
            facts |= {"class": kinds.name_of(call.module), "scaled_outside": not inside}
        self._give(Found("embedding", where, take, rows, [], facts, modules))

    def _before_model(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._outside, self._embedding, self._head_given = [], None, None
        if self.batch is None:
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        for what, values in (("ids", ids), ("positions", kwargs.get("position_ids"))):
            if isinstance(values, torch.Tensor):
                self._receive(what, values)

    def _before_head(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._head_given = next(tensors([*args, *kwargs.values()]), None)

    def _after_model(self, _module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if self.batch is None:
            return
        norm = next((c for c in self._outside if c.kind == "norm"), None)
        if norm is not None:
            facts = kinds.norm_facts(norm.module, norm.given[0], norm.left[0])
            self._give(Found("final_norm", norm.where, "output", norm.left[0], norm.given[:1], facts, (norm.module,)))
        logits = output[0] if isinstance(output, (tuple, list)) else getattr(output, "logits", None)
        given, self._head_given, self._outside = self._head_given, None, []
        if isinstance(logits, torch.Tensor) and logits.ndim == 3 and self._wants(None):
            self._logits(logits.detach(), given, kwargs.get("logits_to_keep"))

    def _logits(self, logits: torch.Tensor, given: torch.Tensor | None, kept: Any) -> None:
        assert self.batch is not None
        batch, length = self.batch.size
        columns = torch.arange(length)
        if logits.shape[1] != length:
            columns = kept.cpu() if isinstance(kept, torch.Tensor) else columns[length - logits.shape[1] :]
        if len(columns) != logits.shape[1] or logits.shape[0] != batch:
            return
        at = (torch.arange(batch).unsqueeze(-1) * length + columns).reshape(-1)
        rows = [] if given is None or given.shape[:2] != logits.shape[:2] else [given.detach().flatten(0, 1)]
        where = self._names.get(id(self._head), "")
        found = Found(
            "logits", where, "logits of the model's output", logits.flatten(0, 1), rows, kinds.head_facts(self.model)
        )
        found.modules, found.at = (() if self._head is None else (self._head,)), at
        self._give(found)

    def _give(self, found: Found) -> None:
        self._stood |= {id(module) for module in found.modules}
        self.emit(found)
