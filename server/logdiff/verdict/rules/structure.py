"""Faults that show by where abs d is large: packs, padding, masks, windows, chunks, shard edges, whole sequences."""

from __future__ import annotations

import numpy as np

from logdiff.verdict.contrast import contrast
from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.onsets import sample_onsets, shares_of_blocks, turns_inside
from logdiff.verdict.places import Factor
from logdiff.verdict.records import Evidence

_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def structure(f: Features, board: Board) -> None:
    """Every place rule, the most specific first."""
    for rule in (_packs, _padding, _response_mask, _shared_prefix, _edges, _window_or_chunk, _penalty, _tail):
        rule(f, board)
    _head(f, board)
    _sequences(f, board)
    _excluded(f, board)


def _said(f: Features, factor: Factor) -> tuple[Evidence, ...]:
    c = factor.contrast
    return (
        evidence(f, f"{factor.detail}: mean abs d there, against elsewhere", c.mean_abs, c.rest_abs),
        evidence(f, "and by rank among tokens of like probability, in standard errors", c.z, 5.0),
    )


def clean(factor: Factor) -> bool:
    """The rest is much closer than the group, and holds little of the difference."""
    return factor.contrast.ratio > 3.5 and factor.contrast.share > 0.6


def _packs(f: Features, board: Board) -> None:
    factor = f.places.get("later in pack")
    if factor is None or not clean(factor):
        if "later in pack" in f.places.tried:
            board.exclude("first and later sequences of packs are alike", "packing-leak", "position-per-pack")
        return
    belief = 0.93 if factor.contrast.ratio > 5 else 0.8
    said = _said(f, factor)
    board.add(Finding("packing-leak", belief, factor.contrast.share, said, side="train"))
    board.add(Finding("position-per-pack", 0.4, factor.contrast.share, said, side="train"))
    board.add(Finding("recurrent-state", 0.25, factor.contrast.share, said, side="train"))


def _padding(f: Features, board: Board) -> None:
    factor = f.places.get("left padding")
    if factor is not None and clean(factor):
        board.add(Finding("left-padding-wrong", 0.93, factor.contrast.share, _said(f, factor), side="train"))
    elif "left padding" in f.places.tried:
        board.exclude("rows with and without left padding are alike", "left-padding-wrong")


def _response_mask(f: Features, board: Board) -> None:
    factor = f.places.get("beyond response mask")
    if factor is None or not clean(factor):
        return
    rival = max((g.contrast.r2 for g in f.places.found if g.name.startswith(("place", "step"))), default=0.0)
    close = max((g.contrast.r2 for g in f.places.found if g.name.startswith(("distance", "last"))), default=0.0)
    if factor.contrast.r2 > max(1.4 * rival, close):
        said = _said(f, factor)
        board.add(Finding("prompt-mask-wrong", 0.92, factor.contrast.share, said, side="train"))


def _shared_prefix(f: Features, board: Board) -> None:
    step = f.places.get("step late")
    factor = next(
        (g for g in (f.places.get("shares prefix"), f.places.get("prefix seen before")) if g is not None and clean(g)),
        None,
    )
    early = early_worst(f, None if factor is None else factor.group)
    if factor is not None and (step is None or factor.contrast.r2 > 1.1 * step.contrast.r2):
        said = _said(f, factor)
        if early:
            said += (early,)
        belief = 0.85 + 0.07 * (early is not None)
        board.add(Finding("kv-cache-stale", belief, factor.contrast.share, said, side="rollout"))
        return
    if early is None or f.mean_abs < 2e-4:
        return
    unique = f.table.samples >= 8 and not (f.table.sharing > 1).any()
    said = (early,)
    if unique:
        board.exclude("no two prompts begin alike, so no prefix can have been reused", "kv-cache-stale")
        steep = float(early.value) > 5
        board.add(Finding("prompt-mask-wrong", 0.66 if steep else 0.45, 0.9, said, side="train"))
        board.add(Finding("sinks-dropped", 0.25 if steep else 0.35, 0.9, said))
    else:
        board.add(Finding("kv-cache-stale", 0.5, 1.0, said, side="rollout"))
        board.add(Finding("prompt-mask-wrong", 0.45, 1.0, said, side="train"))


def early_worst(f: Features, group: np.ndarray | None) -> Evidence | None:
    """abs d falls along the response: its ratio of the first to the last quarter, where that is beyond doubt."""
    table, u = f.table, f.places.u
    if not len(u):
        return None
    length = table.response[table.row]
    early, late = table.position < length / 4, table.position >= 3 * length / 4
    if group is not None:
        early, late = early & group, late & group
    if min(np.count_nonzero(early), np.count_nonzero(late)) < 60:
        return None
    gap = float(u[early].mean() - u[late].mean())
    error = float(np.sqrt(u[early].var() / np.count_nonzero(early) + u[late].var() / np.count_nonzero(late)))
    ratio = float(f.a[early].mean() / max(f.a[late].mean(), 1e-12))
    if gap > 0.12 and gap > 6 * error and ratio > 1.8:
        return evidence(f, "abs d falls along the response: first quarter over last quarter", ratio, 1.8)
    return None


def _edges(f: Features, board: Board) -> None:
    """Few tokens, far off: shard edges, last tokens."""
    found = f.outliers
    if found is None or found.held < 0.4 or found.negative < 0.75:
        return
    level = (evidence(f, "a few tokens hold the difference: their share of the sum of abs d", found.held, 0.4),)
    if found.stride is not None and np.count_nonzero(found.flags) >= 6:
        said = (
            *level,
            evidence(
                f,
                f"their positions in the sequence are {found.phase} modulo {found.stride}: share",
                found.on_stride,
                0.8,
            ),
        )
        board.add(Finding("labels-at-shard-edge", 0.9, found.held, said, side="train"))
        return
    table = f.table
    total = (table.prompt + table.response)[table.row]
    for parts in (2, 4, 8, 16):
        edge = np.zeros(table.tokens, dtype=bool)
        for j in range(1, parts):
            cut = np.ceil(total / parts) * j
            edge |= np.abs(table.place - cut) <= 2
        on = float(np.mean(edge[found.flags]))
        if on > 0.8 and float(np.mean(edge)) < 0.25 * on:
            said = (*level, evidence(f, f"they lie where sequences are cut in {parts} parts: share", on, 0.8))
            board.add(Finding("labels-at-shard-edge", 0.88, found.held, said, side="train"))
            return
    last = table.position == table.response[table.row] - 1
    on = float(np.mean(last[found.flags]))
    if on > 0.85:
        said = (*level, evidence(f, "they are the last tokens of responses: share", on, 0.85))
        board.add(Finding("mask-misaligned", 0.6, found.held, said, side="unknown"))
        board.add(Finding("labels-at-shard-edge", 0.4, found.held, said, side="train"))


def _window_or_chunk(f: Features, board: Board) -> None:
    factor = _at_header_window(f) or f.places.get("place late")
    onsets = sample_onsets(f.table, f.places.u) if len(f.places.u) else np.zeros(0, np.int64)
    sizes = [int(s) for s in (f.number("block_size"), f.number("chunk_size")) if s and 4 < s < 1e6]
    blocks = shares_of_blocks(f.table, f.places.u, sorted({*sizes, *_BLOCKS})) if len(f.places.u) else None
    several = len(np.unique(onsets // 4)) > 1
    if blocks is not None and several and _varied(onsets, blocks[0]):
        said = (
            evidence(
                f,
                f"samples turn from near to far at multiples of {blocks[0]}: share of {blocks[2]} samples",
                blocks[1],
                0.7,
            ),
        )
        known = blocks[0] in sizes
        belief = 0.85 if known else 0.68
        explains = factor.contrast.share if factor is not None else 0.8
        board.add(Finding("chunk-or-block-size", belief, max(explains, 0.8), said))
        board.add(Finding("kv-cache-corrupt", 0.4, max(explains, 0.8), said, side="rollout"))
        return
    if factor is None or factor.at is None or factor.contrast.ratio < 3 or factor.contrast.share < 0.85:
        if factor is None and "place" in f.places.tried and f.table.tokens >= 400:
            board.exclude("abs d has no onset at a position of the sequence", "window-off-by-one", "window-ignored")
        return
    rivals = [
        g for g in f.places.found if g.name in ("position late", "beyond response mask", "later in pack", "step late")
    ]
    if any(g.contrast.r2 > 1.3 * factor.contrast.r2 and clean(g) for g in rivals):
        return
    _window(f, board, factor, sizes)


def _at_header_window(f: Features) -> Factor | None:
    """The tokens beyond the header's window as a group, where it stands out and the rest is clean."""
    window = f.number("sliding_window")
    if window is None or not len(f.places.u) or not 4 <= window < 1e7:
        return None
    best = None
    for at in (int(window) - 1, int(window), int(window) + 1, int(window) + 2):
        group = f.table.place >= at
        seen = contrast(f.places.u, f.a, f.table.row, group)
        if seen is None or not seen.holds or seen.ratio < 3 or seen.share < 0.85:
            continue
        if best is None or seen.ratio > 1.2 * best.contrast.ratio:
            words = f"abs d is larger from position {at} of the sequence, where the window of {int(window)} ends"
            best = Factor("place late", seen, at, words, True, group)
    rival = f.places.get("place late")
    if (
        best is not None
        and rival is not None
        and rival.contrast.r2 > 2.5 * best.contrast.r2
        and best.contrast.ratio < 6
    ):
        return None
    return best


def _varied(onsets: np.ndarray, size: int) -> bool:
    """Onsets fall on different multiples, so that no single threshold tells them."""
    multiples = np.round(onsets / size)
    _, counts = np.unique(multiples, return_counts=True)
    return len(counts) > 1 and counts.max() < 0.85 * len(onsets)


def _window(f: Features, board: Board, factor: Factor, sizes: list[int]) -> None:
    at = factor.at or 0
    said = _said(f, factor)
    window = f.number("sliding_window")
    share = factor.contrast.share
    growing = _grows(f, at)
    if growing is not None:
        said += (evidence(f, "mean abs d far beyond the onset, over that just after it", growing, 3.0),)
    lead = "window-ignored" if growing is not None and growing > 3 else "window-off-by-one"
    other = "window-off-by-one" if lead == "window-ignored" else "window-ignored"
    if window is not None and abs(at - window) <= max(3, 0.15 * window):
        said += (evidence(f, "onset, against the sliding window of the header", at, window),)
        board.add(Finding(lead, 0.93, share, said))
        board.add(Finding(other, 0.5, share, said))
        return
    on_size = [s for s in sizes if at % s in (0, 1, s - 1)]
    if on_size:
        said += (evidence(f, f"onset, a multiple of {on_size[0]} from the header", at, on_size[0]),)
        board.add(Finding("chunk-or-block-size", 0.82, share, said))
        board.add(Finding(lead, 0.3, share, said))
        return
    exact = factor.contrast.ratio > 30
    if not factor.sharp and not exact and factor.contrast.ratio < 6:
        return
    if not _jumps(f, at):
        return  # grows from near 0 on, as a wrong rotation does
    inside, samples = turns_inside(f.table, f.places.u, at)
    if samples < 3 or inside < 0.6:
        return  # samples differ, not the places inside them
    said += (evidence(f, f"{samples} samples have tokens on both sides of it: share that turns there", inside, 0.6),)
    belief = 0.66 if window is None else 0.5
    board.add(Finding(lead, belief, share, said))
    board.add(Finding("chunk-or-block-size", 0.3, share, said))
    board.add(Finding(other, 0.3, share, said))


def _jumps(f: Features, at: int) -> bool:
    """Whether abs d steps up within a few places of the onset."""
    place, reach = f.table.place, max(4, at // 3)
    before, after = (place >= at - reach) & (place < at), (place >= at) & (place < at + reach)
    if min(np.count_nonzero(before), np.count_nonzero(after)) < 10:
        return True
    return bool(f.a[after].mean() > 4 * f.a[before].mean())


def _grows(f: Features, at: int) -> float | None:
    place = f.table.place
    near, far = (place >= at) & (place < at + max(8, at // 4)), place >= 2 * at
    if min(np.count_nonzero(near), np.count_nonzero(far)) < 30:
        return None
    return float(f.a[far].mean() / max(f.a[near].mean(), 1e-12))


def _penalty(f: Features, board: Board) -> None:
    factor = f.places.get("repeated id")
    if factor is not None and factor.contrast.ratio > 4 and factor.contrast.share > 0.8:
        board.add(Finding("penalty-one-side", 0.75, factor.contrast.share, _said(f, factor), side="rollout"))


def _tail(f: Features, board: Board) -> None:
    factor = f.places.get("tail at the length limit")
    if factor is not None and clean(factor):
        board.add(Finding("sequence-tail", 0.75, factor.contrast.share, _said(f, factor), side="rollout"))
        return
    factor = f.places.get("distance early")
    if factor is None or factor.at is None or not 2 < factor.at <= 17 or not factor.sharp:
        return
    if factor.contrast.ratio > 8 and factor.contrast.share > 0.6:
        board.add(Finding("sequence-tail", 0.62, factor.contrast.share, _said(f, factor), side="rollout"))


def _head(f: Features, board: Board) -> None:
    """The first few tokens of every response, and nothing else."""
    factor = f.places.get("position early")
    if (
        factor is None
        or factor.at is None
        or factor.at > 16
        or factor.contrast.ratio < 8
        or factor.contrast.share < 0.6
    ):
        return
    if not factor.sharp:
        return
    said = _said(f, factor)
    board.add(Finding("prefix-in-response", 0.55, factor.contrast.share, said))
    board.add(Finding("position-offset", 0.25, factor.contrast.share, said))


def _sequences(f: Features, board: Board) -> None:
    """Whole sequences off while others are near, and nothing known of them says why."""
    split = f.split
    if split is None or split.ratio < 5 or split.gap < 0.85 or board.explained > 0.6:
        return
    if any(g.name.startswith(("step", "rank", "older", "shares", "prefix")) and clean(g) for g in f.places.found):
        return
    group = split.bad[f.table.row]
    if float(np.median(f.a[group])) < 3 * float(np.median(f.a[~group])):
        return  # a few tokens make the mean, not the sample
    explains = float(f.a[group].sum() / f.a.sum())
    level = float(f.a[group].mean())
    said: tuple[Evidence, ...] = (
        evidence(
            f,
            f"{split.share:.0%} of samples are off as a whole: their mean abs d over that of the others",
            split.ratio,
            5.0,
        ),
    )
    if split.by_prompt is not None and split.expected_by_prompt is not None:
        said += (
            evidence(f, "prompts whose samples are all off or all near: share, against chance", split.by_prompt,
                     split.expected_by_prompt),
        )  # fmt: skip
    if level < f.rounding and split.ratio > 20 and f.top1_share < 0.2:
        board.add(Finding("batch-variance", 0.72, explains, said))
        return
    if level < 0.05:
        return
    ids = f.gate("ids")
    same_ids = ids is not None and ids.ok is True
    pattern = _periodic(split.bad)
    if pattern is not None:
        said += (
            evidence(
                f, f"every {pattern}th sample in file order is near, as the first of a pack would be", pattern, None
            ),
        )
        board.add(Finding("packing-leak", 0.6, explains, said, side="train"))
    kept = 0.72 if same_ids else 0.5
    board.add(Finding("kv-cache-corrupt", kept, explains, said))
    board.add(Finding("decode-state", kept - 0.05, explains, said))
    if not same_ids:
        board.add(Finding("retokenised", 0.4, explains, said))


def _periodic(bad: np.ndarray) -> int | None:
    """n where exactly each nth sample, from the first on, is near; None otherwise."""
    near = np.flatnonzero(~bad)
    if len(near) < 3 or near[0] != 0:
        return None
    step = int(near[1] - near[0])
    expected = np.arange(0, len(bad), step)
    return step if step > 1 and np.array_equal(near, expected) else None


def _excluded(f: Features, board: Board) -> None:
    if f.table.tokens < 400:
        return
    if f.outliers is None:
        board.exclude("no token stands alone", "labels-at-shard-edge", "placeholder-logprobs")
    if f.split is not None and f.split.ratio < 2.5:
        board.exclude(
            f"no sample stands out as a whole (factor {f.split.ratio:.1f})", "kv-cache-corrupt", "decode-state"
        )
