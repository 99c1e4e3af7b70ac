"""Which shapes to try: a model's sizes in the regime of RL post-training.

Training scores whole sequences (varlen), the rollout prefills and then decodes one row at a time over pages; batches
and lengths lie around multiples of 64, 512 and 4096, where kernels change tiles, splits and paths. Matrices too large
to probe are cut as tensor parallelism cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff.errors import InputError
from logdiff.probe.dimensions import Dimensions, read_dimensions

ROWS = (2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097)
MOST_ELEMENTS = 1 << 26
"""Elements of the largest matrix or input of a probe: 128 MiB in bf16."""
MOST_WORK = 2.0**36
"""Multiply-adds of the largest probe."""
MOST_GIVEN = 1 << 30
"""Elements of the largest tensor of a shape that is given."""
MOST_GIVEN_WORK = 2.0**40
"""Multiply-adds of its attention, so that scores of all pairs can be held."""
MOST_SECONDS = 1_000_000
DTYPES = ("bfloat16", "float16", "float32")
DEVICES = ("cpu", "npu", "cuda")

Shape = dict[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of an interpreter.

    Attributes:
        ops, providers, relations: names as given; the interpreter knows which exist.
        dtype, device, seed, seconds: see `logdiff probe run`.
        shapes: operator -> shapes; an operator without any takes its family's own.
        left_out: shapes that were left out, with the reason.
        model: what they were made for.
    """

    ops: tuple[str, ...]
    providers: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    device: str = "cpu"
    seed: int = 0
    seconds: float = 120.0
    shapes: dict[str, list[Shape]] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None

    def asks(self, provider: str) -> bool:
        """Whether checks of a provider are wanted: it is named, or none is."""
        return not self.providers or provider in self.providers

    def task(self) -> dict[str, Any]:
        """The runner's task."""
        return {
            "task": "probe", "ops": list(self.ops), "providers": list(self.providers),
            "relations": list(self.relations), "dtype": self.dtype, "device": self.device, "seed": self.seed,
            "seconds": self.seconds, "shapes": self.shapes, "model": self.model,
        }  # fmt: skip


def make_plan(
    ops: Sequence[str],
    *,
    providers: Sequence[str] = (),
    relations: Sequence[str] = (),
    dtype: str = "bfloat16",
    device: str = "cpu",
    seed: int = 0,
    seconds: float = 120.0,
    model: Path | None = None,
    shapes: Sequence[Shape] = (),
) -> Plan:
    """A plan from the arguments of `logdiff probe run`.

    Args:
        ops: operators, or `all`.
        providers: names; none: all.
        relations: names; none: those of each operator.
        dtype: storage dtype.
        device: device type.
        seed: of the inputs.
        seconds: time for everything.
        model: folder whose sizes decide the shapes.
        shapes: shapes to use instead, of one operator.

    Raises:
        InputError: nothing to probe, a dtype, device, time, seed or shape that can't be used, no sizes in the model.
    """
    if not ops:
        raise InputError("no operator to probe", hint="name some, or `all`; `logdiff probe list` shows them")
    for what, value, legal in (("dtype", dtype, DTYPES), ("device", device, DEVICES)):
        if value not in legal:
            raise InputError(f"no such {what}", value=value, hint=f"one of: {', '.join(legal)}")
    if not 0 <= seconds <= MOST_SECONDS:
        raise InputError("the time is not a number of seconds", value=seconds, hint=f"0 to {MOST_SECONDS}")
    if not 0 <= seed < 2**63:
        raise InputError("the seed is out of range", value=seed, hint="0 to 2**63 - 1")
    if shapes and (len(ops) != 1 or ops[0] == "all"):
        raise InputError("shapes belong to one operator", value=", ".join(ops), hint="name one operator with --shape")
    planned: dict[str, list[Shape]] = {}
    left_out: list[dict[str, Any]] = []
    if shapes:
        for shape in shapes:
            _affordable(shape)
        planned = {ops[0]: list(shapes)}
    elif model is not None:
        planned, left_out = _of_model(read_dimensions(model), set(ops))
    return Plan(
        tuple(dict.fromkeys(ops)), tuple(dict.fromkeys(providers)), tuple(dict.fromkeys(relations)), dtype, device,
        seed, seconds, planned, left_out, None if model is None else str(model),
    )  # fmt: skip


def parse_shapes(texts: Sequence[str]) -> list[Shape]:
    """Shapes from `rows=2,k=64,n=32`. Raises `InputError` with the part at fault."""
    found = []
    for text in texts:
        shape: Shape = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if not name.strip() or not value.strip().isdecimal():
                raise InputError("not a shape", value=part, hint="dimensions as NAME=NUMBER, such as rows=2,k=64,n=32")
            shape[name.strip()] = int(value)
        found.append(shape)
    return found


def _affordable(shape: Shape) -> None:
    """Refuse a shape that no memory holds. Dimensions that are missing are for the interpreter to name."""
    try:
        large = _elements(shape) > MOST_GIVEN or ("length" in shape and _work(shape) > MOST_GIVEN_WORK)
    except KeyError:
        large = any(value > MOST_GIVEN for value in shape.values())
    if large:
        raise InputError(
            "the shape is larger than a probe may be", value=",".join(f"{dim}={n}" for dim, n in shape.items()),
            hint=f"at most {MOST_GIVEN} elements of a tensor",
        )  # fmt: skip


def _shard(n: int, k: int) -> int:
    """n, or what a tensor-parallel rank has of it where n * k is too large to probe."""
    ranks = 1
    while -(-n // ranks) * k > MOST_ELEMENTS:
        ranks *= 2
    return -(-n // ranks)


def _of_model(d: Dimensions, ops: set[str]) -> tuple[dict[str, list[Shape]], list[dict[str, Any]]]:
    wanted = _MAKERS if "all" in ops else {op: make for op, make in _MAKERS.items() if op in ops}
    planned: dict[str, list[Shape]] = {}
    left_out: list[dict[str, Any]] = []
    for op, make in wanted.items():
        if d.latent and op in _OF_HEADS:
            planned[op] = []
            left_out.append({"op": op, "provider": None, "relation": None, "reason": "no shape of latent attention"})
            continue
        shapes = [s for s in make(d) if all(value >= 1 for dim, value in s.items() if dim not in _MAY_BE_ZERO)]
        fitting = [s for s in shapes if _elements(s) <= MOST_ELEMENTS and _work(s) <= MOST_WORK]
        planned[op] = fitting
        left_out += [
            {"op": op, "provider": None, "relation": None, "shapes": [s], "reason": "larger than a probe may be"}
            for s in shapes
            if s not in fitting
        ]
        if not shapes:
            del planned[op]  # the model has no such operator: its family's own shapes
    return planned, left_out


_OF_HEADS = {"attention", "attention_fp8_kv", "kv_store", "kv_store_fp8", "rope"}
_MAY_BE_ZERO = {"window", "softcap", "sinks"}


def _elements(s: Shape) -> int:
    if "length" in s:
        return s["batch"] * s["length"] * s["heads"] * s.get("head_dim", s.get("key_dim", 1))
    width = max(s.get("n", 1), s.get("k", 1), s.get("vocab", 1) if "n" not in s else 1, s.get("hidden", 1))
    rows = s["rows"] * s.get("slots", s.get("top_k", 1)) * s.get("heads", 1) * s.get("head_dim", 1)
    experts = s.get("experts", 1)
    matrix = experts * max(s.get("n", 1) * s.get("k", 1), 2 * s.get("inter", 0) * s.get("hidden", 0))
    return max(rows * width, matrix)


def _work(s: Shape) -> float:
    if "length" in s:
        return float(s["batch"] * s["length"] ** 2 * s["heads"] * s.get("head_dim", 1))
    if "inter" in s:
        return float(3 * s["rows"] * s["top_k"] * s["inter"] * s["hidden"])
    return float(s["rows"] * s.get("n", 1) * s.get("k", 1))


def _products(*matrices: tuple[int, int]) -> list[Shape]:
    """rows by each (k, n)."""
    return [{"rows": rows, "k": k, "n": _shard(n, k)} for k, n in dict.fromkeys(matrices) for rows in ROWS if k and n]


def _rows(name: str, size: int) -> list[Shape]:
    return [{"rows": rows, name: size} for rows in ROWS] if size else []


def _attention(d: Dimensions) -> list[Shape]:
    shapes = []
    for length in ROWS:
        for window in dict.fromkeys((0, d.window)):
            batch = 3 if length <= 513 else 2
            shapes.append({
                "batch": batch, "length": length, "heads": d.heads, "kv_heads": d.kv_heads, "head_dim": d.head_dim,
                "window": window, "softcap": d.softcap, "sinks": d.sinks,
            })  # fmt: skip
    return shapes


def _experts(d: Dimensions, **sizes: int) -> list[Shape]:
    if not d.experts or not d.top_k:
        return []
    return [{"rows": rows, "experts": d.experts, "top_k": min(d.top_k, d.experts), **sizes} for rows in ROWS]


def _moe(d: Dimensions) -> list[Shape]:
    width = d.expert_width
    experts = d.experts
    while experts > d.top_k and experts * 2 * width * d.hidden > MOST_ELEMENTS:
        experts //= 2  # what an expert-parallel rank has
    return [{**s, "experts": max(experts, s["top_k"])} for s in _experts(d, inter=width, hidden=d.hidden)]


_MAKERS: dict[str, Callable[[Dimensions], list[Shape]]] = {
    "linear": lambda d: _products(
        *([] if d.latent else [(d.hidden, d.heads * d.head_dim), (d.hidden, d.kv_heads * d.head_dim)]),
        (d.hidden, 2 * d.intermediate),
    ),
    "linear_row": lambda d: _products(
        *([] if d.latent else [(d.heads * d.head_dim, d.hidden)]), (d.intermediate, d.hidden)
    ),
    "lm_head": lambda d: _products((d.hidden, d.vocabulary)),
    "grouped_linear": lambda d: [
        {"rows": s["rows"] * s["top_k"], "experts": s["experts"], "n": 2 * s["inter"], "k": s["hidden"]}
        for s in _moe(d)
    ],
    "rms_norm": lambda d: _rows("n", d.hidden) + _rows("n", d.head_dim),
    "add_rms_norm": lambda d: _rows("n", d.hidden),
    "layer_norm": lambda d: _rows("n", d.hidden),
    "rope": lambda d: [{"rows": rows, "heads": d.heads, "head_dim": d.head_dim} for rows in ROWS],
    "swiglu": lambda d: _rows("n", d.intermediate),
    "geglu_tanh": lambda d: _rows("n", d.intermediate),
    "attention": _attention,
    "attention_fp8_kv": _attention,
    "log_softmax": lambda d: _rows("vocab", d.vocabulary),
    "logprob": lambda d: _rows("vocab", d.vocabulary),
    "sampler_logprob": lambda d: _rows("vocab", d.vocabulary),
    "router": _experts,
    "router_sigmoid": _experts,
    "moe": _moe,
    "moe_combine": lambda d: _experts(d, hidden=d.hidden),
    "embedding": lambda d: [{**s, "vocab": _shard(d.vocabulary, d.hidden)} for s in _rows("n", d.hidden)],
    "sum": lambda d: _rows("n", d.hidden) + _rows("n", d.vocabulary),
    "mean": lambda d: _rows("n", d.hidden),
    "softmax": lambda d: _rows("n", d.vocabulary) + _rows("n", 4096),
    "index_add": lambda d: [{"rows": rows, "slots": min(d.top_k or 8, 9), "n": d.hidden} for rows in ROWS],
    "scatter_add": lambda d: [{"rows": rows, "slots": min(d.top_k or 8, 9), "n": d.hidden} for rows in ROWS],
    "all_reduce": lambda d: [{"rows": rows, "n": d.hidden, "ranks": t} for rows in (8, 64, 512) for t in (2, 4)],
    "reduce_scatter": lambda d: [{"rows": rows, "n": d.hidden, "ranks": t} for rows in (8, 64, 512) for t in (2, 4)],
    "kv_store": lambda d: [{"rows": rows, "kv_heads": d.kv_heads, "head_dim": d.head_dim} for rows in ROWS],
    "kv_store_fp8": lambda d: [{"rows": rows, "kv_heads": d.kv_heads, "head_dim": d.head_dim} for rows in ROWS],
}
"""Operator -> shapes of a model; operators without an entry keep their family's shapes."""
