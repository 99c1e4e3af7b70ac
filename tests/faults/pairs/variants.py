"""Temporary changes of a loaded model: what a faulty trainer, engine or sync would compute with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.faults.pairs.logits import Change


@contextlib.contextmanager
def _values(pairs: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes replaced, and put back."""
    old = [(owner, name, getattr(owner, name)) for owner, name, _ in pairs]
    try:
        for owner, name, value in pairs:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in old:
            setattr(owner, name, value)


@contextlib.contextmanager
def _tensors(model: Any, move: Callable[[str, torch.Tensor], torch.Tensor | None]) -> Iterator[None]:
    """Parameters replaced by `move(name, tensor)` where it gives one, and put back."""
    old = {}
    try:
        for name, parameter in model.named_parameters():
            moved = move(name, parameter.data)
            if moved is not None:
                old[name] = parameter.data
                parameter.data = moved.to(parameter.dtype)
        yield
    finally:
        for name, parameter in model.named_parameters():
            if name in old:
                parameter.data = old[name]


def moved_weights(relative: float, seed: int, pattern: str = "") -> Change:
    """Every tensor whose name holds `pattern` moved by noise of that relative size."""

    def change(model: Any) -> Any:
        generator = torch.Generator().manual_seed(seed)

        def move(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            noise = torch.randn(tensor.shape, generator=generator)
            return tensor.float() + noise * tensor.float().std() * relative if pattern in name else None

        return _tensors(model, move)

    return change


def moved_except(relative: float, seed: int, kept: str) -> Change:
    """All tensors moved but those whose name holds `kept`: they were not synced."""

    def change(model: Any) -> Any:
        generator = torch.Generator().manual_seed(seed)

        def move(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            noise = torch.randn(tensor.shape, generator=generator)
            return None if kept in name else tensor.float() + noise * tensor.float().std() * relative

        return _tensors(model, move)

    return change


def query_heads(group: int) -> Change:
    """The query heads of every layer in another order."""

    def change(model: Any) -> Any:
        size = model.config.head_dim

        def move(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            if not name.endswith("q_proj.weight"):
                return None
            heads = tensor.view(group, -1, size, tensor.shape[-1])
            return heads.transpose(0, 1).reshape(tensor.shape).clone()

        return _tensors(model, move)

    return change


def expert_halves() -> Change:
    """Gate and up of all fused experts the other way round."""

    def change(model: Any) -> Any:
        def move(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            return tensor.roll(tensor.shape[1] // 2, dims=1) if name.endswith("experts.gate_up_proj") else None

        return _tensors(model, move)

    return change


def window(off: int) -> Change:
    """Sliding windows `off` longer."""

    def change(model: Any) -> Any:
        return _values([(model.config, "sliding_window", model.config.sliding_window + off)])

    return change


def no_sinks() -> Change:
    """Sinks that take nothing."""

    def change(model: Any) -> Any:
        return _tensors(model, lambda name, t: torch.full_like(t, -1e4) if name.endswith("sinks") else None)

    return change


def rotation_base(factor: float) -> Change:
    """Another base of the rotation."""

    def change(model: Any) -> Any:
        rotary = model.model.rotary_emb
        exponents = torch.arange(len(rotary.inv_freq)) / len(rotary.inv_freq)
        return _values([(rotary, "inv_freq", rotary.inv_freq / factor**exponents)])

    return change


def router(*, renormalise: bool | None = None, wide: bool = False) -> Change:
    """Routers that do not renormalise, or that work in fp32."""

    def change(model: Any) -> Any:
        pairs: list[tuple[Any, str, Any]] = []
        for module in model.modules():
            if not type(module).__name__.endswith("TopKRouter"):
                continue
            if renormalise is not None:
                pairs.append((module, "norm_topk_prob", renormalise))
            if wide:
                pairs.append((module, "forward", _wide_forward(module)))
        return _values(pairs)

    return change


def _wide_forward(module: Any) -> Callable[[torch.Tensor], Any]:
    def forward(hidden_states: torch.Tensor) -> Any:
        hidden_states = hidden_states.reshape(-1, module.hidden_dim).float()
        # fp32 products of what a lower-precision cast left: the gate of the other engine rounds its inputs to 8 bits
        coarse = hidden_states.to(torch.float8_e4m3fn).float()
        logits = coarse @ module.weight.float().T
        values, indices = torch.topk(torch.softmax(logits, -1), module.top_k, dim=-1)
        if module.norm_topk_prob:
            values = values / values.sum(-1, keepdim=True)
        return logits, values.to(torch.bfloat16), indices

    return forward


@contextlib.contextmanager
def dropped(model: Any) -> Iterator[None]:
    """Dropout of 0.05 on every MLP's output."""
    handles = [
        layer.mlp.register_forward_hook(lambda _m, _i, out: torch.nn.functional.dropout(out, 0.05, training=True))
        for layer in model.model.layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def patched(patch: Callable[..., None], **values: Any) -> Change:
    """A train-side patch of the live faults, for one model and a while."""
    from tests.faults.patches import transformers_layers

    def change(model: Any) -> Any:
        old = {name: vars(module).get("forward") for name, module in model.named_modules()}

        @contextlib.contextmanager
        def applied() -> Iterator[None]:
            hook = transformers_layers.on_transformers_model
            try:
                transformers_layers.on_transformers_model = lambda apply: apply(model)
                patch(**values)
                yield
            finally:
                transformers_layers.on_transformers_model = hook
                for name, module in model.named_modules():
                    if old[name] is None:
                        vars(module).pop("forward", None)
                    else:
                        module.forward = old[name]

        return applied()

    return change


def _rerouted(model: Any, move: Callable[[Any, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Every router's weights and ids [rows, k] go through `move(router, weights, ids)`."""
    pairs: list[tuple[Any, str, Any]] = []
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):

            def forward(hidden_states: torch.Tensor, module: Any = module, stock: Any = module.forward) -> Any:
                logits, scores, indices = stock(hidden_states)
                return (logits, *move(module, scores, indices))

            pairs.append((module, "forward", forward))
    return _values(pairs)


def late_routes(model: Any) -> Any:
    """Every token is routed as the one before it was."""
    return _rerouted(model, lambda router, scores, ids: (scores.roll(1, 0), ids.roll(1, 0)))


def fixed_tail(tail: int) -> Change:
    """Every n-th row, as many as `tail` of 32, goes to the first experts whatever its router says."""

    def change(model: Any) -> Any:
        def move(router: Any, scores: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows = torch.arange(len(ids)) % 32 >= 32 - tail
            return scores, torch.where(rows[:, None], torch.arange(ids.shape[-1]), ids)

        return _rerouted(model, move)

    return change
