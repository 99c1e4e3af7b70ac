"""Statistics behind the verdict, each on data made so that the right answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from logdiff.case.batching import split_batch
from logdiff.case.readers import read_pairs
from logdiff.verdict import values
from logdiff.verdict.contrast import contrast, ranks, scan
from logdiff.verdict.outliers import outliers
from logdiff.verdict.places import places, split_samples
from logdiff.verdict.table import collect

from tests.server.verdict.noise_controls import noise_control
from tests.server.verdict.pair_faults import log_softmax, topk
from tests.server.verdict.pair_file import write


def table_of(tmp_path, meta, rows, max_tokens=1 << 18):
    _, batches = read_pairs([write(tmp_path / "pairs.jsonl", meta, rows)])
    return collect((piece for batch in batches for piece in split_batch(batch, 200)), max_tokens)


def rows_of(x, y, prompt=12, **more):
    out = []
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        row = {
            "sample_id": str(i), "prompt_token_ids": list(range(i * 100, i * 100 + prompt)),
            "response_token_ids": list(range(len(a))),
            "rollout_logprobs": [float(np.float32(v)) for v in a], "train_logprobs": [float(np.float32(v)) for v in b],
        }  # fmt: skip
        out.append({**row, **{k: v[i] for k, v in more.items()}})
    return out


def noisy(rng, samples=24, tokens=50, size=0.01):
    x = [-rng.gamma(0.6, 1.5, tokens) for _ in range(samples)]
    return x, [np.minimum(v + size * rng.normal(0, 1, tokens) * np.sqrt(1 - np.exp(v)), 0) for v in x]


def test_ranks_do_not_see_that_noise_grows_with_surprise():
    rng = np.random.default_rng(0)
    x = -rng.gamma(0.6, 1.5, 6000)
    a = np.abs(rng.normal(0, 1, 6000)) * np.abs(x)
    row = np.repeat(np.arange(60), 100)
    unlikely = x < np.median(x)
    plain = a[unlikely].mean() / a[~unlikely].mean()
    seen = contrast(ranks(a, x), a, row, unlikely)
    assert plain > 5
    assert seen is not None
    assert abs(seen.shift) < 0.08
    assert not seen.holds


def test_an_error_that_whole_samples_share_counts_as_few_facts():
    rng = np.random.default_rng(1)
    level = np.exp(rng.normal(0, 1.0, 8))
    row = np.repeat(np.arange(8), 200)
    a = level[row] * np.abs(rng.normal(0, 1, 1600))
    group = row < 4
    seen = contrast(ranks(a, -np.ones(1600)), a, row, group)
    assert seen is not None
    naive = abs(seen.shift) / np.sqrt(1 / 12 / 800 * 2)
    assert abs(seen.z) < naive / 3


@pytest.mark.parametrize("at", [17, 40, 63])
def test_an_onset_is_found_where_it_is(at):
    rng = np.random.default_rng(at)
    place = np.tile(np.arange(80), 20)
    row = np.repeat(np.arange(20), 80)
    a = np.abs(rng.normal(0, 1, 1600)) * np.where(place >= at, 1.0, 0.02)
    found = scan(ranks(a, -rng.random(1600)), a, row, place)
    assert found is not None
    assert abs(found.at - at) <= 1
    assert found.late
    assert found.sharp


def test_noise_has_no_place(tmp_path):
    for seed in range(20):
        assert places(table_of(tmp_path, *noise_control(seed))).found == ()


@pytest.mark.parametrize("factor", [0.6, 0.8, 1.25])
def test_top_k_lists_give_the_factor_between_logits(factor, tmp_path):
    rng = np.random.default_rng(3)
    z = [rng.normal(0, 2, (40, 60)) for _ in range(8)]
    first, second = [log_softmax(v) for v in z], [log_softmax(factor * v) for v in z]
    rows = rows_of(
        [t[:, 0] for t in first], [t[:, 0] for t in second], rollout_topk=topk(first, 6), train_topk=topk(second, 6)
    )
    found = values.scale_from_topk(table_of(tmp_path, {}, rows))
    assert found is not None
    assert found.factor == pytest.approx(factor, abs=1e-3)
    assert found.explained > 0.99


def test_the_law_of_the_tokens_tells_whose_numbers_they_were_drawn_from(tmp_path):
    rng = np.random.default_rng(5)
    z = [rng.normal(0, 2, (150, 40)) for _ in range(20)]
    p = [log_softmax(v) for v in z]
    q = [log_softmax(0.6 * v) for v in z]
    drawn = [np.array([rng.choice(40, p=np.exp(row)) for row in t]) for t in p]
    x, y = ([t[np.arange(150), r] for t, r in zip(tables, drawn, strict=True)] for tables in (p, q))
    law = values.law(table_of(tmp_path, {}, rows_of(x, y)))
    assert abs(law["rollout"].z) < 4
    assert law["train"].z > 8


def test_the_edge_of_a_truncation_is_the_kept_mass(tmp_path):
    rng = np.random.default_rng(6)
    x = [-rng.gamma(0.6, 1.5, 60) - 0.3 for _ in range(20)]
    y = [v + np.log(rng.uniform(0.8, 0.85, 60)) for v in x]
    found = values.one_sided(table_of(tmp_path, {}, rows_of(x, y)))
    assert found is not None
    assert found.sign == -1
    assert np.exp(-found.edge) == pytest.approx(0.8, abs=0.01)


def test_outliers_at_a_stride_are_seen_as_such(tmp_path):
    rng = np.random.default_rng(7)
    x, y = noisy(rng)
    for v in y:
        v[(12 + np.arange(50)) % 16 == 3] -= 6.0
    found = outliers(table_of(tmp_path, {}, rows_of(x, y)))
    assert found is not None
    assert (found.stride, found.phase) == (16, 3)
    assert found.negative == 1.0


def test_samples_of_two_kinds_are_split(tmp_path):
    rng = np.random.default_rng(8)
    x, y = noisy(rng)
    bad = {2, 9, 17}
    y = [np.minimum(v - rng.gamma(1, 1, 50), 0) if i in bad else v for i, v in enumerate(y)]
    found = split_samples(table_of(tmp_path, {}, rows_of(x, y)))
    assert found is not None
    assert set(np.flatnonzero(found.bad).tolist()) == bad
    assert found.ratio > 20


def test_a_long_stream_is_thinned_by_whole_groups(tmp_path):
    rng = np.random.default_rng(9)
    x, y = noisy(rng, samples=200, tokens=20)
    pack = [i // 4 for i in range(200)]
    table = table_of(tmp_path, {}, rows_of(x, y, pack=pack), max_tokens=1000)
    assert 0 < table.tokens <= 1000
    assert table.seen == 200
    kept, counts = np.unique(table.pack, return_counts=True)
    assert len(kept) > 1
    assert set(counts.tolist()) == {4}
    assert sorted(set(table.order.tolist())) == [0, 1, 2, 3]


def test_a_soft_cap_keeps_the_order_of_top_k_lists_and_noise_does_not(tmp_path):
    rng = np.random.default_rng(10)
    z = [rng.normal(0, 4, (40, 60)) for _ in range(8)]
    plain = [log_softmax(v) for v in z]
    capped = [log_softmax(6 * np.tanh(v / 6)) for v in z]
    other = [log_softmax(v + rng.normal(0, 1, v.shape)) for v in z]
    found = []
    for second in (capped, other):
        rows = rows_of(
            [t[:, 0] for t in plain], [t[:, 0] for t in second], rollout_topk=topk(plain, 6), train_topk=topk(second, 6)
        )
        order = values.same_order(table_of(tmp_path, {}, rows))
        assert order is not None
        found.append(order[0])
    assert found[0] == 1.0
    assert found[1] < 0.95
