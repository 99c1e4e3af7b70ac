"""Which boundary a call of a decoder layer makes, by whose rows it received, to the bit.

No model is known by name. Rows are followed from what attention was given back to norms and projections, and from the
feed-forward block's parts to its sum; the leaf of a module's name speaks only where user code has come between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from logdiff_kernels.engines.transformers.boundaries import kinds
from logdiff_kernels.engines.transformers.boundaries.calls import Call, Found, Part, part_of
from logdiff_kernels.engines.transformers.boundaries.feed_forward import feed_forward
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.rowhash import same


def place_layer(
    layer: int,
    where: str,
    module: Any,
    config: Any,
    calls: Sequence[Call],
    entered: torch.Tensor,
    left: torch.Tensor,
    expert_block: str = "",
) -> list[Found]:
    """The boundaries of one decoder layer, in execution order.

    Args:
        layer: its index.
        where, module: the layer.
        config: of the language model.
        calls: in the order in which they ended.
        entered, left: [n, H] the hidden state before and after.
        expert_block: name of the module that holds the layer's experts; "": none.
    """
    room = Layer(layer, config, calls, entered, expert_block)
    room.attention()
    room.output(feed_forward(room), where, module, left)
    return sorted(room.found.values(), key=lambda one: names.order(one.name))


class Layer:
    """One layer while its calls are placed.

    Attributes:
        found: by last part of the boundary's name.
        block: the attention module's name.
        before, after: calls inside it before and after the attention function.
    """

    def __init__(
        self, layer: int, config: Any, calls: Sequence[Call], entered: torch.Tensor, expert_block: str = ""
    ) -> None:
        self.layer, self.config, self.calls, self.entered = layer, config, list(calls), entered
        self.expert_block = expert_block
        self.found: dict[str, Found] = {}
        self.placed: set[int] = set()
        self.core = next((call for call in calls if call.kind == "attention"), None)
        self.block = self.core.where if self.core else _attention_block(calls)
        inside = [call for call in self.calls if self.inside(call) and call is not self.core]
        at = self.calls.index(self.core) if self.core else None
        if at is None:  # attention that can't be watched: its last projection is the output's
            linears = [call for call in inside if call.kind == "linear"]
            at = self.calls.index(linears[-1]) if linears else len(self.calls)
        self.at = at
        self.before = [call for call in inside if self.calls.index(call) < at]
        self.after = [call for call in inside if self.calls.index(call) >= at]

    def inside(self, call: Call) -> bool:
        """Whether a call belongs to the attention block."""
        return bool(self.block) and (call.where == self.block or call.where.startswith(f"{self.block}."))

    def of(self, kind: str, calls: Sequence[Call] | None = None) -> list[Call]:
        """Calls of one kind that nothing stands for yet."""
        return [c for c in (self.calls if calls is None else calls) if c.kind == kind and id(c) not in self.placed]

    def add(
        self,
        part: str,
        call: Call,
        values: torch.Tensor,
        given: Sequence[torch.Tensor],
        *,
        piece: Part | None = None,
        take: str = "output",
        facts: dict[str, Any] | None = None,
        every: bool | None = None,
    ) -> None:
        """Name a call's rows; the first one to ask has the name."""
        self.placed.add(id(call))
        if part in self.found:
            return
        whole = piece is None or piece.of(call.left[0][:1]).shape[1] == call.left[0].shape[1]
        if not whole and piece is not None:
            take = f"{take}, {piece.words}"
            facts = {**(facts or {}), "columns": [piece.groups, piece.start, piece.stop]}
        modules = (call.module,) if call.kind not in ("attention", "rotation", "block") else ()
        self.found[part] = Found(
            f"layers.{self.layer}.{part}", call.where, take, values, list(given), dict(facts or {}), modules, every
        )

    def rows(self, *parts: str) -> torch.Tensor | None:
        """Rows of the first of these boundaries that the layer has."""
        return next((self.found[part].values for part in parts if part in self.found), None)

    # attention

    def attention(self) -> None:
        """Projections, norms, rotation, attention, output projection."""
        latent = self._latent()
        if self.core is not None:
            self._queries_keys_values(self.core, latent)
            self._context(self.core, latent)
        else:
            for role in ("q", "k", "v"):
                self._by_name(role)
        for call in self.of("linear", self.after):
            if self.core is None:
                self.add("context", call, call.given[0], [], take="argument of the output projection")
            self.add("attn_out", call, call.left[0], call.given[:1], facts=kinds.linear_facts(call.module))
            break

    @property
    def attention_input(self) -> torch.Tensor | None:
        """Rows that the first projections receive."""
        return next((call.given[0] for call in self.before if call.kind == "linear" and call.given), None)

    def _latent(self) -> bool:
        """Projections through a latent: linear, norm of (the first part of) its rows, linear. Whether keys have one."""
        latent, ends = False, self.core.given if self.core else []
        for norm in self.of("norm", self.before):
            start = next(
                (c for c in self.of("linear", self.before) if _leads(norm.given[0], c.left[0])), None
            )  # fmt: skip
            if start is None:
                continue
            end = next((c for c in self.of("linear", self.before) if same(c.given[0], norm.left[0])), None)
            keys = start.left[0].shape[1] > norm.given[0].shape[1]
            if end is None and not (keys and len(ends) == 3 and _leads(norm.left[0], ends[1])):
                continue
            latent = latent or keys
            names_of = ("kv_a", "kv_a_norm", "kv_b") if keys else ("q_a", "q_a_norm", "q")
            self.add(names_of[0], start, start.left[0], start.given[:1], facts=kinds.linear_facts(start.module))
            self._norm(names_of[1], norm, every=keys)
            if end is not None:
                self.add(names_of[2], end, end.left[0], end.given[:1], facts=kinds.linear_facts(end.module))
        return latent

    def _queries_keys_values(self, core: Call, latent: bool) -> None:
        heads, kv_heads = core.facts["heads"], core.facts["kv_heads"]
        rotations = self.of("rotation", self.before)
        for place, role in enumerate(("q", "k", "v")):
            end = core.given[place]
            count = heads if role == "q" else kv_heads
            size = end.shape[1] // count
            turned = None
            for call in rotations if role != "v" else []:
                found = _turned(call, end, count, size, latent=latent)
                if found is not None:
                    turned = call, found
            source = end if turned is None else turned[0].given[turned[1]]
            if latent and role == "q" and "q" not in self.found:
                self._projection(role, None, end, (count,), size)
            elif not latent:
                self._projection(role, source, end, (heads, kv_heads), size)
            if turned is not None:
                self._rotation(role, *turned, end, latent, size)
            elif role in self.found and not latent:
                self._unturned(role, end)

    def _rotation(self, role: str, call: Call, number: int, end: torch.Tensor, latent: bool, size: int) -> None:
        left, given = call.left[number], call.given[number]
        part = left.shape[1] != end.shape[1] and not latent  # a part of each head is rotated, outside of the function
        width = int(call.facts["rotary_dim"])
        own = {key: value for key, value in call.facts.items() if key != "size"}
        facts = {**kinds.rope_facts(self.config, self.layer, size, width), **own}
        take = "what attention is given" if part else "output"
        values = end if part else left
        source = self._source_rows(role) if part else given
        self.add(f"{role}_rope", call, values, [given if source is None else source], take=take, facts=facts)
        self.found[f"{role}_rope"].every = role == "k" or None

    def _source_rows(self, role: str) -> torch.Tensor | None:
        return self.rows(f"{role}_norm", role)

    def _unturned(self, role: str, end: torch.Tensor) -> None:
        """Rows that attention is given without a rotation that was seen: rotated inline, or not at all."""
        source = self.found.get(f"{role}_norm", self.found[role])
        if same(end, source.values) or self.core is None:
            source.every = True if role in ("k", "v") else None
        elif role == "v":
            source.every = True
            self.core.facts["value_differs"] = True
        else:
            facts = kinds.rope_facts(self.config, self.layer, int(self.core.facts["head_dim"]), None)
            self.add(f"{role}_rope", self.core, end, [source.values], take="what attention is given", facts=facts)
            self.found[f"{role}_rope"].every = role == "k" or None

    def _projection(
        self, role: str, target: torch.Tensor | None, end: torch.Tensor, groups: tuple[int, ...], size: int
    ) -> None:
        """The norm and the projection that rows come from; rows as wide as `end`, what attention is given."""
        if target is not None:
            norm = next((c for c in self.of("norm", self.before) if same(c.left[0], target)), None)
            if norm is not None:
                self._norm(f"{role}_norm", norm)
                target = norm.given[0]
            for call in [c for c in self.before if c.kind == "linear"]:
                piece = part_of(call.left[0], target, size, groups)
                if piece is not None:
                    piece = _widened(piece, call.left[0].shape[1], end.shape[1], size)
                    values = piece.of(call.left[0])
                    facts = kinds.linear_facts(call.module)
                    self.add(role, call, values, call.given[:1], piece=piece, facts=facts)
                    return
        self._by_name(role)

    def _by_name(self, role: str) -> None:
        """Where user code changed rows on their way: the projection (and norm) that is called so."""
        for call in self.of("linear", self.before):
            if call.leaf.lower().startswith((role, f"w{role}")) and "kv" not in call.leaf.lower():
                self.add(role, call, call.left[0], call.given[:1], facts=kinds.linear_facts(call.module))
                break
        for call in self.of("norm", self.before):
            if call.leaf.lower().startswith(role):
                self._norm(f"{role}_norm", call)
                break

    def _norm(self, part: str, call: Call, every: bool | None = None) -> None:
        facts = kinds.norm_facts(call.module, call.given[0], call.left[0])
        self.add(part, call, call.left[0], call.given[:1], facts=facts, every=every or None)

    def _context(self, core: Call, latent: bool) -> None:
        given = list(core.given)
        if latent:
            rotated = self.rows("k_rope")
            norm = self.rows("kv_a_norm")
            given = [core.given[0], *(rows for rows in (norm, rotated) if rows is not None)]
        facts = {**core.facts, "latent": latent, "layer_type": kinds.layer_type(self.config, self.layer)}
        self.add("context", core, core.left[0], given, facts=facts)
        self.found["context"].modules = (core.module,)

    # around the blocks

    def output(self, block: torch.Tensor | None, where: str, module: Any, left: torch.Tensor) -> None:
        """Norms of the hidden state and the sums.

        Args:
            block: what the feed-forward block left.
            where, module: the layer.
            left: the hidden state after it.
        """
        fed = self.feed_forward_input
        self._norms(fed, block)
        mid = self.found["mlp_norm"].given[0] if "mlp_norm" in self.found else fed
        first = self.rows("input_norm")
        parallel = mid is None or same(mid, self.entered) or (first is not None and same(mid, first))
        facts = _multipliers(module)
        term = self.rows("attn_post_norm", "attn_out")
        owner = Call("block", where, module, [], [left])
        if not parallel and mid is not None:
            given = [rows for rows in (self.entered, term) if rows is not None]
            self.add("attn_residual", owner, mid, given, take="the sum that the next norm is given", facts=facts)
        last = self.rows("mlp_post_norm", "moe_out", "mlp_out")
        terms = [self.entered, term, last] if parallel else [mid, last]
        self.add("residual", owner, left, [rows for rows in terms if rows is not None], facts=facts)

    @property
    def feed_forward_input(self) -> torch.Tensor | None:
        """Rows that the first part of the feed-forward block receives."""
        for part in ("gate", "up", "router_logits", "shared_gate", "shared_up"):
            if part in self.found and self.found[part].given:
                return self.found[part].given[0]
        return None

    def _norms(self, fed: torch.Tensor | None, block: torch.Tensor | None) -> None:
        outside = [c for c in self.of("norm") if not self.inside(c) and c.left[0].shape[1] == self.entered.shape[1]]
        rules: list[tuple[str, Callable[[Call], bool]]] = [
            ("input_norm", lambda c: self._place(c) < self.at and same(c.left[0], self.attention_input)),
            ("attn_post_norm", lambda c: same(c.given[0], self.rows("attn_out"))),
            ("mlp_norm", lambda c: same(c.left[0], fed)),
            ("mlp_post_norm", lambda c: same(c.given[0], block)),
        ]
        for part, rule in rules:
            call = next((c for c in outside if id(c) not in self.placed and rule(c)), None)
            if call is not None:
                self._norm(part, call)
        rest = [c for c in outside if id(c) not in self.placed]
        parts = [part for part, _ in rules if part not in self.found]
        for call in rest:  # user code came between: by place
            side = 0 if self._place(call) < self.at else 1 if self._place(call) < self._first_fed() else 2
            match = {0: ["input_norm"], 1: ["mlp_norm", "attn_post_norm"], 2: ["mlp_post_norm"]}[side]
            free = next((p for p in match if p in parts), None)
            if free is not None:
                parts.remove(free)
                self._norm(free, call)

    def _place(self, call: Call) -> int:
        return self.calls.index(call)

    def _first_fed(self) -> int:
        """Place of the first call of the feed-forward block."""
        kinds_of_block = ("linear", "router", "experts", "activation")
        places = (i for i, c in enumerate(self.calls) if c.kind in kinds_of_block and not self.inside(c))
        return next(places, len(self.calls))


def _widened(piece: Part, whole: int, width: int, size: int) -> Part:
    """Whole heads, where only a part of each is rotated."""
    if piece.groups * (piece.stop - piece.start) == width:
        return piece
    return Part(1, 0, whole) if whole == width else Part(piece.groups, piece.start, piece.start + size)


def _leads(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether rows are the first features of others."""
    return part.shape[1] <= whole.shape[1] and same(part, whole[:, : part.shape[1]])


def _turned(call: Call, end: torch.Tensor, heads: int, size: int, *, latent: bool) -> int | None:
    """Which result of a rotation is (in) what attention is given."""
    width = int(call.facts["size"])
    for number, left in enumerate(call.left):
        if same(left, end):
            return number
        each = end.view(len(end), -1, size) if end.shape[1] % size == 0 else None
        if each is None or left.shape[1] % width:
            continue
        own = left.view(len(left), -1, width)
        if own.shape[1] not in ({1, heads} if latent else {heads}):
            continue
        for part in (each[..., size - width :], each[..., :width]):
            if own.shape[1] <= each.shape[1] and same(
                own.reshape(len(own), -1), part[:, : own.shape[1]].reshape(len(own), -1)
            ):
                return number
    return None


def _multipliers(module: Any) -> dict[str, float]:
    """Numbers of the layer that speak of its residual stream."""
    found = {key: value for key, value in vars(module).items() if "residual" in key}
    return {key: float(v) for key, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _attention_block(calls: Sequence[Call]) -> str:
    return next((call.where for call in calls if call.kind == "attention_block"), "")
