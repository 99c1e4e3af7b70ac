"""Faults of the computation: packing, masks, padding, attention, state of the cache."""

from __future__ import annotations

import numpy as np

from tests.server.verdict.faults.common import DA, FC, FI, Make, facts, into, noise_of, plain, rng_of
from tests.server.verdict.pair_faults import (
    Case,
    How,
    log_softmax,
    pack_numbers,
    packed_logits,
    packs_of,
    redrawn,
    world,
)

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


@fault
def packing_leak(seed):
    w = world(seed, noise_of(seed), longest=48)
    packs = packs_of(len(w.prompts), 2 + seed % 3)
    pack = pack_numbers(w, packs)
    y = w.lp(packed_logits(w, packs, How(), leak=True))
    return Case("packing_leak", facts(w, seed), w.records(w.lp(w.logits("rollout")), y, pack=pack), (FI,),
                ("packing-leak", "position-per-pack"), "train")  # fmt: skip


@fault
def packing_leak_unknown_packs(seed):
    w = world(seed, noise_of(seed), longest=48)
    y = w.lp(packed_logits(w, packs_of(len(w.prompts), 3), How(), leak=True))
    return Case("packing_leak_unknown_packs", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,),
                ("packing-leak",), honest=True)  # fmt: skip


def _visible(keys: np.ndarray) -> np.ndarray:
    """What each token sees: these keys of its row, and itself."""
    rows, length = keys.shape
    return np.broadcast_to(keys[:, None, :], (rows, length, length)) | np.eye(length, dtype=bool)[None]


@fault
def response_mask_as_attention_mask(seed):
    w = world(seed, noise_of(seed), long_prompts=bool(seed % 2))
    length = w.ids.shape[1]
    keys = np.stack([np.arange(length) < len(r) for r in w.responses])
    y = w.lp(w.logits("train", How(visible=_visible(keys))))
    return Case("response_mask_as_attention_mask", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,),
                ("prompt-mask-wrong",), "train", True)  # fmt: skip


@fault
def prompt_masked(seed):
    w = world(seed, noise_of(seed))
    length = w.ids.shape[1]
    keys = np.stack([np.arange(length) >= len(p) // (1 + seed % 2) for p in w.prompts])
    y = w.lp(w.logits("train", How(visible=_visible(keys))))
    return Case("prompt_masked", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,),
                ("prompt-mask-wrong",), "train", True)  # fmt: skip


@fault
def left_padding(seed):
    w = world(seed, noise_of(seed))
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
    return Case("left_padding", facts(w, seed), w.records(w.lp(w.logits("rollout")), y, left_pad=pads), (FI,),
                ("left-padding-wrong",), "train")  # fmt: skip


def _window(seed: int, name: str, window: int, other: int | None, noise: str, honest: bool) -> Case:
    """The trainer has another window; every other seed is told the right one."""
    w = world(seed, noise, window=window)
    y = w.lp(w.logits("train", How(window=other)))
    meta, classes = facts(w, seed), (FC, FI)
    if seed % 2 == 0:
        meta["sliding_window"], classes = window, (FC,)
    causes = ("window-off-by-one", "window-ignored")
    return Case(name, meta, w.records(w.lp(w.logits("rollout")), y), classes, causes, honest=honest)


@fault
def window_off_by_one(seed):
    window, noise = (16, 24, 32)[seed % 3], ("bf16", "fp32", "none")[seed % 3]
    return _window(seed, "window_off_by_one", window, window + (1 if seed % 2 else -1), noise, noise == "bf16")


@fault
def window_ignored(seed):
    return _window(seed, "window_ignored", (16, 24, 32)[seed % 3], None, noise_of(seed), seed % 2 == 1)


@fault
def sinks_dropped(seed):
    w = world(seed, noise_of(seed), sinks=True)
    y = w.lp(w.logits("train", How(sinks=False)))
    meta = facts(w, seed)
    if seed % 2 == 0:
        meta |= {"model": "gpt-oss-20b", "train": {"engine": "transformers", "config": {"attn_implementation": "sdpa"}}}
    return Case(
        "sinks_dropped", meta, w.records(w.lp(w.logits("rollout")), y), (FC,), ("sinks-dropped",), "train", True
    )


def _wrong_maths(seed, name, how: How, cause):
    w = world(seed, noise_of(seed))
    more = {}
    if seed % 3 == 1:
        more["rescore_logprobs"] = w.lp(w.logits("rescore"))
    y = w.lp(w.logits("train", how))
    return Case(name, facts(w, seed), w.records(w.lp(w.logits("rollout")), y, **more), (FI, FC), cause, "train", True)


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
    w = world(seed, noise_of(seed))
    rng = rng_of(seed)
    length = w.ids.shape[1]
    bad = rng.random(len(w.prompts)) < 0.3
    bad[0] = True
    keys = np.ones((len(bad), length), bool)
    keys[bad, 2:9] = False
    w = redrawn(w, How(visible=_visible(keys)))
    good = How()
    more = {"rescore_logprobs": w.lp(w.logits("rescore", good))} if seed % 2 else {}
    x, y = w.lp(w.logits("rollout")), w.lp(w.logits("train", good))
    return Case("decode_state", facts(w, seed), w.records(x, y, **more),
                (FI,), ("decode-state", "kv-cache-corrupt"), "rollout", honest=not seed % 2)  # fmt: skip


@fault
def wrong_from_block_boundary(seed):
    w = world(seed, noise_of(seed), longest=96)
    block = 16
    rng = rng_of(seed)
    length = w.ids.shape[1]
    seen = np.ones((len(w.prompts), length, length), bool)
    onsets = [block * int(rng.integers(2, 4)) for _ in w.prompts]
    for i, onset in enumerate(onsets):
        seen[i, onset:, onset - block : onset] = False
    seen |= np.eye(length, dtype=bool)[None]
    w2 = redrawn(w, How(visible=seen))
    meta = facts(w, seed)
    if seed % 2 == 0:
        meta["block_size"] = block
    y = w2.lp(w2.logits("train", How()))
    return Case("wrong_from_block_boundary", meta, w2.records(w2.lp(w2.logits("rollout")), y), (FI,),
                ("chunk-or-block-size", "kv-cache-corrupt", "position-offset"), honest=True)  # fmt: skip


@fault
def labels_at_shard_edge(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    stride = (16, 32)[seed % 2]
    table = [log_softmax(z) for z in w.logits("train")]
    rng = rng_of(seed)
    for i, p in enumerate(w.prompts):
        for t in range(len(x[i])):
            if (len(p) + t) % stride == 0:
                y[i][t] = table[i][t, rng.integers(0, w.shape.vocab)]
    return Case("labels_at_shard_edge", facts(w, seed), w.records(x, y), (FI, DA), ("labels-at-shard-edge",), "train")


@fault
def dropout(seed):
    w = world(seed, noise_of(seed))
    y = w.lp(w.logits("train", How(dropout=0.1, noise_seed=seed)))
    return Case(
        "dropout", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (FI,), ("dropout-active",), "train", True
    )
