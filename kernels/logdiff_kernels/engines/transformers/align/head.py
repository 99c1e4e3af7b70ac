"""`lm_head`: fp32 logits, with the model's logit scale and final soft cap inside the operator."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse, text_config
from logdiff_kernels.engines.transformers.align.stand_in import Stub, attempt, close, own_class, stand_in


@dataclass(frozen=True)
class Setting:
    """A number that the model's forward applies to its logits: held by `owner` as `key`, without effect as `off`."""

    owner: Any
    key: str
    off: float | None

    @property
    def value(self) -> float:
        """The number."""
        return float(getattr(self.owner, self.key))


def find(scene: Scene) -> None:
    """Plan the replacement of the output head.

    Raises:
        UnsupportedError: a head that is no plain linear layer, or logits that the model changes in an unknown way.
    """
    if "lm_head" not in scene.spec:
        return
    model = scene.model
    head = model.get_output_embeddings()
    if head is None:
        return
    name = scene.name(head)
    if not isinstance(head, torch.nn.Linear) or own_class(head).forward is not torch.nn.Linear.forward:
        raise refuse(name, head, "it isn't a plain linear layer")
    muted, scale, cap = _after_head(scene, head, name)
    scene.replace(head, _head_forward(scale, cap), "lm_head")
    if muted:
        scene.replace(model, _muting_forward(own_class(model).forward, muted), "lm_head")
    scene.facts["lm_head"] = {"scale": scale, "softcap": cap}


def _head_forward(scale: float, cap: float) -> Any:
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        return ops.lm_head(input, plain_weight(self, "weight"), self.bias, scale, cap)

    return forward


def _muting_forward(original: Any, settings: list[Setting]) -> Any:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _muted(settings):
            return original(self, *args, **kwargs)

    return forward


@contextlib.contextmanager
def _muted(settings: list[Setting]) -> Iterator[None]:
    """The settings without effect while the model's own code after the head runs."""
    before = [setting.owner.__dict__[setting.key] for setting in settings]
    try:
        for setting in settings:
            setting.owner.__dict__[setting.key] = setting.off
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.owner.__dict__[setting.key] = value


def _after_head(scene: Scene, head: Any, name: str) -> tuple[list[Setting], float, float]:
    """(settings to mute, scale, soft cap), found by running the model's forward around stubs of body and head."""
    model = scene.model
    settings = _settings(model)
    with _muted(settings):
        plain = _run(scene, head)
    if plain is None or not torch.equal(plain[0], plain[1]):
        raise refuse(name, head, "the model's forward changes its logits in a way that isn't covered")
    stock = _run(scene, head)
    assert stock is not None
    given, found = stock
    if torch.equal(given, found):
        return [], 1.0, 0.0
    caps = [s.value for s in settings if s.off is None] + [0.0]
    scales = [1.0]
    for setting in settings:
        if setting.off is not None:
            scales += [setting.value, 1.0 / setting.value]
    for cap in caps:
        for scale in scales:
            expected = given.double() * scale
            if cap:
                expected = cap * torch.tanh(expected / cap)
            if close(found, expected):
                return settings, scale, cap
    raise refuse(name, head, "the model's forward changes its logits in a way that isn't covered")


def _settings(model: Any) -> list[Setting]:
    """Numbers on the model and its configuration that speak of logits: caps and scales that are in force."""
    found = []
    config = text_config(model)
    for owner in {id(o): o for o in (model, model.config, config)}.values():
        for key, value in vars(owner).items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0
            if not number or "logit" not in key or "attn" in key or "router" in key:
                continue
            if "cap" in key:
                found.append(Setting(owner, key, None))
            elif "scal" in key or "mult" in key:
                found.append(Setting(owner, key, 1.0))
    return found


class _Output:
    """Output of a body: the hidden states and nothing else."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.last_hidden_state


def _run(scene: Scene, head: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(logits that the head stub gave, logits that the forward gave)."""
    model = scene.model
    prefix = getattr(model, "base_model_prefix", "")
    key = next((k for k, child in model.named_children() if child is head), None)
    if prefix not in model._modules or key is None:
        return None
    logits = 30 * torch.randn(1, 2, 64, generator=scene.generator())
    stubs = {prefix: Stub(_Output(torch.zeros(1, 2, 8))), key: Stub(logits)}
    shadow = stand_in(model, generator=scene.generator(), children=stubs)
    answer = attempt(own_class(model).forward, shadow, input_ids=torch.zeros(1, 2, dtype=torch.int64))
    found = getattr(answer, "logits", None)
    return (logits, found) if isinstance(found, torch.Tensor) and found.shape == logits.shape else None
