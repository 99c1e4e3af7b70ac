"""Rotary position tables: frequencies by the model's own scaling rule, in fp64, each value rounded once.

The rules are those of the Hugging Face configuration (`rope_parameters`, or the older `rope_scaling` and
`rope_theta`), but in fp64: `inv_freq` is rounded once to fp32, the angle `position * inv_freq` is exact in fp64, and
cosine and sine times the attention factor are rounded once to fp32. Cosine and sine are made of plain multiplications
and additions, so a table doesn't depend on the maths library, on its version or on the other positions asked for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff_kernels.errors import InputError, UnsupportedError

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

MAX_POSITION = 1 << 23
"""Positions below this have exact angles and a range reduction without loss."""


@dataclass(frozen=True)
class RopeSpec:
    """What rotates a head: everything that a table depends on.

    Attributes:
        kind: the scaling rule (`default`, `linear`, `dynamic`, `yarn`, `longrope`, `llama3`, `proportional`).
        rotary_dim: R, the number of rotated elements at the head's start; even.
        inv_freq: R/2 frequencies in radians per token, each an fp32 value.
        attention_factor: what cosine and sine are multiplied with.
        limit: positions must be below this: where the rule of the model makes frequencies depend on the length of the
            longest sequence of a batch, rows beyond it would depend on their neighbours. None: no limit.
    """

    kind: str
    rotary_dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    limit: int | None = None

    @classmethod
    def from_hf(
        cls,
        config: Any,
        layer_type: str | None = None,
        *,
        head_dim: int | None = None,
        max_length: int | None = None,
    ) -> RopeSpec:
        """The rule of a Hugging Face text configuration.

        Args:
            config: a configuration object or mapping, in the form of transformers 5 (`rope_parameters`, perhaps one
                per layer type) or older (`rope_theta`, `rope_scaling`, `partial_rotary_factor`,
                `rope_local_base_freq`).
            layer_type: the layer's entry of `config.layer_types`; needed where the parameters differ by layer type.
            head_dim: head size where it isn't the configuration's (the rotated part of an MLA head).
            max_length: the longest sequence that this engine will ever see. `longrope` then takes its long factors for
                all positions if this is beyond the original length, and its short ones otherwise. None: short factors,
                and positions beyond the original length raise.

        Raises:
            UnsupportedError: a rule that isn't covered (several position axes, an unknown type).
            InputError: a rule without what it needs.
        """
        get = _getter(config)
        rule = _parameters(get, layer_type)
        kind = str(rule.get("rope_type") or rule.get("type") or "default")
        if rule.get("mrope_section") or kind in ("mrope", "axial"):
            raise UnsupportedError(
                "RoPE over several position axes isn't covered.", value=kind, hint="Leave rope out of the aligned ops."
            )
        build = _RULES.get(kind)
        if build is None:
            raise UnsupportedError(
                "A RoPE scaling rule that isn't covered.", value=kind, hint=f"Covered: {', '.join(sorted(_RULES))}."
            )
        head = head_dim or _head_dim(get)
        theta = _number(rule, "rope_theta")
        part = float(rule.get("partial_rotary_factor") or 1.0)
        dim = int(head * part) if kind != "proportional" else head
        if dim <= 0 or dim % 2 or theta <= 0:
            raise InputError("RoPE needs an even number of rotated elements and a base above 0.", value=(dim, theta))
        request = _Request(get, rule, theta, dim, part, max_length)
        inv_freq, factor, limit = build(request)
        rounded = tuple(float(f) for f in inv_freq.astype(np.float32))
        if len(rounded) != dim // 2:
            raise InputError("RoPE factors of another length than half the rotated elements.", value=len(rounded))
        return cls(kind, dim, rounded, float(factor), limit)

    def agrees_with(self, inv_freq: npt.ArrayLike, attention_factor: float = 1.0) -> bool:
        """Whether these are the frequencies that an engine holds, to fp32's rounding (relative 2^-18).

        A model class with a rule of its own is told from one that follows its configuration this way.
        """
        theirs = np.asarray(inv_freq, dtype=np.float64).reshape(-1)
        ours = np.asarray(self.inv_freq)
        close = bool(np.all(np.abs(theirs - ours) <= 2.0**-18 * np.abs(ours))) if theirs.shape == ours.shape else False
        return close and math.isclose(attention_factor, self.attention_factor, rel_tol=1e-6)

    def hash(self) -> str:
        """16 hex digits over everything that a table depends on."""
        digest = hashlib.sha256(b"rope/1")
        digest.update(np.asarray(self.inv_freq, dtype="<f4").tobytes())
        digest.update(np.float64(self.attention_factor).tobytes())
        digest.update(f"{self.rotary_dim}:{self.limit}".encode())
        return digest.hexdigest()[:16]


def table(spec: RopeSpec, positions: npt.ArrayLike) -> tuple[Float32, Float32]:
    """Cosine and sine of each position, each [T, R/2] fp32, times the attention factor.

    Args:
        positions: integers [T], at least 0.

    Raises:
        UnsupportedError: a position at or beyond `spec.limit` or `MAX_POSITION`.
        InputError: a negative position.
    """
    at = np.asarray(positions, dtype=np.int64).reshape(-1)
    if at.size:
        low, high = int(at.min()), int(at.max())
        if low < 0:
            raise InputError("A negative position.", value=low)
        if high >= (limit := min(spec.limit or MAX_POSITION, MAX_POSITION)):
            raise UnsupportedError(
                f"RoPE of type {spec.kind} is covered for positions below {limit} only.",
                value=high,
                hint="Beyond it the frequencies would depend on the longest sequence of a batch.",
            )
    angle = at.astype(np.float64)[:, None] * np.asarray(spec.inv_freq)[None, :]
    cos, sin = _cos_sin(angle)
    return (cos * spec.attention_factor).astype(np.float32), (sin * spec.attention_factor).astype(np.float32)


def _split_half_pi() -> tuple[float, ...]:
    """pi/2 in four parts of 30 bits, so that n * part is exact for n < 2^23."""
    rest = Fraction("3.14159265358979323846264338327950288419716939937510582097494459") / 2
    parts = []
    for bits in (29, 59, 89, 119):
        part = Fraction(math.floor(rest * 2**bits), 2**bits)
        parts.append(float(part))
        rest -= part
    return tuple(parts)


_HALF_PI = _split_half_pi()
_SIN = tuple((-1.0) ** i / math.factorial(2 * i + 1) for i in range(1, 10))
_COS = tuple((-1.0) ** i / math.factorial(2 * i) for i in range(1, 11))


def _cos_sin(angle: Float64) -> tuple[Float64, Float64]:
    """Cosine and sine in fp64 by multiplications and additions alone, error of a few fp64 ulps; 0 <= angle < 2^23."""
    n = np.rint(angle * (2.0 / math.pi))
    r: Any = angle
    for part in _HALF_PI:
        r = r - n * part
    square = r * r
    sin = np.full_like(r, _SIN[-1])
    for coefficient in _SIN[-2::-1]:
        sin = sin * square + coefficient
    sin = r + r * square * sin
    cos = np.full_like(r, _COS[-1])
    for coefficient in _COS[-2::-1]:
        cos = cos * square + coefficient
    cos = 1.0 + square * cos
    quadrant = n.astype(np.int64) & 3
    swap = (quadrant & 1).astype(bool)
    c, s = np.where(swap, sin, cos), np.where(swap, cos, sin)
    return np.where((quadrant == 1) | (quadrant == 2), -c, c), np.where(quadrant >= 2, -s, s)


@dataclass(frozen=True)
class _Request:
    """What a rule reads."""

    get: Any
    rule: Mapping[str, Any]
    theta: float
    dim: int
    part: float
    max_length: int | None

    def plain(self) -> Float64:
        return _powers(self.theta, [2 * i / self.dim for i in range(self.dim // 2)])

    def original(self) -> int:
        """The length that the model was first trained for."""
        outside = self.get("original_max_position_embeddings")
        value = outside or self.rule.get("original_max_position_embeddings") or self.get("max_position_embeddings")
        if not value:
            raise InputError("RoPE scaling without original_max_position_embeddings.", value=dict(self.rule))
        return int(value)

    def stretch(self, original: int) -> float:
        factor = self.rule.get("factor")
        return float(factor) if factor is not None else float(self.get("max_position_embeddings")) / original


_Answer = tuple[Float64, float, "int | None"]


def _powers(base: float, exponents: list[float]) -> Float64:
    return np.asarray([1.0 / math.pow(base, e) for e in exponents], dtype=np.float64)


def _default(r: _Request) -> _Answer:
    return r.plain(), 1.0, None


def _linear(r: _Request) -> _Answer:
    return r.plain() / _number(r.rule, "factor"), 1.0, None


def _dynamic(r: _Request) -> _Answer:
    # Up to the trained length the rule leaves the base alone; beyond, it depends on the longest sequence seen.
    return r.plain(), 1.0, int(r.get("max_position_embeddings"))


def _proportional(r: _Request) -> _Answer:
    angles = int(r.part * r.dim // 2)
    freq = np.zeros(r.dim // 2)
    freq[:angles] = _powers(r.theta, [2 * i / r.dim for i in range(angles)])
    return freq / float(r.rule.get("factor") or 1.0), 1.0, None


def _llama3(r: _Request) -> _Answer:
    freq = r.plain()
    factor, original = _number(r.rule, "factor"), r.original()
    low, high = _number(r.rule, "low_freq_factor"), _number(r.rule, "high_freq_factor")
    wavelength = 2 * math.pi / freq
    smooth = (original / wavelength - low) / (high - low) if high != low else np.zeros_like(freq)
    between = (1 - smooth) * freq / factor + smooth * freq
    slow, fast = wavelength > original / low, wavelength < original / high
    return np.where(slow, freq / factor, np.where(fast, freq, between)), 1.0, None


def _yarn(r: _Request) -> _Answer:
    original = r.original()
    factor = r.stretch(original)
    mscale, mscale_all = r.rule.get("mscale"), r.rule.get("mscale_all_dim")

    def magnitude(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    attention = r.rule.get("attention_factor")
    if attention is None:
        attention = magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)

    def dimension(rotations: float) -> float:
        return (r.dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(r.theta))

    low, high = dimension(float(r.rule.get("beta_fast") or 32)), dimension(float(r.rule.get("beta_slow") or 1))
    if r.rule.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, r.dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(r.dim // 2) - low) / (high - low), 0.0, 1.0)
    freq = r.plain()
    return (freq / factor) * ramp + freq * (1 - ramp), float(attention), None


def _longrope(r: _Request) -> _Answer:
    original = r.original()
    factor = r.stretch(original)
    attention = r.rule.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    longer = r.max_length is not None and r.max_length > original
    name = "long_factor" if longer else "short_factor"
    scales = r.rule.get(name)
    if not isinstance(scales, (list, tuple)) or len(scales) != r.dim // 2:
        raise InputError(f"longrope needs {r.dim // 2} numbers as {name}.", value=scales)
    return r.plain() / np.asarray(scales, dtype=np.float64), float(attention), None if longer else original


_RULES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _getter(config: Any) -> Any:
    if isinstance(config, Mapping):
        return config.get
    return lambda name, default=None: getattr(config, name, default)


def _parameters(get: Any, layer_type: str | None) -> dict[str, Any]:
    """The flat parameters of one layer type, old and new form alike."""
    given = get("rope_parameters") or {}
    nested = {k: v for k, v in given.items() if isinstance(v, Mapping) or v is None}
    if nested:
        if layer_type not in nested:
            raise InputError("RoPE parameters differ by layer type; which one?", value=layer_type, hint=f"{[*nested]}")
        chosen = nested[layer_type]
        if chosen is None:
            raise UnsupportedError("Layers of this type have no RoPE.", value=layer_type)
        rule = dict(chosen)
    elif given:
        rule = dict(given)
    else:
        local = get("rope_local_base_freq") if layer_type == "sliding_attention" else None
        rule = {"rope_theta": local} if local else dict(get("rope_scaling") or {})
    for name in ("rope_theta", "partial_rotary_factor"):
        if rule.get(name) is None and get(name) is not None:
            rule[name] = get(name)
    if rule.get("rope_theta") is None:
        rule["rope_theta"] = get("default_theta") or 10000.0
    return rule


def _head_dim(get: Any) -> int:
    return int(get("head_dim") or get("hidden_size") // get("num_attention_heads"))


def _number(rule: Mapping[str, Any], name: str) -> float:
    value = rule.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"RoPE needs a finite number as {name}.", value=value)
    return float(value)
