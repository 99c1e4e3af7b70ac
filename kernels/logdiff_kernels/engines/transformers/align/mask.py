"""Which key a query sees, read from what transformers asks its mask function for: never a [B, 1, Q, K] tensor.

Rows of a batch are sequences with padding on either side, or several sequences packed one after the other. A plan
lists them as runs of tokens, which is what the attention operator takes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch

from logdiff_kernels.contract import CHUNK
from logdiff_kernels.errors import UnsupportedError


@dataclass(frozen=True)
class Plan:
    """How B rows of queries [B, L, ...] and keys [B, K, ...] fall into S sequences.

    Attributes:
        cu_q, cu_k: int32 [S + 1]; `cu_k` None: as `cu_q`.
        queries: int64 [T], index into the B * L rows; None: all of them in order.
        keys: int64 [Tk], index into the B * K rows; None: all of them in order.
        places: int64 [Tk], where `keys` go among `slots` rows of zeros; None: one after the other.
        slots: number of rows that `cu_k` spans.
        first: int64 [B], first valid column of the keys; one sequence per row only.
        dropped: int64 [B], positions before it that a sliding cache no longer holds.
        lengths: int32 [B], keys per row with those that were dropped.
    """

    cu_q: torch.Tensor
    cu_k: torch.Tensor | None = None
    queries: torch.Tensor | None = None
    keys: torch.Tensor | None = None
    places: torch.Tensor | None = None
    slots: int = 0
    first: torch.Tensor | None = None
    dropped: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    tables: dict[int, torch.Tensor] = field(default_factory=dict)

    def block_table(self, stride: int) -> torch.Tensor:
        """int32 [B, longest]: row `stride * b + column` of each key, for a cache seen as blocks of one row.

        Positions that were dropped name the first key that is there: they are invisible, and it is finite memory.
        """
        if stride not in self.tables:
            assert self.first is not None
            assert self.dropped is not None
            assert self.lengths is not None
            position = torch.arange(int(self.lengths.max()))
            column = self.first[:, None] + (position - self.dropped[:, None]).clamp(min=0)
            last = (self.first + self.lengths - self.dropped - 1).clamp(min=0)
            column = torch.minimum(column, last[:, None])
            rows = torch.arange(len(self.first))[:, None] * stride
            self.tables[stride] = (rows + column).to(torch.int32)
        return self.tables[stride]


@dataclass
class Mask:
    """A causal mask as transformers describes it: what a layer gets in place of a tensor.

    Attributes:
        batch, queries, keys: B, L, K of the call.
        query_offset, key_offset: column of the first query and of the first key, counted over the padded row.
        padding: bool [B, columns], False under padding; None: none.
        packed: int64 [B, L], equal for tokens of one sequence; None: one sequence per row.
        window: a query sees itself and the `window - 1` keys before it; 0: all before it.
    """

    batch: int
    queries: int
    keys: int
    query_offset: int = 0
    key_offset: int = 0
    padding: torch.Tensor | None = None
    packed: torch.Tensor | None = None
    window: int = 0
    plans: dict[Any, Plan] = field(default_factory=dict)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def plan(self, positions: torch.Tensor | None, cu: torch.Tensor | None) -> Plan:
        """The plan of this forward; made once and shared by the layers.

        Args:
            positions: position ids [B or 1, L], used where nothing else tells packed sequences apart.
            cu: cumulative lengths of packed sequences, as `cu_seq_lens_q` gives them.
        """
        key = "cu" if cu is not None else "mask"
        if key not in self.plans:
            self.plans[key] = self._packed_plan(positions, cu) or self._padded_plan()
        return self.plans[key]

    def _packed_plan(self, positions: torch.Tensor | None, cu: torch.Tensor | None) -> Plan | None:
        rows = self.batch * self.queries
        if self.padding is not None or self.query_offset or self.keys != self.queries:
            if cu is not None:
                raise UnsupportedError("cu_seq_lens together with padding or a cache isn't covered", value="attention")
            return None
        if cu is not None:
            if int(cu[-1]) != rows:
                raise UnsupportedError(f"cu_seq_lens end at {int(cu[-1])} of {rows} tokens", value=int(cu[-1]))
            return Plan(cu.to(torch.int32))
        packed = self.packed
        if packed is None and positions is not None and positions.ndim == 2:
            starts = positions[:, 1:] - positions[:, :-1] != 1
            if bool(starts.any()):
                packed = torch.nn.functional.pad(starts.cumsum(-1), (1, 0))
        if packed is None:
            return Plan(torch.arange(0, rows + 1, max(self.queries, 1), dtype=torch.int32)[: self.batch + 1])
        packed = packed.expand(self.batch, -1)
        new = torch.ones_like(packed, dtype=torch.bool)
        new[:, 1:] = packed[:, 1:] != packed[:, :-1]
        first = new.reshape(-1).nonzero().reshape(-1)
        return Plan(torch.cat([first, first.new_tensor([rows])]).to(torch.int32))

    def _padded_plan(self) -> Plan:
        """One sequence per row: its valid columns, cut to the queries and keys that this call has."""
        end = self.query_offset + self.queries
        if self.padding is None:
            start_row = torch.zeros(self.batch, dtype=torch.int64)
            end_row = torch.full((self.batch,), end)
        else:
            start_row, end_row = _spans(self.padding[:, :end])
        first_q = start_row.clamp(min=self.query_offset)
        first_k = start_row.clamp(min=self.key_offset)
        len_q = (end_row - first_q).clamp(min=0)
        len_k = torch.where(len_q > 0, end_row - first_k, 0)
        # Keys that a sliding cache has dropped hold their place, so that steps and chunks stay where they were.
        dropped = torch.where(len_q > 0, (first_k - start_row) % CHUNK, 0)
        queries = _runs(first_q - self.query_offset, len_q, self.queries)
        keys = _runs(first_k - self.key_offset, len_k, self.keys)
        span = len_k + dropped
        cu_q, cu_k = _cumulative(len_q), _cumulative(span)
        places = None
        if bool(dropped.any()):
            places = _places(cu_k, dropped, len_k)
        first = torch.where(len_q > 0, first_k - self.key_offset, 0)
        return Plan(cu_q, cu_k, queries, keys, places, int(cu_k[-1]), first, dropped, span.to(torch.int32))


def _cumulative(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def _runs(first: torch.Tensor, length: torch.Tensor, stride: int) -> torch.Tensor | None:
    """Indices of the runs [first, first + length) of rows of `stride` tokens; None when that is everything."""
    rows = len(first)
    if bool(((first == 0) & (length == stride)).all()):
        return None
    column = torch.arange(stride)
    inside = (column >= first[:, None]) & (column < (first + length)[:, None])
    return (torch.arange(rows)[:, None] * stride + column)[inside]


def _places(cu: torch.Tensor, dropped: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.arange(int(n)) + int(c) + int(d) for c, d, n in zip(cu, dropped, length, strict=False)])


def _spans(padding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First and one past the last valid column per row.

    Raises:
        UnsupportedError: padding between tokens of one row.
    """
    padding = padding.to(device="cpu", dtype=torch.bool)
    count = padding.sum(-1)
    first = torch.where(count > 0, padding.to(torch.int8).argmax(-1), 0)
    column = torch.arange(padding.shape[1])
    expected = (column >= first[:, None]) & (column < (first + count)[:, None])
    if not torch.equal(expected, padding):
        row = int((expected != padding).any(-1).nonzero()[0])
        raise UnsupportedError(
            f"row {row} of the attention mask has padding between its tokens",
            value=row,
            hint="pad on one side; decode with left padding",
        )
    return first, first + count


@torch.compiler.disable  # type: ignore[untyped-decorator]
def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    **_kwargs: Any,
) -> Mask:
    """What `AttentionMaskInterface` calls.

    Raises:
        UnsupportedError: a pattern that isn't causal, windowed or packed.
    """
    parts = _Parts()
    parts.read(mask_function)
    if not parts.causal:
        raise UnsupportedError("a mask that isn't causal can't be aligned", value="attention")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise UnsupportedError("a ready-made attention mask can't be aligned", value=list(attention_mask.shape))
    padding = attention_mask
    if padding is not None and bool(padding.all()):
        padding = None
    return Mask(
        int(batch_size),
        int(q_length),
        int(kv_length),
        int(q_offset),
        int(kv_offset),
        padding,
        parts.packed,
        parts.window,
    )


class _Parts:
    """What a composed mask function of transformers consists of, by the functions it was made of."""

    def __init__(self) -> None:
        self.causal = False
        self.window = 0
        self.packed: torch.Tensor | None = None

    def read(self, function: Any) -> None:
        name = getattr(function, "__qualname__", repr(function))
        ours = getattr(function, "__module__", "") == "transformers.masking_utils"
        held: dict[str, Any] = dict(inspect.getclosurevars(function).nonlocals) if ours else {}
        if ours and name == "causal_mask_function":
            self.causal = True
        elif ours and name.startswith("and_masks."):
            for part in held["mask_functions"]:
                self.read(part)
        elif ours and name.startswith("sliding_window_overlay."):
            self.window = int(held["sliding_window"])
        elif ours and name.startswith("packed_sequence_mask_function."):
            self.packed = held["packed_sequence_mask"]
        else:
            raise UnsupportedError(
                f"an attention mask made of {name} can't be aligned",
                value=name,
                hint="causal, sliding-window, padded and packed masks are covered",
            )
