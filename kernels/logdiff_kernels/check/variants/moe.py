"""Hypotheses about routers and experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from logdiff_kernels.check.experts import score
from logdiff_kernels.check.given import Given, distinct
from logdiff_kernels.check.variants.base import LOOSE, Scene, Variant, changed


def router(scene: Scene) -> Iterator[Variant]:
    """Hypotheses about the weights of the experts that were chosen."""
    p = scene.p
    words = "doesn't renormalise the chosen weights" if p["renormalize"] else "renormalises the chosen weights"
    yield changed("router-renormalise", "router-not-renormalised", words, renormalize=not p["renormalize"])
    other = "sigmoid" if p["scoring"] == "softmax" else "softmax"
    yield changed("router-scoring", "router-scoring", f"scores by {other} instead of {p['scoring']}", scoring=other)
    choice = "logits" if p["choose_on"] == "scores" else "scores"
    yield changed("router-order", "router-scoring", f"chooses on {choice}", choose_on=choice)
    if p["scaling"] != 1.0:
        yield changed("router-unscaled", "router-scoring", f"doesn't scale weights by {p['scaling']:g}", scaling=1.0)
        yield changed("router-scaled-twice", "router-scoring", f"scales weights by {p['scaling']:g} twice",
                      scaling=p["scaling"] ** 2)  # fmt: skip
    if p.get("bias") is not None:
        yield changed("router-biased", "router-scoring", "keeps the correction of the choice in the weights",
                      biased=True)  # fmt: skip
    count = scene.ref.shape[-1]
    yield Variant("router-uniform", "router-scoring", "gives the chosen experts equal weights",
                  lambda s: torch.full_like(s.ref, 1.0 / count))  # fmt: skip
    yield Variant(
        "router-one-missing", "experts-per-token", "renormalises over one expert less",
        lambda s: _fewer(s, count - 1),
    )  # fmt: skip
    if scene.dtype == torch.float32:
        yield Variant("router-low-precision", "router-dtype", "scores in bfloat16", _low)


def _fewer(s: Scene, count: int) -> torch.Tensor:
    kept = torch.where(torch.arange(s.ref.shape[-1]) < count, s.ref, 0.0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-30) * s.ref.sum(-1, keepdim=True)


def _low(s: Scene) -> torch.Tensor:
    given = replace(s.given, x=(score(s.given.x[0].bfloat16(), s.p["scoring"]).double().log(), *s.given.x[1:]))
    return s.evaluate(given) if s.p["scoring"] == "softmax" else s.evaluate(s.given.to(torch.bfloat16)).double()


def experts(scene: Scene) -> Iterator[Variant]:
    """Hypotheses about the experts' sum."""
    p = scene.p
    count = p["down"].shape[0]
    yield changed("expert-gate-up-swapped", "expert-weights-swapped", "activates the up half of experts", swapped=True,
                  shown={})  # fmt: skip
    yield Variant("expert-weights-unused", "replay-weights-recomputed", "sums experts without their weights",
                  lambda s: s.evaluate(_weighted(s, torch.ones_like(s.given.x[2]))))  # fmt: skip
    yield Variant("expert-weights-normalised", "router-not-renormalised", "sums experts with weights that sum to 1",
                  lambda s: s.evaluate(_weighted(s, s.given.x[2] / s.given.x[2].sum(-1, keepdim=True))))  # fmt: skip
    yield Variant("expert-weights-reversed", "replay-misaligned", "weighs experts in reverse order",
                  lambda s: s.evaluate(_weighted(s, s.given.x[2].flip(-1))))  # fmt: skip
    yield Variant("expert-weights-twice", "reduce-twice", "applies the weights twice",
                  lambda s: s.evaluate(_weighted(s, s.given.x[2].square())))  # fmt: skip
    k = scene.given.x[1].shape[-1]
    kept = torch.arange(k) < k - 1
    yield Variant("expert-last-missing", "experts-per-token", f"sums {k - 1} of {k} experts",
                  lambda s: s.evaluate(_weighted(s, torch.where(kept, s.given.x[2], 0.0))))  # fmt: skip
    for parts in (2, 4):
        size = count // parts
        for number in range(parts):
            part = range(number * size, (number + 1) * size)
            for dropped, words in (([e for e in range(count) if e not in part], "only"), (list(part), "all but")):
                if parts == 2 and words == "all but":
                    continue
                yield changed("experts-of-rank", "expert-parallel-reduce",
                              f"sums {words} part {number + 1} of {parts} of the experts", dropped=dropped,
                              shown={"parts": parts, "part": number, "kept": words})  # fmt: skip
    for shift in (1, -1):
        yield changed("experts-rolled", "expert-weights-swapped", f"takes the expert {shift:+d}",
                      map=[(e + shift) % count for e in range(count)], shown={"shift": shift})  # fmt: skip
    for variant in (_wrong_experts, _lost_rows):
        yield from variant(scene)


def _weighted(s: Scene, weights: torch.Tensor) -> Given:
    return replace(s.given, x=(s.given.x[0], s.given.x[1], weights))


def _wrong_experts(scene: Scene) -> Iterator[Variant]:
    """Experts whose rows alone are wrong: dropped, or another's weights."""
    rest = ((scene.out - scene.ref) / scene.tolerance).square().mean(-1).sqrt()
    wrong = rest > 4.0
    ids = scene.given.x[1].long()
    guilty = []
    for number in distinct(ids):
        has = (ids == number).any(-1)
        if int(has.sum()) >= 3 and bool(wrong[has].all()):
            guilty.append(number)
    if not guilty or len(guilty) > 4:
        return
    yield changed("experts-dropped", "expert-capacity", f"leaves experts {guilty} out", dropped=guilty,
                  shown={"experts": guilty})  # fmt: skip
    count = scene.p["down"].shape[0]
    if len(guilty) == 2:
        a, b = guilty
        swapped = list(range(count))
        swapped[a], swapped[b] = b, a
        yield changed("experts-exchanged", "expert-weights-swapped", f"exchanges experts {a} and {b}", map=swapped,
                      shown={"experts": guilty})  # fmt: skip
    yield Variant(
        "experts-changed", "weights-changed", f"computes another function in experts {guilty} alone",
        lambda s: torch.where((torch.isin(s.given.x[1].long(), torch.tensor(guilty))).any(-1)[:, None], s.out, s.ref),
        {"experts": guilty}, rank=LOOSE + 1,
    )  # fmt: skip


def _lost_rows(scene: Scene) -> Iterator[Variant]:
    """Tokens that some expert lost, as a capacity does: each row lacks some of its own terms."""
    k = scene.given.x[1].shape[-1]
    if k > 8:
        return

    def predict(s: Scene) -> torch.Tensor:
        best, cost = s.ref, ((s.out - s.ref) / s.tolerance).square().mean(-1)
        for slot in range(k):
            weights = s.given.x[2].clone()
            weights[:, slot] = 0.0
            found = s.evaluate(_weighted(s, weights))
            here = ((s.out - found) / s.tolerance).square().mean(-1)
            best = torch.where((here < cost)[:, None], found, best)
            cost = torch.minimum(cost, here)
        return best

    yield Variant("expert-terms-lost", "expert-capacity", "leaves out one expert's term of some tokens", predict,
                  rank=LOOSE)  # fmt: skip
