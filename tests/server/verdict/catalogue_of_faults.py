"""Faults and controls by name: each makes a `Case` from a seed; what noise, sizes and facts it has is drawn from it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.server.verdict.pair_faults import (
    Case,
    How,
    World,
    bf16_of,
    block_diagonal,
    draw,
    entropy,
    kept,
    log_softmax,
    nudged,
    packed_logits,
    packs_of,
    redrawn,
    replace,
    topk,
    world,
)  # fmt: skip

SP, DA, FI, FC, WT, RT, OP = (
    "sampling-processing", "data", "framework-implementation", "framework-config", "weights", "routing", "operator",
)  # fmt: skip
FAULTS: dict[str, Callable[[int], Case]] = {}


def fault(make: Callable[[int], Case]) -> Callable[[int], Case]:
    FAULTS[make.__name__] = make
    return make


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed * 7919 + 13)


def _noise(seed: int) -> str:
    return ("bf16", "fp32", "none", "bf16", "none", "fp32")[seed % 6]


def _facts(w: World, seed: int, **more):
    """Some seeds know a lot, some little."""
    if seed % 2:
        return {"model": "small", "vocab_size": w.shape.vocab, **more} if more else {}
    return {
        "model": "small", "vocab_size": w.shape.vocab, "dtype": "bfloat16" if w.noise == "bf16" else "float32",
        "temperature": w.temperature, "moe": bool(w.shape.experts), **more,
    }  # fmt: skip


def _plain(w: World):
    return w.lp(w.logits("rollout")), w.lp(w.logits("train"))


# sampling processing


def _temperature(seed: int, name: str, x_t: float, y_t: float, cause: tuple[str, ...], mode: str | None, side: str):
    t = (0.6, 0.7, 0.8, 1.2)[seed % 4]
    w = world(seed, _noise(seed), t)
    a, b = w.logits("rollout"), w.logits("train")
    tx, ty = t**x_t, t**y_t
    meta = _facts(w, seed)
    if seed % 2 == 0 and mode:
        meta["logprobs_mode"] = mode
    more = {}
    if seed % 4 == 1:
        more = {"rollout_topk": topk([log_softmax(z / tx) for z in a], 5),
                "train_topk": topk([log_softmax(z / ty) for z in b], 5)}  # fmt: skip
    if seed % 4 == 2:
        more = {"train_entropy": entropy([log_softmax(z / ty) for z in b])}
    return Case(name, meta, w.records(w.lp(a, tx), w.lp(b, ty), **more), (SP,), cause, side, honest=seed % 4 == 3)


@fault
def temperature_missing_train(seed):
    causes = ("temperature-missing-train", "temperature-differs")
    return _temperature(seed, "temperature_missing_train", 1, 0, causes, "processed_logprobs", "train")


@fault
def raw_logprobs(seed):
    return _temperature(seed, "raw_logprobs", 0, 1, ("temperature-missing-rollout-raw-logprobs",),
                        "raw_logprobs", "rollout")  # fmt: skip


@fault
def temperature_twice_train(seed):
    return _temperature(
        seed, "temperature_twice_train", 1, 2, ("temperature-twice", "temperature-differs"), None, "train"
    )


@fault
def truncation(seed):
    top_p = (0.8, 0.9, 0.95, 0.7)[seed % 4]
    w = world(seed, _noise(seed), 1.0, top_p=top_p)
    table = [log_softmax(z) for z in w.logits("rollout")]
    x = []
    for t, r in zip(table, w.responses, strict=True):
        keep = np.isfinite(kept(t, top_p))
        keep[np.arange(len(r)), r] = True  # an engine keeps the token that it draws
        x.append(t[np.arange(len(r)), r] - np.log(np.where(keep, np.exp(t), 0).sum(-1)))
    meta = _facts(w, seed)
    if seed % 2 == 0:
        meta["top_p"] = top_p
    more = {"train_topk": topk([log_softmax(z) for z in w.logits("train")], 8)} if seed % 3 == 1 else {}
    return Case(
        "truncation",
        meta,
        w.records(x, w.lp(w.logits("train")), **more),
        (SP,),
        ("truncation-renormalised",),
        "rollout",
    )


@fault
def stored_bf16(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    side = ("rollout", "train")[seed % 2]
    if side == "rollout":
        x = bf16_of(x)
    else:
        y = bf16_of(y)
    honest = w.noise == "bf16"  # operator noise of the same size stands beside it
    return Case("stored_bf16", _facts(w, seed), w.records(x, y), (SP,), ("logprob-rounded",), side, honest)


@fault
def argmax_value(seed):
    w = world(seed, _noise(seed))
    table = [log_softmax(z) for z in w.logits("rollout")]
    x, y = [t.max(-1) for t in table], w.lp(w.logits("train"))
    more = {"rollout_topk": topk(table, 4)} if seed % 2 else {}
    return Case(
        "argmax_value", _facts(w, seed), w.records(x, y, **more), (SP,), ("logprob-of-other-token",), "rollout", True
    )


@fault
def raw_logits(seed):
    w = world(seed, _noise(seed))
    x = w.of(w.logits("rollout"))
    return Case("raw_logits", _facts(w, seed), w.records(x, w.lp(w.logits("train"))), (SP, "invalid-evidence"),
                ("logprob-not-normalised",), "rollout")  # fmt: skip


# data


@fault
def shifted(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    k = 1 if seed % 2 else -1
    y = [np.roll(v, k) for v in y] if seed % 4 < 2 else y
    x = [np.roll(v, k) for v in x] if seed % 4 >= 2 else x
    return Case("shifted", _facts(w, seed), w.records(x, y), (DA,), ("shifted-by-one", "mask-misaligned"))


@fault
def shifted_and_temperature(seed):
    w = world(seed, _noise(seed), 0.7)
    x = w.lp(w.logits("rollout"))
    y = [np.roll(v, -1) for v in w.lp(w.logits("train"), 1.0)]
    return Case(
        "shifted_and_temperature", _facts(w, seed), w.records(x, y), (DA, SP), ("shifted-by-one", "mask-misaligned")
    )


@fault
def lost_id(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    rng = _rng(seed)
    for i in rng.choice(len(x), len(x) // 3, replace=False):
        at = int(rng.integers(3, len(x[i]) - 8))
        y[i] = np.concatenate([y[i][:at], y[i][at + 1 :], [y[i][-1] - 1.0]])
    return Case("lost_id", _facts(w, seed), w.records(x, y), (DA,), ("shifted-by-one", "retokenised", "ids-differ"))


def _retokenised(w: World, rng, rows, prompt: bool):
    """Other ids of the same length at one place of the context, and what the trainer then computes."""
    ids, other = w.ids, w.ids.copy()
    for i in rows:
        n, r = len(w.prompts[i]), len(w.responses[i])
        at = int(rng.integers(0, n - 1)) if prompt else n + int(rng.integers(0, max(r // 2, 1)))
        other[i, at : at + 2] = rng.integers(0, w.shape.vocab, 2)
    z = w.model.logits(other, w.side("train", How()))
    y = []
    for i, (p, r) in enumerate(zip(w.prompts, w.responses, strict=True)):
        full = log_softmax(z[i, len(p) - 1 : len(p) + len(r) - 1])
        y.append(full[np.arange(len(r)), other[i, len(p) : len(p) + len(r)]])
    return y, [other[i, : len(p) + len(r)] for i, (p, r) in enumerate(zip(w.prompts, w.responses, strict=True))], ids


@fault
def retokenised(seed):
    w = world(seed, _noise(seed))
    rng = _rng(seed)
    rows = rng.choice(len(w.prompts), len(w.prompts) // 4, replace=False)
    y, scored, _ = _retokenised(w, rng, rows, prompt=bool(seed % 2))
    more = {"train_token_ids": scored} if seed % 3 else {}
    return Case("retokenised", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y, **more), (DA,),
                ("retokenised", "ids-differ"), honest=seed % 3 == 0)  # fmt: skip


@fault
def placeholders(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    rng = _rng(seed)
    for i in range(len(x)):
        if seed % 2:
            x[i][-1] = 0.0
        elif i % 2:
            at = int(rng.integers(2, len(x[i]) - 8))
            x[i][at : at + 6] = 0.0
    return Case("placeholders", _facts(w, seed), w.records(x, y), (DA,), ("placeholder-logprobs",), "rollout")


@fault
def forced_prefix(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    k = 2 + seed % 4
    for v in x:
        v[:k] = 0.0
    return Case(
        "forced_prefix", _facts(w, seed), w.records(x, y), (DA,), ("prefix-in-response", "placeholder-logprobs")
    )


# framework


@fault
def packing_leak(seed):
    w = world(seed, _noise(seed), longest=48)
    packs = packs_of(len(w.prompts), 2 + seed % 3)
    pack, _ = block_diagonal(w, packs)
    y = w.lp(packed_logits(w, packs, How(), leak=True))
    return Case("packing_leak", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y, pack=pack), (FI,),
                ("packing-leak", "position-per-pack"), "train")  # fmt: skip


@fault
def packing_leak_unknown_packs(seed):
    w = world(seed, _noise(seed), longest=48)
    y = w.lp(packed_logits(w, packs_of(len(w.prompts), 3), How(), leak=True))
    return Case("packing_leak_unknown_packs", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,),
                ("packing-leak",), honest=True)  # fmt: skip


@fault
def response_mask_as_attention_mask(seed):
    w = world(seed, _noise(seed), long_prompts=bool(seed % 2))
    length = w.ids.shape[1]
    keys = np.stack([np.arange(length) < len(r) for r in w.responses])
    seen = np.broadcast_to(keys[:, None, :], (len(keys), length, length)) | np.eye(length, dtype=bool)[None]
    y = w.lp(w.logits("train", How(visible=seen)))
    return Case("response_mask_as_attention_mask", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,),
                ("prompt-mask-wrong",), "train", True)  # fmt: skip


@fault
def prompt_masked(seed):
    w = world(seed, _noise(seed))
    length = w.ids.shape[1]
    keys = np.stack([np.arange(length) >= len(p) // (1 + seed % 2) for p in w.prompts])
    seen = np.broadcast_to(keys[:, None, :], (len(keys), length, length)) | np.eye(length, dtype=bool)[None]
    y = w.lp(w.logits("train", How(visible=seen)))
    return Case("prompt_masked", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,),
                ("prompt-mask-wrong",), "train", True)  # fmt: skip


@fault
def left_padding(seed):
    w = world(seed, _noise(seed))
    lengths = [len(p) + len(r) for p, r in zip(w.prompts, w.responses, strict=True)]
    width = max(lengths)
    ids = np.zeros((len(lengths), width), np.int64)
    for i, n in enumerate(lengths):
        ids[i, width - n :] = w.ids[i, :n]
    z = w.model.logits(ids, w.side("train", How()))  # padding is seen: the mask is ignored
    y = []
    for i, r in enumerate(w.responses):
        rows = z[i, width - len(r) - 1 : width - 1]
        y.append(log_softmax(rows)[np.arange(len(r)), r])
    pads = [width - n for n in lengths]
    for i in range(0, len(pads), 3):  # rows that happen to need no padding elsewhere
        pads[i], y[i] = 0, w.lp(w.logits("train"))[i]
    return Case("left_padding", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y, left_pad=pads), (FI,),
                ("left-padding-wrong",), "train")  # fmt: skip


@fault
def window_off_by_one(seed):
    window = (16, 24, 32)[seed % 3]
    w = world(seed, ("bf16", "fp32", "none")[seed % 3], window=window)
    y = w.lp(w.logits("train", How(window=window + (1 if seed % 2 else -1))))
    meta = _facts(w, seed)
    if seed % 2 == 0:
        meta["sliding_window"] = window
    classes = (FC,) if seed % 2 == 0 else (FC, FI)
    return Case("window_off_by_one", meta, w.records(w.lp(w.logits("rollout")), y), classes,
                ("window-off-by-one", "window-ignored"), honest=w.noise == "bf16")  # fmt: skip


@fault
def window_ignored(seed):
    window = (16, 24, 32)[seed % 3]
    w = world(seed, _noise(seed), window=window)
    y = w.lp(w.logits("train", How(window=None)))
    meta = _facts(w, seed)
    if seed % 2 == 0:
        meta["sliding_window"] = window
    return Case("window_ignored", meta, w.records(w.lp(w.logits("rollout")), y), (FC,) if seed % 2 == 0 else (FC, FI),
                ("window-off-by-one", "window-ignored"), honest=seed % 2 == 1)  # fmt: skip


@fault
def sinks_dropped(seed):
    w = world(seed, _noise(seed), sinks=True)
    y = w.lp(w.logits("train", How(sinks=False)))
    meta = _facts(w, seed)
    if seed % 2 == 0:
        meta |= {"model": "gpt-oss-20b", "train": {"engine": "transformers", "config": {"attn_implementation": "sdpa"}}}
    return Case(
        "sinks_dropped", meta, w.records(w.lp(w.logits("rollout")), y), (FC,), ("sinks-dropped",), "train", True
    )


def _wrong_maths(seed, name, how: How, cause):
    w = world(seed, _noise(seed))
    more = {}
    if seed % 3 == 1:
        more["rescore_logprobs"] = w.lp(w.logits("rescore"))
    y = w.lp(w.logits("train", how))
    return Case(name, _facts(w, seed), w.records(w.lp(w.logits("rollout")), y, **more), (FI, FC), cause, "train", True)


@fault
def attention_scale(seed):
    return _wrong_maths(seed, "attention_scale", How(scale=(0.5, 1.4, 2.0)[seed % 3]), ("attention-scale",))


@fault
def rope_theta(seed):
    return _wrong_maths(seed, "rope_theta", How(theta=(500000.0, 1000.0)[seed % 2]), ("rope-theta",))


@fault
def gate_up_swapped(seed):
    return _wrong_maths(seed, "gate_up_swapped", How(swap_gate=True), ("gate-up-swapped",))


@fault
def reduced_twice(seed):
    return _wrong_maths(seed, "reduced_twice", How(reduce=2.0), ("reduce-twice",))


@fault
def decode_state(seed):
    """Some prompts are decoded with a corrupt state; the engine's own prefill and the trainer agree."""
    w = world(seed, _noise(seed))
    rng = _rng(seed)
    length = w.ids.shape[1]
    bad = rng.random(len(w.prompts)) < 0.3
    bad[0] = True
    keys = np.ones((len(bad), length), bool)
    keys[bad, 2:9] = False
    seen = np.broadcast_to(keys[:, None, :], (len(bad), length, length)) | np.eye(length, dtype=bool)[None]
    w = redrawn(w, How(visible=seen))
    good = How()
    more = {"rescore_logprobs": w.lp(w.logits("rescore", good))} if seed % 2 else {}
    x, y = w.lp(w.logits("rollout")), w.lp(w.logits("train", good))
    return Case("decode_state", _facts(w, seed), w.records(x, y, **more),
                (FI,), ("decode-state", "kv-cache-corrupt"), "rollout", honest=not seed % 2)  # fmt: skip


@fault
def wrong_from_block_boundary(seed):
    w = world(seed, _noise(seed), longest=96)
    block = 16
    rng = _rng(seed)
    length = w.ids.shape[1]
    seen = np.ones((len(w.prompts), length, length), bool)
    onsets = [block * int(rng.integers(2, 4)) for _ in w.prompts]
    for i, onset in enumerate(onsets):
        seen[i, onset:, onset - block : onset] = False
    seen |= np.eye(length, dtype=bool)[None]
    w2 = redrawn(w, How(visible=seen))
    meta = _facts(w, seed)
    if seed % 2 == 0:
        meta["block_size"] = block
    y = w2.lp(w2.logits("train", How()))
    return Case("wrong_from_block_boundary", meta, w2.records(w2.lp(w2.logits("rollout")), y), (FI,),
                ("chunk-or-block-size", "kv-cache-corrupt", "position-offset"), honest=True)  # fmt: skip


@fault
def labels_at_shard_edge(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    stride = (16, 32)[seed % 2]
    table = [log_softmax(z) for z in w.logits("train")]
    rng = _rng(seed)
    for i, p in enumerate(w.prompts):
        for t in range(len(x[i])):
            if (len(p) + t) % stride == 0:
                y[i][t] = table[i][t, rng.integers(0, w.shape.vocab)]
    return Case("labels_at_shard_edge", _facts(w, seed), w.records(x, y), (FI, DA), ("labels-at-shard-edge",), "train")


@fault
def dropout(seed):
    w = world(seed, _noise(seed))
    y = w.lp(w.logits("train", How(dropout=0.1, noise_seed=seed)))
    return Case(
        "dropout", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,), ("dropout-active",), "train", True
    )


# weights


def _steps(seed: int, change: Callable[[World, int], tuple], name: str, classes, causes, steps=4, side=None, experts=0,
           honest=False, noise=None):  # fmt: skip
    samples, meta = [], {}
    for step in range(steps):
        base = world(seed, _noise(seed), samples=12, experts=experts)
        x, y, w, extra = change(base, step)
        rows = w.records(x, y, **extra)
        for row in rows:
            row["sample_id"] = f"{row['sample_id']}-{step}"
            row["step"] = step
        samples += rows
        meta = _facts(replace(base, noise=noise or base.noise), seed)
    return Case(name, meta, samples, classes, causes, side, honest)


def _drifted(w: World, steps: int, size: float, only: str = "") -> dict:
    now = w.model.w
    for k in range(steps):
        now = nudged(now, size, w.seed * 100 + k, only)
    return now


@fault
def weights_stale_over_steps(seed):
    def change(w, step):
        new = _drifted(w, step, 0.02)
        return w.lp(w.logits("rollout")), w.lp(w.logits("train", w=new)), w, {}

    return _steps(seed, change, "weights_stale_over_steps", (WT,), ("weights-stale", "weights-partial-sync"))


@fault
def head_stale_over_steps(seed):
    def change(w, step):
        new = _drifted(w, step, 0.05)
        old = {**new, "head": w.model.w["head"]}
        now = replace(w, model=w.model.with_weights(old))
        now = redrawn(now, How())
        return now.lp(now.logits("rollout")), now.lp(now.logits("train", w=new)), now, {}

    return _steps(seed, change, "head_stale_over_steps", (WT,), ())


@fault
def experts_swapped_after_sync(seed):
    def change(w, step):
        bad = How(swap_gate=step > 0)
        now = redrawn(w, bad) if step else w
        return now.lp(now.logits("rollout")), now.lp(now.logits("train", How())), now, {}

    return _steps(
        seed, change, "experts_swapped_after_sync", (WT,), ("expert-weights-swapped", "weights-changed"), experts=8
    )


@fault
def expert_bias_stale(seed):
    def change(w, step):
        rng = np.random.default_rng(seed)
        new = dict(w.model.w)
        for i in range(w.shape.layers):
            new[f"{i}.bias"] = (rng.normal(0, 0.08, w.shape.experts) * step).astype(np.float32)
        a, b = {}, {}
        za, zb = w.logits("rollout", record=a), w.logits("train", w=new, record=b)
        extra = {}
        if seed % 2:
            extra = {f"{side}_experts": [r["experts"][i, len(p) - 1 : len(p) + len(q) - 1]
                                         for i, (p, q) in enumerate(zip(w.prompts, w.responses, strict=True))]
                     for side, r in (("rollout", a), ("train", b))}  # fmt: skip
        return w.lp(za), w.lp(zb), w, extra

    return _steps(seed, change, "expert_bias_stale", (WT,), ("expert-bias-stale", "weights-stale"), experts=8,
                  honest=False)  # fmt: skip


@fault
def weights_slightly_stale(seed):
    """Undetermined by design: one step, drift as small as rounding."""
    w = world(seed, "bf16")
    y = w.lp(w.logits("train", w=_drifted(w, 1, 0.006)))
    return Case("weights_slightly_stale", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), ("undetermined",))


@fault
def weights_very_stale_one_step(seed):
    w = world(seed, _noise(seed))
    y = w.lp(w.logits("train", w=_drifted(w, 4, 0.12)))
    return Case("weights_very_stale_one_step", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y),
                (WT, "undetermined"))  # fmt: skip


@fault
def qkv_layout(seed):
    w = world(seed, _noise(seed))
    new = dict(w.model.w)
    for i in range(w.shape.layers):
        columns = new[f"{i}.qkv"].shape[1]
        new[f"{i}.qkv"] = new[f"{i}.qkv"].reshape(-1, 4, columns // 4).transpose(0, 2, 1).reshape(-1, columns)
    y = w.lp(w.logits("train", w=new))
    return Case(
        "qkv_layout", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (WT, "undetermined"), ("qkv-layout",)
    )


@fault
def stale_prefix_cache(seed):
    """Prompt K/V of older weights; half of the samples share their prompt with an earlier one, the rest do not."""

    def change(w, step):
        base = world(seed, _noise(seed), samples=12, shared=2)
        extra_rows = world(seed + 1000 + step, _noise(seed), samples=6)
        prompts = base.prompts[:8] + [p % base.shape.vocab for p in extra_rows.prompts[:4]]
        lengths = [len(r) for r in base.responses]
        new = _drifted(base, 1 + step, 0.1)
        model = base.model.with_weights(new)
        now = replace(base, model=model, prompts=prompts)
        width = max(len(p) + n for p, n in zip(prompts, lengths, strict=True))
        ids = np.zeros((12, width), np.int64)
        at = np.zeros((12, width), bool)
        for i, p in enumerate(prompts):
            ids[i, : len(p)] = p
            if i < 8:
                at[i, : len(p)] = True
        record: dict = {}
        base.model.logits(ids, How(), record)
        stale = How(kv=(record["kv"], at))
        responses = draw(model, prompts, lengths, stale, seed + step)
        now = replace(now, responses=responses, rollout=stale)
        return now.lp(now.logits("rollout")), now.lp(now.logits("train", How())), now, {}

    steps = 1 + 2 * (seed % 2)
    causes = ("kv-cache-stale",)
    return _steps(seed, change, "stale_prefix_cache", (WT,), causes, steps=steps, side="rollout", honest=True)


# routing


def _experts(w: World, record: dict) -> list[np.ndarray]:
    return [
        record["experts"][i, len(p) - 1 : len(p) + len(q) - 1]
        for i, (p, q) in enumerate(zip(w.prompts, w.responses, strict=True))
    ]


@fault
def router_precision(seed):
    w = world(seed, _noise(seed), experts=8)
    a, b = {}, {}
    x = w.lp(w.logits("rollout", How(), record=a))
    y = w.lp(w.logits("train", How(router_dtype="bf16"), record=b))
    more = {"rollout_experts": _experts(w, a), "train_experts": _experts(w, b)} if seed % 2 else {}
    return Case("router_precision", {**_facts(w, seed), "moe": True}, w.records(x, y, **more), (RT,),
                ("router-dtype", "router-near-ties"), honest=True)  # fmt: skip


@fault
def replay_misaligned(seed):
    w = world(seed, _noise(seed), experts=8)
    a, b = {}, {}
    x = w.lp(w.logits("rollout", How(), record=a))
    replayed = np.roll(a["experts"], 1, axis=1)
    y = w.lp(w.logits("train", How(experts=replayed), record=b))
    more = {"rollout_experts": _experts(w, a), "train_experts": _experts(w, b)} if seed % 3 else {}
    return Case("replay_misaligned", {**_facts(w, seed), "moe": True}, w.records(x, y, **more), (RT,),
                ("replay-misaligned",), honest=seed % 3 == 0)  # fmt: skip


@fault
def replay_weights_recomputed(seed):
    w = world(seed, _noise(seed), experts=8)
    a, b = {}, {}
    x = w.lp(w.logits("rollout", How(), record=a))
    y = w.lp(w.logits("train", How(experts=a["experts"], renormalise=False), record=b))
    more = {"rollout_experts": _experts(w, a), "train_experts": _experts(w, b)} if seed % 3 else {}
    return Case("replay_weights_recomputed", {**_facts(w, seed), "moe": True}, w.records(x, y, **more), (RT,),
                ("replay-weights-recomputed", "router-not-renormalised", "router-scoring"), honest=True)  # fmt: skip


# operator


@fault
def rounding_bf16(seed):
    w = world(seed, "bf16")
    x, y = _plain(w)
    return Case("rounding_bf16", _facts(w, seed), w.records(x, y), (OP, "undetermined"), ("operator-rounding",))


@fault
def rounding_bf16_with_rescore(seed):
    w = world(seed, "bf16")
    x, y = _plain(w)
    r = w.lp(w.logits("rescore"))
    return Case(
        "rounding_bf16_with_rescore", _facts(w, seed), w.records(x, y, rescore_logprobs=r), (OP,), (), honest=True
    )


@fault
def rounding_bf16_over_steps(seed):
    def change(w, step):
        w = replace(w, noise="bf16", model=w.model.with_weights(_drifted(w, step, 0.02)))
        return w.lp(w.logits("rollout")), w.lp(w.logits("train")), w, {}

    return _steps(seed, change, "rounding_bf16_over_steps", (OP,), (), honest=True, noise="bf16")


@fault
def rounding_fp32(seed):
    w = world(seed, "fp32")
    x, y = _plain(w)
    return Case("rounding_fp32", _facts(w, seed), w.records(x, y), (OP,), (), honest=True)


@fault
def batch_variance(seed):
    """Samples of small batches run in another split: whole samples are equal to the bit, others are rounding off."""
    w = world(seed, "bf16")
    x, y = _plain(w)
    y = [a if i % 3 else b for i, (a, b) in enumerate(zip(y, x, strict=True))]
    rank = [0 if i % 3 else 1 for i in range(len(x))]
    more = {"rank": rank} if seed % 2 else {}
    causes = ("batch-variance", "operator-rounding")
    return Case("batch_variance", _facts(w, seed), w.records(x, y, **more), (OP,), causes, honest=True)


@fault
def head_bf16(seed):
    w = world(seed, "fp32")
    x = w.lp(w.logits("rollout", How(head_dtype="bf16")))
    more = {}
    if seed % 2:
        more = {"rollout_topk": topk([log_softmax(z) for z in w.logits("rollout", How(head_dtype="bf16"))], 5),
                "train_topk": topk([log_softmax(z) for z in w.logits("train")], 5)}  # fmt: skip
    return Case("head_bf16", _facts(w, seed), w.records(x, w.lp(w.logits("train")), **more), (OP, FC), ("head-dtype",),
                "rollout", honest=True)  # fmt: skip


# controls


@fault
def bit_equal(seed):
    w = world(seed, "none")
    x, _ = _plain(w)
    return Case("bit_equal", _facts(w, seed), w.records(x, x), ("none",))


@fault
def constant_position_offset(seed):
    w = world(seed, _noise(seed))
    y = w.lp(w.logits("train", How(positions=np.arange(w.ids.shape[1])[None].repeat(len(w.prompts), 0) + 7)))
    return Case(
        "constant_position_offset", _facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (OP, "undetermined")
    )


@fault
def masked_observations(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    masks = []
    for v in x:
        mask = np.ones(len(v), int)
        mask[2:7] = 0
        v[2:7] = 0.0
        masks.append(mask)
    right = ("none",) if w.noise == "none" else (OP, "undetermined")
    return Case("masked_observations", _facts(w, seed), w.records(x, y, response_mask=masks), right)


@fault
def moe_rounding(seed):
    w = world(seed, "bf16", experts=8)
    a, b = {}, {}
    x, y = w.lp(w.logits("rollout", record=a)), w.lp(w.logits("train", record=b))
    more = {"rollout_experts": _experts(w, a), "train_experts": _experts(w, b)} if seed % 2 else {}
    return Case("moe_rounding", {**_facts(w, seed), "moe": True}, w.records(x, y, **more), (OP, RT, "undetermined"))


@fault
def all_masked(seed):
    w = world(seed, "bf16", samples=12)
    x, y = _plain(w)
    return Case(
        "all_masked", {}, w.records(x, y, response_mask=[np.zeros(len(v), int) for v in x]), ("invalid-evidence",)
    )


@fault
def all_nan(seed):
    w = world(seed, "bf16", samples=12)
    x, _ = _plain(w)
    y = [np.full(len(v), np.nan) for v in x]
    return Case("all_nan", {}, w.records(x, y), ("invalid-evidence",))


@fault
def few_nan(seed):
    w = world(seed, _noise(seed))
    x, y = _plain(w)
    for i in range(0, len(y), 7):
        y[i][3] = np.nan
    return Case("few_nan", _facts(w, seed), w.records(x, y), ("invalid-evidence", OP), ("nan-kernel",))


@fault
def one_column(seed):
    w = world(seed, "bf16", samples=12)
    x, _ = _plain(w)
    rows = w.records(x, x)
    for row in rows:
        del row["train_logprobs"]
    return Case("one_column", {}, rows, ("invalid-evidence", "undetermined"))


@fault
def three_tokens(seed):
    w = world(seed, "bf16", samples=12)
    x, y = _plain(w)
    rows = w.records(x, y)[:1]
    for key in ("response_token_ids", "rollout_logprobs", "train_logprobs"):
        rows[0][key] = rows[0][key][:3]
    return Case("three_tokens", {}, rows, ("undetermined",))
