"""The parameters of a clean model's operators: those with which the formula gives, in fp64, what the model gave.

A formula that doesn't reproduce the model is not used: its operator is then reported as one without a reference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.clean import Clean, Operator, numbers, same
from logdiff_kernels.check.formulas import GATES
from logdiff_kernels.check.given import Given, Parameters, cast
from logdiff_kernels.check.kinds import KINDS
from logdiff_kernels.check.recognise_experts import experts, router
from logdiff_kernels.observe.boundaries import names


def gather(captured: Captured, name: str, kind: str, inputs: tuple[str, ...]) -> tuple[Given, torch.Tensor]:
    """(what an operator was given, its rows of the file) for all rows that have everything."""
    fed = inputs[:-2] if kind == "attention" else inputs
    index = captured.common([name, *fed])
    x = tuple(captured.at(source, index) for source in fed)
    rows = captured.rows.take(index)
    if kind != "attention":
        return Given(x, rows), index
    key, value = inputs[-2:]
    both = captured.common([key, value])
    return Given(x, rows, captured.rows.take(both), captured.at(key, both), captured.at(value, both)), index


def recognise(clean: Clean, name: str, inputs: tuple[str, ...], where: str, facts: dict[str, Any]) -> Operator | str:
    """The operator behind a boundary, or why there is no formula for it."""
    part = names.parse(name)[1]
    kind = names.operator(name)
    if part == "expert_ids":
        return "judged with the weights of the chosen experts"
    if part == "logprob":
        return Operator(name, kind, inputs, {})
    given, index = gather(clean.captured, name, kind, inputs)
    if not len(index):
        return "the clean model passed no rows here"
    out = clean.captured.at(name, index).double()
    if not given.x and kind not in ("embedding", "logprob"):
        return "what feeds it isn't known"
    given = given.to(torch.float64)
    module = clean.module(where)
    search = _SEARCH.get(kind)
    if search is None:
        return f"no formula for {kind}"
    for p in search(clean, name, module, given, out, facts):
        try:
            found = KINDS[kind].formula(given, cast(p, torch.float64))
        except (RuntimeError, IndexError, KeyError):
            continue
        if same(found, out):
            heads = out.shape[-1] // p["head"] if kind == "rope" else _heads(clean, part, facts, out.shape[-1])
            return Operator(name, kind, inputs, p, _alone(kind, module), heads)
    return "no formula reproduces the clean model here"


def _alone(kind: str, module: Any) -> Any:
    plain = kind in ("linear", "norm") and module is not None and not any(True for _ in module.children())
    return module if plain else None


def _heads(clean: Clean, part: str, facts: dict[str, Any], width: int) -> int | None:
    if part in ("q", "q_norm", "q_rope", "context"):
        heads = facts.get("heads") or getattr(clean.config, "num_attention_heads", None)
    elif part in ("k", "v", "k_norm", "v_norm", "k_rope"):
        heads = facts.get("kv_heads") or getattr(clean.config, "num_key_value_heads", None)
    else:
        return None
    return int(heads) if heads and width % int(heads) == 0 else None


def _linear(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    weight, bias = _matrix(module)
    if weight is None:
        return
    for w in (weight, weight.T):
        if w.shape[1] != given.x[0].shape[-1]:
            continue
        if w.shape[0] == out.shape[-1]:
            yield {"weight": w, "bias": bias}
        elif w.shape[0] > out.shape[-1]:
            full = given.x[0] @ w.double().T + (0.0 if bias is None else bias.double())
            rows = _columns(full, out)
            if rows is not None:
                yield {"weight": w[rows], "bias": None if bias is None else bias[rows]}


def _columns(full: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor | None:
    """Which columns of `full` the columns of `wanted` are."""
    distance = full.square().sum(0)[None, :] - 2 * wanted.T @ full
    index = distance.argmin(-1)
    return index if same(full[:, index], wanted) else None


def _matrix(module: Any) -> tuple[Any, Any]:
    if module is None:
        return None, None
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters.get("weight")
    if weight is None or weight.ndim != 2:
        return None, None
    rows = weight.shape[0]
    bias = next((v for k, v in parameters.items() if k == "bias" and v.ndim == 1), None)
    return weight.detach(), None if bias is None or rows == 0 else bias.detach()


def _norm(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    width = out.shape[-1]
    weight = bias = None
    if module is not None:
        vectors = dict(module.named_parameters(recurse=False))
        weight, bias = vectors.get("weight", vectors.get("scale")), vectors.get("bias")
    told = {facts["eps"]} if isinstance(facts.get("eps"), float) else set()
    epsilons = [
        *sorted(told | numbers(module, lambda k: "eps" in k)),
        *sorted(numbers(clean.config, lambda k: "eps" in k) | {0.0}, reverse=True),
    ]
    sizes = [weight.numel()] if weight is not None and width % weight.numel() == 0 else []
    heads = _heads(clean, names.parse(name)[1], facts, width)
    sizes += [width // heads] if heads else []
    sizes.append(width)
    for part, size, center, offset, eps in itertools.product(
        _parts(given.x[0].shape[-1], width, 1), dict.fromkeys(sizes), (False, True), (0.0, 1.0), dict.fromkeys(epsilons)
    ):
        yield {
            "part": part,
            "weight": None if weight is None else weight.detach(),
            "bias": None if bias is None else bias.detach(),
            "eps": eps, "offset": offset, "center": center, "size": size,
        }  # fmt: skip


def _parts(whole: int, width: int, heads: int) -> list[tuple[int, int, int] | None]:
    """Which features of a wider input an operator may take: the first or the last of each of some groups."""
    if whole == width:
        return [None]
    found: list[tuple[int, int, int] | None] = []
    for groups in dict.fromkeys((heads, 1)):
        if whole % groups == 0 and width % groups == 0 and width < whole:
            size, own = whole // groups, width // groups
            found += [(groups, size - own, size), (groups, 0, own)]
    return found


def _rope(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    width = out.shape[-1]
    heads = _heads(clean, names.parse(name)[1], facts, width) or facts.get("heads") or 1
    head = width // int(heads)
    if same(given.x[0], out):
        yield {"inv_freq": torch.ones(1), "head": head, "missing": True}
    for part, (inv_freq, factor) in itertools.product(
        _parts(given.x[0].shape[-1], width, int(clean.config.num_attention_heads)), frequencies(clean)
    ):
        for size in dict.fromkeys((head, 2 * len(inv_freq))):
            if size < 2 * len(inv_freq) or width % size:
                continue
            for start in dict.fromkeys((0, size - 2 * len(inv_freq))):
                for layout in ({}, {"interleaved": True}, {"deinterleaved": True}):
                    yield {"inv_freq": inv_freq, "factor": factor, "head": size, "start": start, "part": part, **layout}


def frequencies(clean: Clean) -> list[tuple[torch.Tensor, float]]:
    """(frequencies fp32, factor on cosine and sine) of every rotary table of the model."""
    found: list[tuple[torch.Tensor, float]] = []
    for module in clean.modules.values():
        for key, value in module.named_buffers(recurse=False):
            if key.endswith("inv_freq") and "original" not in key:
                prefix = key.removesuffix("inv_freq")
                factor = float(getattr(module, f"{prefix}attention_scaling", 1.0))
                if not any(torch.equal(value.float(), v) and factor == f for v, f in found):
                    found.append((value.float(), factor))
    return found


def _attention(
    clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any
) -> Iterator[Parameters]:
    assert given.key is not None
    config = clean.config
    heads = int(facts.get("heads") or config.num_attention_heads)
    kv_heads = int(facts.get("kv_heads") or getattr(config, "num_key_value_heads", None) or heads)
    size = given.x[0].shape[-1] // heads
    latent = _latent(module, given, heads, out.shape[-1]) if len(given.x) == 2 else {}
    kv_heads = heads if latent else kv_heads if given.key.shape[-1] == kv_heads * size else given.key.shape[-1] // size
    scales = {float(facts[k]) for k in ("scale", "scaling") if isinstance(facts.get(k), (int, float))}
    scales |= numbers(module, lambda k: "scal" in k) | {size**-0.5}
    windows = [facts.get("window"), getattr(module, "sliding_window", None), None]
    caps = {float(facts.get("softcap") or 0.0), 0.0} | numbers(module, lambda k: "softcap" in k)
    sinks = [v.detach() for k, v in module.named_parameters(recurse=False) if v.shape == (heads,)] if module else []
    chunks = [None, *sorted(int(c) for c in numbers(config, lambda k: "chunk" in k) if c > 0)]
    for chunk, sink, cap, window, scale in itertools.product(
        chunks, [*sinks, None], sorted(caps, reverse=True), dict.fromkeys(windows), sorted(scales)
    ):
        yield {
            "heads": heads, "kv_heads": kv_heads, "size": size, "scale": scale, "window": window, "softcap": cap,
            "sinks": sink, "chunk": chunk, **latent,
        }  # fmt: skip


def _latent(module: Any, given: Given, heads: int, width: int) -> Parameters:
    """The up-projection of latent keys and values, and the sizes of a head's parts."""
    assert given.key is not None
    assert given.value is not None
    rope, rank = given.value.shape[-1], given.key.shape[-1]
    nope = given.x[0].shape[-1] // heads - rope
    rows = heads * nope + width
    for child in module.children() if module is not None else ():
        weight, _ = _matrix(child)
        if weight is not None and tuple(weight.shape) == (rows, rank):
            return {"up": weight, "nope": nope, "rope": rope}
    return {}


def _activation(
    clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any
) -> Iterator[Parameters]:
    for kind in GATES:
        yield {"kind": kind}
    constants = sorted(v for v in numbers(module, lambda k: True) | numbers(clean.config, lambda k: "swiglu" in k) if v)
    for alpha, limit, offset in itertools.product(constants, [*constants, None], (1.0, 0.0)):
        yield {"kind": "swiglu_oai", "alpha": alpha, "limit": limit, "up_offset": offset}


def _add(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    yield {}
    if len(given.x) == 2:  # one term is scaled: the factor that fits best
        for number in (1, 0):
            term, rest = given.x[number], out - given.x[1 - number]
            factor = float((term * rest).sum() / term.square().sum().clamp(min=1e-300))
            scales = [1.0, 1.0]
            scales[number] = factor
            yield {"scales": scales}
    total = sum(given.x[1:], given.x[0])
    yield {"rest": float((total * out).sum() / total.square().sum().clamp(min=1e-300))}


def _embedding(
    clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any
) -> Iterator[Parameters]:
    module = clean.model.get_input_embeddings()
    weight = module.weight.detach()
    rows = weight[given.rows.token].double()
    factor = float((rows * out).sum() / rows.square().sum().clamp(min=1e-300))
    yield {"weight": weight, "scale": 1.0}
    yield {"weight": weight, "scale": factor}


def _lm_head(clean: Clean, name: str, module: Any, given: Given, out: torch.Tensor, facts: Any) -> Iterator[Parameters]:
    head = clean.model.get_output_embeddings()
    weight, bias = _matrix(head)
    if weight is None:
        return
    caps = {0.0} | numbers(clean.config, lambda k: "softcap" in k)
    scales = {1.0} | {s for v in numbers(clean.config, lambda k: "scal" in k or "mult" in k) if v for s in (v, 1 / v)}
    for cap, scale in itertools.product(sorted(caps), sorted(scales, key=lambda s: s != 1.0)):
        yield {"weight": weight, "bias": bias, "scale": scale, "softcap": cap}


_SEARCH: dict[str, Callable[..., Iterator[Parameters]]] = {
    "linear": _linear,
    "norm": _norm,
    "rope": _rope,
    "attention": _attention,
    "activation": _activation,
    "add": _add,
    "embedding": _embedding,
    "lm_head": _lm_head,
    "router": router,
    "experts": experts,
}
