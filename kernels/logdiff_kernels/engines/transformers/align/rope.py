"""`rope`: tables in fp32 by the contract, and the rotation, in whatever shape a model's code calls for it.

The rotary embedding module hands out `RopeTable`s instead of tensors. They pass through the model untouched (FSDP2's
input casts see tensors only) and mean something only to the rotation that stands in for the model's; code that wants
to compute with them gets an error, so no stock rotation can slip through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.contract.rope import RopeSpec, table
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse, text_config
from logdiff_kernels.engines.transformers.align.stand_in import attempt, close, own_class, stand_in
from logdiff_kernels.errors import RunnerError, UnsupportedError

STYLES = ("neox", "interleaved", "deinterleaving")

_ARGUMENTS = (("cos", "sin"), ("freqs_cis",))
"""What rotations call their tables: cosines and sines, or both as one complex tensor (DeepSeek-V2)."""


class RopeTable:
    """The cosines or sines of the tokens of one forward: positions int64 [B or 1, L] and a rule."""

    def __init__(self, spec: RopeSpec, positions: torch.Tensor) -> None:
        self.spec = spec
        self.positions = positions
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def rows(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each fp32 [batch * L, R / 2]."""
        if batch not in self._rows:
            positions = self.positions
            if positions.shape[0] != batch:
                positions = positions.expand(batch, -1)
            self._rows[batch] = look_up(self.spec, positions.reshape(-1))
        return self._rows[batch]

    def to(self, *_device: Any) -> RopeTable:
        """Itself: there is one device."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(
            f"this model's code uses its rotary table itself (.{name}), which isn't covered",
            value="rope",
            hint="leave rope out of the aligned ops",
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise UnsupportedError(
            f"this model's code uses its rotary table itself ({getattr(function, '__name__', function)})",
            value="rope",
            hint="leave rope out of the aligned ops",
        )


_TABLES: dict[RopeSpec, tuple[torch.Tensor, torch.Tensor]] = {}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def look_up(spec: RopeSpec, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the rule's table, fp32 [T, R / 2] each; the table grows as positions ask for it."""
    last = int(positions.max()) if positions.numel() else 0
    kept = _TABLES.get(spec)
    if kept is None or kept[0].shape[0] <= last:
        size = 1 << max(8, last.bit_length())
        if spec.limit is not None:
            size = max(min(size, spec.limit), last + 1)
        cos, sin = table(spec, range(size))
        kept = _TABLES[spec] = torch.from_numpy(cos), torch.from_numpy(sin)
    if positions.numel() and int(positions.min()) < 0:
        table(spec, [-1])
    return kept[0][positions], kept[1][positions]


def find(scene: Scene) -> None:
    """Plan the replacement of rotary embedding modules and of the rotations in the attention code.

    Raises:
        UnsupportedError: a scaling rule, a rotation or a model code that isn't covered.
    """
    if "rope" not in scene.spec:
        return
    hashes: set[str] = set()
    styles: set[str] = set()
    samples: list[tuple[tuple[torch.Tensor, ...], RopeSpec]] = []
    for name, module in scene.modules():
        if not _inverse_frequencies(module):
            continue
        specs = _specs(name, module, scene)
        hashes |= {spec.hash() for spec in specs.values()}
        samples.append(_sample(name, module, specs, scene))
        scene.replace(module, _table_forward(specs, len(samples[-1][0])), "rope")
    if not samples:
        return
    tables, spec = samples[0]
    rebound: dict[CodeType, Callable[..., Any]] = {}
    for name, module in scene.modules():
        forward = own_class(module).forward
        rotations = _rotations(forward)
        if not rotations:
            continue
        assert isinstance(forward, FunctionType)
        if forward.__code__ not in rebound:
            found = {}
            for key, function in rotations.items():
                style = style_of(function, tables, spec)
                if style is None:
                    raise refuse(name, module, f"its rotation {key} isn't covered", "leave rope out of the aligned ops")
                styles.add(style)
                found[key] = rotation(function, style, name)
            rebound[forward.__code__] = _with_globals(forward, found)
        scene.replace(module, rebound[forward.__code__], "rope")
    if not rebound:
        raise UnsupportedError(
            f"{type(scene.model).__name__} has rotary embeddings but no rotation that was recognised",
            value="rope",
            hint="leave rope out of the aligned ops",
        )
    scene.facts["rope"] = {"tables": sorted(hashes), "styles": sorted(styles)}


def _inverse_frequencies(module: torch.nn.Module) -> list[str]:
    return [
        name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq") and "original" not in name
    ]


def _layer_type(buffer: str) -> str | None:
    """The type of the layers that a buffer of frequencies is for; None: all."""
    return buffer.removesuffix("inv_freq").rstrip("_") or None


def _specs(name: str, module: Any, scene: Scene) -> dict[str | None, RopeSpec]:
    """The rule per layer type (None: the only one), checked against the frequencies that the module holds."""
    config = getattr(module, "config", None) or text_config(scene.model)
    found: dict[str | None, RopeSpec] = {}
    for buffer in _inverse_frequencies(module):
        layer_type = _layer_type(buffer)
        held = getattr(module, buffer)
        scaling = getattr(module, f"{layer_type}_attention_scaling" if layer_type else "attention_scaling", 1.0)
        spec = None
        why = "its frequencies aren't those of its configuration"
        for head_dim in (None, 2 * held.numel()):
            try:
                spec = RopeSpec.from_hf(config, layer_type, head_dim=head_dim, max_length=scene.max_length)
            except RunnerError as error:
                why = error.message
                continue
            if held.device.type == "meta" or _holds(spec, held, scaling):
                break
            spec = None
        if spec is None:
            raise refuse(name, module, why, "leave rope out of the aligned ops")
        found[layer_type] = spec
    return found


def _holds(spec: RopeSpec, held: torch.Tensor, scaling: float) -> bool:
    """Whether the module's own frequencies are the rule's, to the dtype that they are held in.

    A longrope module holds its short factors at first, whatever it will use.
    """
    if spec.kind == "longrope":
        return len(spec.inv_freq) == held.numel()
    if held.dtype in (torch.float32, torch.float64):
        return spec.agrees_with(held.float().cpu().numpy(), float(scaling))
    ours = torch.tensor(spec.inv_freq).to(held.dtype)
    step = torch.finfo(held.dtype).eps
    close = ours.shape == held.shape and torch.allclose(ours.float(), held.float().cpu(), rtol=step, atol=0)
    return close and spec.agrees_with(spec.inv_freq, float(scaling))


def _sample(
    name: str, module: Any, specs: dict[str | None, RopeSpec], scene: Scene
) -> tuple[tuple[torch.Tensor, ...], RopeSpec]:
    """The tables as the model's own code lays them out, [1, 3, ...], for positions 0, 3 and 7, and their rule."""
    layer_type, spec = next(iter(specs.items()))
    more = {} if layer_type is None else {"layer_type": layer_type}
    shadow = stand_in(module, generator=scene.generator())
    for buffer in _inverse_frequencies(module):
        of_type = specs[_layer_type(buffer)]
        for key in (buffer, buffer.replace("inv_freq", "original_inv_freq")):
            if key in shadow._buffers:
                shadow._buffers[key] = torch.tensor(of_type.inv_freq)
    answer = attempt(shadow.forward, torch.zeros(1, 3, 2), torch.tensor([[0, 3, 7]]), **more)
    if isinstance(answer, torch.Tensor) and answer.is_complex():
        return (answer,), spec
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], torch.Tensor):
        raise refuse(name, module, "it doesn't give cosines and sines", "leave rope out of the aligned ops")
    return answer, spec


def _table_forward(specs: dict[str | None, RopeSpec], count: int) -> Any:
    def forward(
        self: Any, x: Any, position_ids: torch.Tensor, layer_type: str | None = None, **_kwargs: Any
    ) -> RopeTable | tuple[RopeTable, RopeTable]:
        if position_ids.ndim != 2:
            raise refuse("rotary embedding", self, f"positions of shape {list(position_ids.shape)}")
        spec = specs[layer_type if layer_type in specs else None]
        tables = RopeTable(spec, position_ids)
        return tables if count == 1 else (tables, tables)

    return forward


def _rotations(forward: Any) -> dict[str, Callable[..., Any]]:
    """Functions of the module's own file that its forward names and that take tables."""
    if not isinstance(forward, FunctionType):
        return {}
    found: dict[str, Callable[..., Any]] = {}
    for key in forward.__code__.co_names:
        value = forward.__globals__.get(key)
        if isinstance(value, FunctionType) and _table_arguments(value):
            found[key] = value
    return found


def _table_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    names = inspect.signature(function).parameters
    return next((wanted for wanted in _ARGUMENTS if set(wanted) <= set(names)), ())


def style_of(function: Callable[..., Any], tables: tuple[torch.Tensor, ...], spec: RopeSpec) -> str | None:
    """Which rotation a model's function does, found by running it on random values; None if it is none of `STYLES`."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1, 2, 3, spec.rotary_dim, generator=generator)
    names = list(inspect.signature(function).parameters)
    arguments = _table_arguments(function)
    if len(arguments) != len(tables):
        return None
    given = dict(zip(arguments, tables, strict=True))
    if names.index(arguments[0]) >= 2:
        given |= {names[0]: x, names[1]: x}
    else:
        given |= {names[0]: x}
    answer = attempt(function, **given)
    found = answer[0] if isinstance(answer, tuple) else answer
    c, s = (torch.from_numpy(t).double() for t in table(spec, [0, 3, 7]))
    wide = x.double()
    half = spec.rotary_dim // 2
    first, second = wide[..., :half], wide[..., half:]
    if close(found, torch.cat([first * c - second * s, second * c + first * s], dim=-1)):
        return "neox"
    even, odd = wide[..., 0::2], wide[..., 1::2]
    turned = even * c - odd * s, odd * c + even * s
    if close(found, torch.stack(turned, dim=-1).flatten(-2)):
        return "interleaved"
    if close(found, torch.cat(turned, dim=-1)):
        return "deinterleaving"
    return None


def rotation(function: Callable[..., Any], style: str, name: str) -> Callable[..., Any]:
    """A stand-in with the signature of `function`.

    A function that also sorts the interleaved pairs into halves ("deinterleaving") is answered without the sorting:
    queries and keys are sorted alike, so products don't change, and their order is that of the rollout engine.
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)
    (table_name, *_) = _table_arguments(function)
    pair = names.index(table_name) >= 2
    interleaved = style != "neox"

    def rotate(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        tables = given[table_name]
        if not isinstance(tables, RopeTable):
            raise UnsupportedError(
                f"{name} rotates by a table that the aligned rotary embedding didn't make", value=name
            )
        heads = given.get("unsqueeze_dim", 1)
        if heads not in (1, 2):
            raise UnsupportedError(f"{name} rotates along dimension {heads}", value=heads)
        turned = tuple(_rotate(given[key], tables, heads, interleaved) for key in names[: 2 if pair else 1])
        return turned if pair else turned[0]

    return rotate


def _rotate(x: torch.Tensor, tables: RopeTable, heads: int, interleaved: bool) -> torch.Tensor:
    if x.ndim != 4:
        raise UnsupportedError(f"rotation of a tensor of shape {list(x.shape)}", value=list(x.shape))
    tokens = x.transpose(1, 2) if heads == 1 else x
    batch, length, count, size = tokens.shape
    cos, sin = tables.rows(batch)
    turned = ops.rope(tokens.reshape(batch * length, count, size), cos, sin, interleaved)
    turned = turned.view(batch, length, count, size)
    return turned.transpose(1, 2) if heads == 1 else turned


def _with_globals(function: FunctionType, values: dict[str, Any]) -> FunctionType:
    """The same code with some of its global names bound to other values; the module it stands in is left alone."""
    copied = FunctionType(
        function.__code__,
        {**function.__globals__, **values},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__ = function.__qualname__
    copied.__doc__ = function.__doc__
    return copied
