"""One call per driver function on seeded inputs of a given length: what the laws and the mutation campaign run.

A driver has the signature of the function of the same name in `cpu`, with a launcher in front, so one set of inputs
serves both.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.ascendc import attention_inputs as attention
from logdiff_kernels.ascendc import linear_inputs as linear
from logdiff_kernels.build.launcher import Launcher

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Make = Callable[["Source", int, torch.dtype], tuple[Any, ...]]


class Source:
    """Seeded random tensors with outliers, subnormals and zeros of both signs.

    Args:
        seed: the same seed gives the same tensors.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        """Normal values times `scale`; one in 50 is special."""
        x = torch.randn(shape, generator=self.generator) * scale
        special = torch.tensor([0.0, -0.0, 37.0 * scale, -91.0 * scale, 1e-39, -3e-40, 1e-30, 6e-6])
        chosen = torch.randint(len(special), shape, generator=self.generator)
        rare = torch.rand(shape, generator=self.generator) < 0.02
        return torch.where(rare, special[chosen], x).to(dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """int64 in [0, high)."""
        return torch.randint(high, shape, generator=self.generator)


@dataclass(frozen=True, slots=True)
class Case:
    """A driver function and inputs for it.

    Attributes:
        name: of the case.
        part: module of the driver and of the CPU function.
        function: name in both.
        make: arguments for a length (of the reduced or row dimension), from a source of random values.
        kernels: kernels that the driver launches.
        dtypes: that make a difference.
        updated: positions of arguments that the function writes without returning them: results too.
    """

    name: str
    part: str
    function: str
    make: Make
    kernels: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] = DTYPES
    updated: tuple[int, ...] = ()

    def arguments(self, length: int, dtype: torch.dtype, seed: int) -> tuple[Any, ...]:
        """Inputs; equal for equal arguments."""
        return self.make(Source(seed), length, dtype)

    def on_launcher(self, launcher: Launcher, arguments: tuple[Any, ...]) -> list[Tensor]:
        """The driver's results."""
        module = importlib.import_module(f"logdiff_kernels.ascendc.{self.part}")
        return self._results(getattr(module, self.function)(launcher, *arguments), arguments)

    def on_cpu(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """What the CPU backend gives for the same inputs."""
        module = importlib.import_module(f"logdiff_kernels.cpu.{self.part}")
        return self._results(getattr(module, self.function)(*arguments), arguments)

    def _results(self, returned: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
        return [*_tensors(returned), *(arguments[i] for i in self.updated)]


def _tensors(results: Any) -> Iterator[Tensor]:
    if isinstance(results, Tensor):
        yield results
    elif isinstance(results, tuple | list):
        for result in results:
            yield from _tensors(result)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bits, any NaN equal to any NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    whole = {4: torch.int32, 2: torch.int16}[a.element_size()]
    equal = a.contiguous().view(whole) == b.contiguous().view(whole)
    return bool((equal | (a.isnan() & b.isnan())).all())


def rows_for(length: int) -> int:
    """Rows that fit a quick test: fewer of long ones."""
    return max(2, min(70, 20000 // max(length, 1)))


def _rms_norm(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return source.floats(rows_for(n), n, dtype=dtype), source.floats(n), 1e-6, 1.0, True


def _add_rms_norm(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    rows = rows_for(n)
    x = source.floats(rows, 2 * n, dtype=dtype)[:, n:]
    return x, source.floats(rows, n, dtype=dtype), source.floats(n, dtype=dtype), 1e-5, 0.0, False


def _rms_norm_roots(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    # rows whose mean squares are subnormal, beyond 2^126, infinite, zero or NaN
    exponents = torch.arange(-75, 70)
    x = source.floats(len(exponents), n).clamp(-4, 4) * torch.exp2(exponents.float())[:, None]
    x[3], x[5], x[-2, 0] = 0.0, -0.0, torch.nan
    return x, None, 0.0, 0.0, True


def _rms_norm_backward(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    rows = rows_for(n)
    dy, x, extra = (source.floats(rows, n, dtype=dtype) for _ in range(3))
    return dy, x, source.floats(n), source.floats(rows).abs(), extra, 1.0, True, True


def _rms_norm_many_rows(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    dy, x = (source.floats(n, 96, dtype=dtype) for _ in range(2))
    return dy, x, source.floats(96, dtype=dtype), source.floats(n).abs(), None, 0.0, True, True


def _rope(interleaved: bool, backward: bool) -> Make:
    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        # n tokens; 3 of 5 heads, 12 or all of the elements of a head
        heads, dim, rotary = 3, (20, 64, 128)[n % 3], (12, 64, 128)[n % 3]
        x = source.floats(n, 5, dim, dtype=dtype)[:, 1 : 1 + heads]
        angle = source.floats(n, rotary // 2) * 3
        return x, angle.cos(), angle.sin(), interleaved, backward

    return make


def _rope_wide(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    # one token with n heads, in place
    x = source.floats(1, n, 128, dtype=dtype)
    angle = source.floats(1, 64) * 3
    return x, angle.cos(), angle.sin(), False, False, x


def _glu(kind: int, layout: str) -> Make:
    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        both = source.floats(rows_for(n), 2 * n, dtype=dtype, scale=3.0)
        if layout == "pairs":
            gate, up = both[:, ::2], both[:, 1::2]
        else:
            gate, up = both[:, :n], both[:, n:]
        return gate, up, kind, 1.702, 7.0

    return make


def _glu_backward(kind: int) -> Make:
    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        dy, gate, up = (source.floats(rows_for(n), n, dtype=dtype, scale=3.0) for _ in range(3))
        return dy, gate, up, kind, 1.702, 7.0

    return make


def _edges(source: Source, n: int, dtype: torch.dtype, count: int) -> list[Tensor]:
    """Rows of the arguments at which exp1 ends, their neighbours, and values whose products overflow."""
    ends = torch.tensor([-87.33654, 88.72283])
    near = torch.cat([ends, ends.nextafter(torch.tensor(torch.inf)), ends.nextafter(torch.tensor(-torch.inf))])
    values = torch.cat([near, -near, torch.tensor([0.5, -3.0, 300.0, -300.0, 1e25, -1e25])])
    rows = rows_for(n)
    return [values[source.integers(len(values), rows, n)].to(dtype) for _ in range(count)]


def _glu_edges(backward: bool) -> Make:
    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        return *_edges(source, n, dtype, 3 if backward else 2), 0, 1.702, 7.0

    return make


def _logits(source: Source, columns: int) -> tuple[Tensor, Tensor]:
    """Logits in rows further apart than their length, some of them -inf, and temperatures."""
    tokens = max(2, min(9, 30000 // columns))
    logits = source.floats(tokens, columns + 3, scale=4.0)[:, :columns]
    if columns > 8:
        logits[0, 1 : columns // 2] = -torch.inf
    return logits, torch.tensor([1.0, 0.7, 0.0, 1.3])[source.integers(4, tokens)]


def _logprob(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    logits, temperature = _logits(source, n)
    return logits, temperature, source.integers(n, logits.shape[0]), max(1, n - 2), True


def _logprob_tokens(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    # n tokens of few columns: many tiles of tokens for a core
    logits = source.floats(n, 40, scale=4.0)
    temperature = torch.tensor([1.0, 0.7, 0.0, 1.3])[source.integers(4, n)]
    return logits, temperature, source.integers(40, n), 39, True


def _logprob_shard(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    # the second quarter of a vocabulary of 4 n
    columns = -(-4 * n // 64) * 16
    return _logits(source, columns)[0], None, 4 * n, False, 2, 2


def _target(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    logits, temperature = _logits(source, n)
    return logits, temperature, source.integers(3 * n, logits.shape[0]), 2 * n - 1, n


def _merge(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    partial = source.floats(n, 4, 3).abs()
    partial[0, 1] = torch.tensor([-torch.inf, 0.0, 0.0])
    partial[-1, :, 0] = -torch.inf
    return (partial,)


def _finish(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    # n tokens, one of them without a visible column
    stats = source.floats(n, 3).abs()
    stats[-1] = torch.tensor([-torch.inf, 0.0, 0.0])
    return stats, source.floats(n), True


def _columns(source: Source, n: int) -> tuple[Tensor, Tensor, Tensor]:
    logits, temperature = _logits(source, n)
    m = logits.amax(1)
    s = (logits - m[:, None]).exp().sum(1)
    return logits, temperature, torch.stack([m, s, torch.zeros_like(s)], 1)


def _log_softmax(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_columns(source, n), max(1, n - 70)


def _logprob_backward(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    logits, temperature, stats = _columns(source, n)
    tokens = logits.shape[0]
    ids = source.integers(n, tokens)
    dlogp, entropy, dentropy = (source.floats(tokens) for _ in range(3))
    return logits, temperature, stats, ids, dlogp, entropy, dentropy, max(1, n - 2)


def _log_softmax_backward(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    logits, temperature, stats = _columns(source, n)
    return logits, temperature, stats, source.floats(*logits.shape), max(1, n - 70)


# flags of cpu.router: 1 sigmoid, 2 choice on logits, 4 renormalise, 8 groups by their two best
_ROUTERS = {
    "softmax": (1, 1, 4, 0.0, 1.0),
    "groups": (4, 2, 1 | 4 | 8, 1e-20, 2.5),
    "groups_max": (4, 3, 0, 0.0, 16.0),
    "on_logits": (1, 1, 2, 0.0, 1.0),
    "sigmoid_on_logits": (1, 1, 1 | 2, 0.0, 1.0),
}


def _expert_logits(source: Source, experts: int, special: bool) -> Tensor:
    # multiples of a quarter, so that many are equal
    x = (source.floats(37, experts, scale=3.0) * 4).round() / 4
    if special:
        values = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
        chosen = source.integers(60, 37, experts)
        x = torch.where(chosen < 5, values[chosen.clamp(max=4)], x)
    return x


def _router(rule: str, special: bool = False) -> Make:
    groups, top_groups, flags, eps, scaling = _ROUTERS[rule]

    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        experts = max(16, min(n, 512) // 4 * 4)
        bias = source.floats(experts) if flags & 1 else None
        k = min(6, top_groups * (experts // groups))
        return _expert_logits(source, experts, special), bias, k, groups, top_groups, flags, eps, scaling

    return make


def _router_backward(rule: str) -> Make:
    _, _, flags, eps, scaling = _ROUTERS[rule]

    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        experts = max(7, min(n, 512))
        ids = source.floats(37, experts).argsort(1)[:, :5]
        return source.floats(37, 5), source.floats(37, experts), ids, flags, eps, scaling

    return make


def _router_tokens(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    # n tokens: a row has at most 512 experts
    return source.floats(n, 16, scale=3.0), None, 3, 4, 2, 1 | 4, 1e-20, 2.5


def _router_tokens_backward(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    ids = source.floats(n, 16).argsort(1)[:, :3]
    return source.floats(n, 3), source.floats(n, 16), ids, 1 | 4, 1e-20, 2.5


def _slots(source: Source, tokens: int, k: int, experts: int) -> tuple[Tensor, Tensor]:
    """Ids [tokens, k], all of a token different and some absent, and each slot's row."""
    ids = source.floats(tokens, experts).argsort(1)[:, :k]
    ids = torch.where(source.integers(6, tokens, k) == 0, -1, ids)
    ids[0] = -1
    flat = ids.reshape(-1)
    order = torch.sort(torch.where(flat < 0, experts, flat), stable=True)[1]
    position = torch.empty_like(order)
    position[order] = torch.arange(order.shape[0])
    return ids, torch.where(flat < 0, -1, position)


def _gather(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    tokens = rows_for(n)
    return source.floats(tokens, n + 5, dtype=dtype)[:, :n], source.integers(2 * tokens, 3 * tokens), 2


def _combine(shared: bool) -> Make:
    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        tokens = rows_for(n)
        ids, position = _slots(source, tokens, 3, 8)
        y = source.floats(3 * tokens, n, dtype=dtype)
        if not shared:
            return y, None, ids, position, None, None
        other = torch.float32 if dtype == torch.float16 else dtype
        logical = source.floats(8).argsort()
        return y, source.floats(tokens, 3), ids, position, logical, source.floats(tokens, n, dtype=other)

    return make


def _combine_backward(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    tokens = rows_for(n)
    ids, position = _slots(source, tokens, 3, 8)
    y = source.floats(int((ids >= 0).sum()), n, dtype=dtype)
    return source.floats(tokens, n, dtype=dtype), y, source.floats(tokens, 3), position


def _embedding(scale: float | None) -> Make:
    def make(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        return source.integers(90, 2 * rows_for(n)), source.floats(90, n, dtype=dtype), scale

    return make


def _embedding_backward(source: Source, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    tokens = 2 * rows_for(n)
    out = torch.float32 if dtype == torch.bfloat16 else dtype
    return source.floats(tokens, n, dtype=dtype), source.integers(9, tokens), 11, 0.3, out


_FP32 = (torch.float32,)
_ATTENTION_BACKWARD = ("attention_backward_dots", "attention_backward", "attention_backward_sinks")
_LOGPROB = ("logprob_target", "logprob_stats", "logprob_merge", "logprob_finish")

CASES = (
    Case("rms_norm", "norm", "rms_norm", _rms_norm, ("rms_norm",)),
    Case("rms_norm_roots", "norm", "rms_norm", _rms_norm_roots, ("rms_norm",), _FP32),
    Case("add_rms_norm", "norm", "add_rms_norm", _add_rms_norm, ("rms_norm",)),
    Case(
        "rms_norm_backward",
        "norm",
        "rms_norm_backward",
        _rms_norm_backward,
        ("rms_norm_backward", "rms_norm_weight_grad"),
    ),
    Case(
        "rms_norm_backward_rows",
        "norm",
        "rms_norm_backward",
        _rms_norm_many_rows,
        ("rms_norm_backward", "rms_norm_weight_grad"),
    ),
    Case("rope_neox", "rope", "rope", _rope(False, False), ("rope",)),
    Case("rope_neox_backward", "rope", "rope", _rope(False, True), ("rope",)),
    Case("rope_interleaved", "rope", "rope", _rope(True, False), ("rope",)),
    Case("rope_interleaved_backward", "rope", "rope", _rope(True, True), ("rope",)),
    Case("rope_in_place", "rope", "rope", _rope_wide, ("rope",)),
    Case("linear", "linear", "matmul", linear.linear, ("linear",)),
    Case("linear_decode", "linear", "matmul", linear.decode, ("linear",)),
    Case("linear_bias", "linear", "matmul", linear.bias, ("linear_mix",)),
    Case("linear_row", "linear", "matmul", linear.row, ("linear_mix",)),
    Case("linear_input_grad", "linear", "matmul", linear.input_grad, ("linear",)),
    Case("linear_weight_grad", "linear", "matmul", linear.blocks, ("linear_mix",)),
    Case("grouped_linear", "linear", "grouped_matmul", linear.grouped, ("linear",)),
    Case("grouped_linear_row", "linear", "grouped_matmul", linear.grouped_row, ("linear_mix",)),
    Case("grouped_weight_grad", "linear", "grouped_outer", linear.outer, ("linear_mix",)),
    Case("bias_grad", "linear", "grouped_row_sum", linear.row_sum, ("row_sum",)),
    Case("tree_combine", "linear", "tree_combine", linear.tree, ("tree_combine",)),
    Case("scale_cap", "linear", "scale_cap_", linear.scale_cap, ("scale_cap",), (torch.float32,)),
    *[
        Case(name, "attention", "attention", make, ("attention",), attention.DTYPES)
        for name, make in (
            ("attention", attention.training(4, 2, 64, 64)),
            ("attention_full", attention.training(2, 2, 128, 128, causal=False)),
            ("attention_window_sinks", attention.training(3, 1, 192, 128, window=100, sinks=True)),
            ("attention_softcap", attention.training(6, 2, 96, 96, softcap=20.0)),
            ("attention_wide", attention.training(2, 1, 256, 256)),
            ("attention_chunked", attention.chunked),
        )
    ],
    *[
        Case(name, "attention", "attention", make, ("attention", "attention_combine"), attention.DTYPES)
        for name, make in (
            ("attention_chunks", attention.last_chunk(3, sinks=True)),
            ("attention_chunks_plain", attention.last_chunk(9)),
        )
    ],
    *[
        Case(name, "attention", "paged_attention", make, ("attention",), attention.DTYPES)
        for name, make in (
            ("attention_decode", attention.paged(8, 2, 128, 16, 1)),
            ("attention_prefix", attention.paged(4, 1, 64, 48, 40, window=300)),
            ("attention_latent", attention.paged(16, 1, 576, 128, 2, latent=512)),
        )
    ],
    *[
        Case(
            name,
            "attention",
            "attention_backward",
            attention.backward(make),
            _ATTENTION_BACKWARD[:kernels],
            attention.DTYPES,
        )
        for name, make, kernels in (
            ("attention_backward", attention.training(4, 2, 64, 64), 2),
            ("attention_backward_full", attention.training(2, 2, 128, 128, causal=False), 2),
            ("attention_backward_window_sinks", attention.training(3, 1, 192, 128, window=100, sinks=True), 3),
            ("attention_backward_softcap", attention.training(3, 1, 96, 96, softcap=20.0), 2),
            ("attention_backward_wide", attention.training(2, 1, 256, 256), 2),
            ("attention_backward_latent", attention.training(2, 1, 576, 512), 2),
            ("attention_backward_chunked", attention.chunked, 3),
            ("attention_backward_many_sinks", attention.training(12, 2, 32, 32, sinks=True), 3),
        )
    ],
    Case("store_kv", "attention", "store_kv", attention.store, ("store_kv",), updated=(2, 3)),
    Case("swiglu", "activation", "glu", _glu(0, "halves"), ("glu",)),
    Case("geglu_tanh", "activation", "glu", _glu(1, "halves"), ("glu",)),
    Case("swiglu_clamped", "activation", "glu", _glu(2, "pairs"), ("glu",)),
    Case("swiglu_backward", "activation", "glu_backward", _glu_backward(0), ("glu_backward",)),
    Case("swiglu_edges", "activation", "glu", _glu_edges(False), ("glu",)),
    Case("swiglu_edges_backward", "activation", "glu_backward", _glu_edges(True), ("glu_backward",)),
    Case("geglu_tanh_backward", "activation", "glu_backward", _glu_backward(1), ("glu_backward",)),
    Case("swiglu_clamped_backward", "activation", "glu_backward", _glu_backward(2), ("glu_backward",)),
    Case("logprob", "logprob", "logprob", _logprob, _LOGPROB, _FP32),
    Case("logprob_tokens", "logprob", "logprob", _logprob_tokens, _LOGPROB, _FP32),
    Case("logprob_shard", "logprob", "stats", _logprob_shard, ("logprob_stats", "logprob_merge"), _FP32),
    Case("logprob_target", "logprob", "target", _target, ("logprob_target",), _FP32),
    Case("logprob_merge", "logprob", "merge", _merge, ("logprob_merge",), _FP32),
    Case("logprob_finish", "logprob", "finish", _finish, ("logprob_finish",), _FP32),
    Case("log_softmax", "logprob", "log_softmax", _log_softmax, ("log_softmax",), _FP32),
    Case("logprob_backward", "logprob", "logprob_backward", _logprob_backward, ("logprob_backward",), _FP32),
    Case(
        "log_softmax_backward",
        "logprob",
        "log_softmax_backward",
        _log_softmax_backward,
        ("log_softmax_backward",),
        _FP32,
    ),
    *(Case(f"router_{rule}", "router", "router", _router(rule), ("router",), _FP32) for rule in _ROUTERS),
    *(Case(f"router_{rule}_special", "router", "router", _router(rule, True), ("router",), _FP32) for rule in _ROUTERS),
    *(
        Case(
            f"router_{rule}_backward", "router", "router_backward", _router_backward(rule), ("router_backward",), _FP32
        )
        for rule in _ROUTERS
        if not rule.startswith("groups_")
    ),
    Case("router_tokens", "router", "router", _router_tokens, ("router",), _FP32),
    Case("router_tokens_backward", "router", "router_backward", _router_tokens_backward, ("router_backward",), _FP32),
    Case("moe_gather", "moe", "gather", _gather, ("gather_rows",)),
    Case("moe_combine", "moe", "combine", _combine(True), ("moe_combine",)),
    Case("moe_combine_plain", "moe", "combine", _combine(False), ("moe_combine",)),
    Case("moe_combine_backward", "moe", "combine_backward", _combine_backward, ("moe_combine_backward",)),
    Case("embedding", "embedding", "embedding", _embedding(None), ("gather_rows",)),
    Case("embedding_scaled", "embedding", "embedding", _embedding(13.5), ("gather_rows",)),
    Case("embedding_backward", "embedding", "embedding_backward", _embedding_backward, ("embedding_backward",)),
)
"""Every case."""
