"""Work is shared out exactly once, the same way each time, whatever the order of sequences and the number of cores."""

from __future__ import annotations

import ctypes
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff_kernels.contract import CHUNK, STEP, attention
from logdiff_kernels.contract.linear import leaf_ranges
from logdiff_kernels.errors import InputError
from logdiff_kernels.plan import library, plans, schedule, structs

TILE = 128


@dataclass(frozen=True)
class Batch:
    """Sequences (query tokens, keys) and the attention over them."""

    lengths: tuple[tuple[int, int], ...]
    kv_heads: int
    group: int
    causal: bool
    window: int
    cores: int

    def plan(self) -> structs.LdAttentionPlan:
        return plans.attention(**self.fields())

    def fields(self) -> dict[str, int]:
        return {
            "arch": 2201,
            "dtype": structs.BFLOAT16,
            "batch": len(self.lengths),
            "heads": self.kv_heads * self.group,
            "kv_heads": self.kv_heads,
            "dim": 64,
            "dim_v": 64,
            "causal": int(self.causal),
            "window": self.window,
            "cores": self.cores,
        }

    @property
    def q_start(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.cumsum([0, *(tokens for tokens, _ in self.lengths)], dtype=np.int32)

    @property
    def k_len(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array([keys for _, keys in self.lengths], dtype=np.int32)

    def visible(self, sequence: int, token: int) -> range:
        """By the contract's own function."""
        tokens, keys = self.lengths[sequence]
        at = keys - tokens + token
        return range(*attention.visible_range(at, keys, causal=self.causal, window=self.window))

    def row_tiles(self, sequence: int) -> list[range]:
        """Packed rows of each tile."""
        rows = self.lengths[sequence][0] * self.group
        return [range(at, min(rows, at + TILE)) for at in range(0, rows, TILE)]

    def span(self, sequence: int, rows: range) -> range:
        """From the first to the last key that some row sees."""
        seen = [self.visible(sequence, token) for token in sorted({row // self.group for row in rows})]
        seen = [one for one in seen if one]
        return range(min(one.start for one in seen), max(one.stop for one in seen)) if seen else range(0)


lengths = st.tuples(
    st.integers(0, 300), st.one_of(st.integers(0, 700), st.integers(3900, 4300), st.integers(8000, 20000))
)
batches = st.builds(
    Batch,
    lengths=st.lists(lengths, min_size=1, max_size=4).map(tuple),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 7, 8]),
    causal=st.booleans(),
    window=st.sampled_from([0, 0, 1, 127, 600, 5000]),
    cores=st.integers(1, 64),
)
examples = settings(max_examples=40, deadline=None)


def _table(batch: Batch) -> tuple[structs.LdAttentionPlan, schedule.AttentionTable]:
    plan = batch.plan()
    return plan, schedule.attention_table(plan, batch.q_start, batch.k_len)


def _chunks(keys: range) -> list[int]:
    return list(range(keys.start // CHUNK, (keys.stop - 1) // CHUNK + 1)) if keys else []


@examples
@given(batch=batches)
def test_every_row_tile_and_chunk_is_in_exactly_one_item(batch: Batch) -> None:
    plan, table = _table(batch)
    wanted: Counter[tuple[int, int, int, int | None]] = Counter()
    for s in range(len(batch.lengths)):
        for t, rows in enumerate(batch.row_tiles(s)):
            for h in range(batch.kv_heads):
                # A tile that sees nothing still has to be written.
                wanted.update((s, h, t, chunk) for chunk in _chunks(batch.span(s, rows)) or [None])
    found: Counter[tuple[int, int, int, int | None]] = Counter()
    for item in table.items.tolist():
        s, h, t, first, chunks, _, rows_there, _ = item
        assert rows_there == len(batch.row_tiles(s)[t])
        found.update((s, h, t, first + i) for i in range(chunks))
        if chunks == 0:
            found[s, h, t, None] += 1
    assert found == wanted
    assert plan.items == len(table.items)


@examples
@given(batch=batches)
def test_chunk_states_have_their_own_slots_and_are_combined_ascending(batch: Batch) -> None:
    plan, table = _table(batch)
    left = {}
    for s, h, t, first, chunks, slot, rows, _ in table.items.tolist():
        if slot == structs.NO_SLOT:
            assert (s, h, t) not in left
            continue
        assert chunks == 1
        assert slot not in left
        assert rows <= plan.slot_rows
        left[slot] = (s, h, t, first)
    assert sorted(left) == list(range(plan.slots))
    read = []
    for s, h, t, first, count, rows, *_ in table.combines.tolist():
        states = [left[slot] for slot in range(first, first + count)]
        assert states == [(s, h, t, states[0][3] + i) for i in range(count)]
        assert rows == len(batch.row_tiles(s)[t])
        read += range(first, first + count)
    assert sorted(read) == list(range(plan.slots))


@examples
@given(batch=batches)
def test_cost_is_the_sub_tiles_that_some_row_sees(batch: Batch) -> None:
    _, table = _table(batch)
    for s, _, t, first, chunks, slot, rows, cost in table.items.tolist():
        keys = batch.span(s, batch.row_tiles(s)[t])
        begin, end = max(keys.start, first * CHUNK), min(keys.stop, (first + chunks) * CHUNK)
        tiles = -(-end // TILE) - begin // TILE if begin < end else 0
        assert cost == tiles + (0 if slot == structs.NO_SLOT else -(-2 * rows // TILE))


@examples
@given(batch=batches, order=st.randoms(use_true_random=False))
def test_the_order_of_sequences_only_renames_items(batch: Batch, order: object) -> None:
    shuffled = list(range(len(batch.lengths)))
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    other = Batch(tuple(batch.lengths[i] for i in shuffled), *(getattr(batch, n) for n in _SAME))
    plan, table = _table(batch)
    plan2, table2 = _table(other)
    assert (plan.blocks, plan.slots, plan.slot_rows) == (plan2.blocks, plan2.slots, plan2.slot_rows)

    def renamed(items: np.ndarray[tuple[int], np.dtype[np.void]], names: list[int]) -> list[tuple[int, ...]]:
        return sorted((names[s], h, t, first, chunks, slot == structs.NO_SLOT, rows, cost)
                      for s, h, t, first, chunks, slot, rows, cost in items.tolist())  # fmt: skip

    assert renamed(table.items, list(range(len(shuffled)))) == renamed(table2.items, shuffled)
    assert table.items["cost"].tolist() == table2.items["cost"].tolist()


_SAME = ("kv_heads", "group", "causal", "window", "cores")


@examples
@given(batch=batches)
def test_blocks_share_the_sorted_items_evenly_and_repeatably(batch: Batch) -> None:
    plan, table = _table(batch)
    again = _table(batch)[1]
    assert table.items.tolist() == again.items.tolist()
    assert plan.blocks == min(len(table.items), batch.cores)
    cost = table.items["cost"].astype(int)
    assert (np.diff(cost) <= 0).all()
    shares = [schedule.snake_items(len(cost), block, plan.blocks) for block in range(plan.blocks)]
    assert sorted(i for share in shares for i in share) == list(range(len(cost)))
    loads = [int(cost[share].sum()) for share in shares]
    if loads:
        assert max(loads) - min(loads) <= max(cost)


@given(count=st.integers(0, 500), blocks=st.integers(1, 64))
def test_python_and_cpp_deal_out_alike(count: int, blocks: int) -> None:
    item = library.function("ld_plan_snake_item", (ctypes.c_uint32,) * 3, ctypes.c_uint32)
    for block in range(blocks):
        rounds = [item(turn, block, blocks) for turn in range(-(-count // blocks))]
        assert [i for i in rounds if i < count] == schedule.snake_items(count, block, blocks)


def test_low_batch_decode_is_cut_into_chunks_and_high_batch_is_not() -> None:
    low = Batch(((1, 32768),), 8, 4, True, 0, 24)
    plan, table = _table(low)
    assert [plan.items, plan.combines, plan.slots, plan.slot_rows] == [64, 8, 64, 16]
    assert set(table.items["chunks"]) == {1}
    high = Batch(((1, 4096),) * 64, 8, 4, True, 0, 24)
    assert [high_plan.items for high_plan in [_table(high)[0]]] == [512]
    assert _table(high)[0].slots == 0


def test_short_batches_of_long_prefill_stay_whole() -> None:
    assert _table(Batch(((32768, 32768),), 4, 1, True, 0, 24))[0].slots == 0


trainable = batches.filter(lambda b: b.causal or all(tokens <= keys for tokens, keys in b.lengths))


@examples
@given(batch=trainable)
def test_backward_owners_cover_every_query_and_key_tile_once(batch: Batch) -> None:
    plan = plans.attention_backward(**batch.fields())
    table = schedule.backward_table(plan, batch.q_start, batch.k_len)
    assert plan.tokens == sum(tokens for tokens, _ in batch.lengths)
    tiles = [(s, h, t) for s in range(len(batch.lengths)) for h in range(batch.kv_heads)
             for t in range(len(batch.row_tiles(s)))]  # fmt: skip
    assert sorted(tuple(item)[:3] for item in table.dq.tolist()) == sorted(tiles)
    for s, _, t, rows, first, steps, _, _ in table.dq.tolist():
        assert rows == len(batch.row_tiles(s)[t])
        keys = batch.span(s, batch.row_tiles(s)[t])
        assert [first, steps] == (
            [keys.start // STEP, (keys.stop - 1) // STEP + 1 - keys.start // STEP] if keys else [0, 0]
        )
    wanted = [(s, h, t) for s, (_, keys) in enumerate(batch.lengths) for h in range(batch.kv_heads)
              for t in range(-(-keys // TILE))]  # fmt: skip
    assert sorted(tuple(item)[:3] for item in table.dkv.tolist()) == sorted(wanted)


@examples
@given(batch=trainable.filter(lambda b: b.lengths[0][1] < 1000))
def test_key_tiles_of_the_backward_get_every_query_block_that_sees_them(batch: Batch) -> None:
    plan = plans.attention_backward(**batch.fields())
    table = schedule.backward_table(plan, batch.q_start, batch.k_len)
    tokens, keys = batch.lengths[0]
    for s, _, t, rows, first, steps, cost, _ in table.dkv.tolist():
        if s:
            continue
        tile = range(t * TILE, min(keys, (t + 1) * TILE))
        assert rows == len(tile)
        queries = [keys - tokens + i for i in range(tokens) if set(batch.visible(0, i)) & set(tile)]
        seeing = {query // STEP for query in queries}
        assert seeing <= set(range(first, first + steps))
        assert not seeing or (min(seeing), max(seeing)) == (first, first + steps - 1)
        assert cost == (batch.group * (queries[-1] // TILE - queries[0] // TILE + 1) if queries else 0)


@given(rows=st.integers(0, 2000), cores=st.integers(1, 64), strided=st.booleans(), length=st.integers(1, 9000))
def test_rows_are_shared_out_exactly_once(rows: int, cores: int, strided: bool, length: int) -> None:
    cut = plans.rows(plans.RowKernel.RMS_NORM, structs.BFLOAT16, rows, length, cores, strided=strided)
    shares = [plans.rows_of_block(cut, block) for block in range(cores)]
    assert sorted(row for share in shares for row in share) == list(range(rows))
    sizes = [len(share) for share in shares[: cut.blocks]]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert cut.tile % 64 == 0
    assert (cut.pieces - 1) * cut.tile < length <= cut.pieces * cut.tile
    assert cut.tile_rows == 1 or cut.pieces == 1


@given(m=st.integers(1, 40), n=st.integers(1, 40))
def test_output_tiles_have_one_place_each(m: int, n: int) -> None:
    places = {plans.linear_place(i, m, n) for i in range(m * n)}
    assert places == {(i, j) for i in range(m) for j in range(n)}


@pytest.mark.parametrize("k", [16, 48, 96, 576, 1536, 2048, 4096, 14336])
def test_leaves_are_those_of_the_contract(k: int) -> None:
    plan = plans.linear(dtype=1, out_dtype=1, m=7, n=300, k=k, kind=plans.Pieces.LEAVES, cores=24)
    assert [(piece.start, piece.stop) for piece in plans.linear_pieces(plan, k)] == leaf_ranges(k)


@pytest.mark.parametrize("tokens", [0, 1, 511, 512, 513, 4096])
def test_weight_gradients_are_cut_at_512_tokens(tokens: int) -> None:
    plan = plans.linear(dtype=1, out_dtype=1, m=64, n=64, k=tokens, kind=plans.Pieces.BLOCKS, cores=24)
    pieces = plans.linear_pieces(plan, tokens)
    assert [i for piece in pieces for i in piece] == list(range(tokens))
    assert [len(piece) for piece in pieces[:-1]] == [512] * (len(pieces) - 1)


def test_lengths_that_do_not_fit_are_refused() -> None:
    plan = Batch(((1, 5), (1, 5)), 1, 1, True, 0, 4).plan()
    for starts, keys in [
        ([0, 1], [5, 5]),
        ([0, 1, 2], [5]),
        ([0, 2, 1], [5, 5]),
        ([0, 1, 2], [5, -1]),
        ([1, 2, 3], [5, 5]),
    ]:
        with pytest.raises(InputError):
            schedule.attention_table(plan, np.array(starts, np.int32), np.array(keys, np.int32))


def test_the_backward_refuses_queries_before_position_0_that_see_keys() -> None:
    batch = Batch(((600, 100),), 1, 1, False, 0, 4)
    with pytest.raises(InputError, match="a batch of 1"):
        schedule.backward_table(plans.attention_backward(**batch.fields()), batch.q_start, batch.k_len)
