"""Boundaries of Transformers decoders by the usual names of their modules: the tests' own way to make a capture."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder, Rows


def capture(
    model: Any,
    samples: Sequence[tuple[Sequence[int], Sequence[int]]],
    path: Path,
    *,
    phase: str = "score",
    side: str = "train",
    temperature: float = 1.0,
    dtype: str = "float32",
    logprob: Any = None,
    prepare: Any = None,
) -> Path:
    """Run (prompt, response) pairs one by one and write what passed; `decode` feeds responses token by token.

    `logprob(logits [n, V], targets [n])` replaces the plain one; `prepare(sample, ids, places)` gives other ids and
    positions.
    """
    prompts, responses = [list(p) for p, _ in samples], [list(r) for _, r in samples]
    names = [f"s{i}" for i in range(len(samples))]
    recorder = Recorder(names, prompts, responses, Keep(max_bytes=1 << 34), path.parent)
    values = []
    with _hooks(model, recorder), torch.no_grad():
        for number, (prompt, response) in enumerate(samples):
            ids = torch.tensor([*prompt, *response])
            cuts = [0, len(ids)] if phase != "decode" else [0, *range(len(prompt), len(ids) + 1)]
            cache = None
            for a, b in pairwise(cuts):
                place = torch.arange(a, b)
                fed, positions = ids[a:b].clone(), place.clone()
                if prepare is not None:
                    fed, positions = prepare(number, fed, positions)
                recorder.begin(Rows(torch.full_like(place, number), place, fed, positions))
                more = {} if phase != "decode" else {"past_key_values": cache, "use_cache": True}
                answer = model(input_ids=fed[None], position_ids=positions[None], **more)
                cache = getattr(answer, "past_key_values", None)
                recorder.give("logits", answer.logits[0], where="lm_head", inputs=[model._last_hidden[0]])
                scored = (place >= len(prompt) - 1) & (place < len(ids) - 1)
                if bool(scored.any()):
                    z, target = answer.logits[0][scored], ids[place[scored] + 1]
                    values.append((logprob or plain_logprob(temperature))(z, target))
                recorder.end()
    recorder.logprobs(torch.cat(values).float().numpy())
    recorder.write(path, engine="test", side=side, phase=phase, model="", dtype=dtype)
    recorder.close()
    return path


def plain_logprob(temperature: float) -> Any:
    def compute(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        z = torch.log_softmax(logits.float() / temperature, -1)
        return z.gather(-1, target[:, None])[:, 0]

    return compute


@contextlib.contextmanager
def _hooks(model: Any, recorder: Recorder) -> Iterator[None]:
    body = model.model
    handles: list[Any] = []
    paths = {id(m): n for n, m in model.named_modules()}

    head_first = "Gemma3" in type(model).__name__  # its norms of queries and keys see [B, H, L, D]

    def rows(x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 4:
            x = (x.transpose(1, 2) if head_first else x).flatten(2)
        return x.reshape(-1, x.shape[-1])

    def out(module: Any, name: str, take: Any = None) -> None:
        def hook(m: Any, args: Any, kwargs: Any, output: Any) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            value = output[0] if isinstance(output, tuple) else output
            floating = given is not None and given.is_floating_point()
            recorder.give(name, rows(value), where=paths[id(m)], inputs=[rows(given)] if floating else [])

        handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def before(module: Any, name: str, inputs: Any) -> None:
        def hook(_m: Any, args: Any, kwargs: Any) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            recorder.give(name, rows(given), where=paths[id(_m)].rpartition(".")[0], inputs=inputs())

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    out(body.embed_tokens, "embedding")
    last: dict[str, torch.Tensor] = {}

    def keep(key: str, module: Any) -> None:
        handles.append(module.register_forward_hook(lambda _m, _a, o: last.__setitem__(key, rows(_first(o)))))

    for number, layer in enumerate(body.layers):
        _layer(number, layer, out, before, keep, last, recorder, handles, paths)
    out(body.norm, "final_norm")
    handles.append(body.norm.register_forward_hook(lambda _m, _a, o: setattr(model, "_last_hidden", o)))
    module = sys.modules[type(model).__module__]
    eager = module.eager_attention_forward

    def attention(
        owner: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        answer = eager(owner, query, key, value, mask, **kwargs)
        n = query.shape[2]
        q, k, v = (t.transpose(1, 2)[0, -n:].flatten(1) for t in (query, key, value))
        at = owner.layer_idx
        recorder.give(f"layers.{at}.q_rope", q, inputs=[last[f"{at}.q"]])
        recorder.give(f"layers.{at}.k_rope", k, inputs=[last[f"{at}.k"]])
        facts = {"scale": kwargs.get("scaling"), "window": kwargs.get("sliding_window"),
                 "softcap": kwargs.get("softcap"), "heads": query.shape[1], "kv_heads": key.shape[1]}  # fmt: skip
        recorder.give(f"layers.{at}.context", answer[0][0].flatten(1), where=paths[id(owner)], inputs=[q, k, v],
                      facts=facts)  # fmt: skip
        return answer

    module.eager_attention_forward = attention
    try:
        yield
    finally:
        module.eager_attention_forward = eager
        for handle in handles:
            handle.remove()


def _first(o: Any) -> torch.Tensor:
    return o[0] if isinstance(o, tuple) else o


def _layer(
    number: int, layer: Any, out: Any, before: Any, keep: Any, last: Any, recorder: Any, handles: Any, paths: Any
) -> None:
    at, attn, mlp = f"layers.{number}.", layer.self_attn, layer.mlp
    gemma = hasattr(layer, "pre_feedforward_layernorm")
    handles.append(
        layer.register_forward_pre_hook(lambda _m, a: last.__setitem__("stream", a[0].reshape(-1, a[0].shape[-1])))
    )
    out(layer.input_layernorm, at + "input_norm")
    for key in "qkv":
        out(getattr(attn, f"{key}_proj"), at + key)
        keep(f"{number}.{key}", getattr(attn, f"{key}_proj"))
        if hasattr(attn, f"{key}_norm"):
            out(getattr(attn, f"{key}_norm"), at + f"{key}_norm")

            keep(f"{number}.{key}", getattr(attn, f"{key}_norm"))
    out(attn.o_proj, at + "attn_out")
    keep("attn", attn.o_proj)
    if gemma:
        out(layer.post_attention_layernorm, at + "attn_post_norm")
        keep("attn", layer.post_attention_layernorm)
    norm = layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm
    before(norm, at + "attn_residual", lambda: [last["stream"], last["attn"]])
    handles.append(
        norm.register_forward_pre_hook(lambda _m, a: last.__setitem__("mid", a[0].reshape(-1, a[0].shape[-1])))
    )
    out(norm, at + "mlp_norm")
    if hasattr(mlp, "gate_proj"):
        for key in ("gate", "up"):
            out(getattr(mlp, f"{key}_proj"), at + key)
            keep(key, getattr(mlp, f"{key}_proj"))
        before(mlp.down_proj, at + "act", lambda: [last["gate"], last["up"]])
        out(mlp.down_proj, at + "mlp_out")
        keep("mlp", mlp.down_proj)
    else:
        _experts(at, mlp, keep, last, recorder, handles, paths)
        keep("mlp", mlp)
    if gemma:
        out(layer.post_feedforward_layernorm, at + "mlp_post_norm")
        keep("mlp", layer.post_feedforward_layernorm)

    def residual(_m: Any, _a: Any, o: Any) -> None:
        value = _first(o)
        recorder.give(at + "residual", value.reshape(-1, value.shape[-1]), where=paths[id(layer)],
                      inputs=[last["mid"], last["mlp"]])  # fmt: skip

    handles.append(layer.register_forward_hook(residual))


def _experts(at: str, mlp: Any, keep: Any, last: Any, recorder: Any, handles: Any, paths: Any) -> None:
    router = getattr(mlp, "gate", None) or mlp.router

    def routed(m: Any, args: Any, o: Any) -> None:
        x = args[0].reshape(-1, args[0].shape[-1])
        logits, weights, ids = o
        order = weights.argsort(dim=-1, descending=True, stable=True)
        weights, ids = weights.gather(-1, order), ids.gather(-1, order)
        last["routed"] = (ids, weights)
        recorder.give(at + "router_logits", logits, where=paths[id(m)], inputs=[x])
        recorder.give(at + "expert_ids", ids, where=paths[id(m)], inputs=[logits])
        recorder.give(at + "expert_weights", weights, where=paths[id(m)], inputs=[logits, ids])

    handles.append(router.register_forward_hook(routed))

    def summed(m: Any, args: Any, o: Any) -> None:
        x = args[0].reshape(-1, args[0].shape[-1])
        recorder.give(at + "experts_out", _first(o).reshape(-1, x.shape[-1]), where=paths[id(m)],
                      inputs=[x, *last["routed"]])  # fmt: skip

    handles.append(mlp.experts.register_forward_hook(summed))
