"""Which boundary a call of a layer makes: by its class, its place among the layer's calls, and whose rows it received.

No model is known by name. Attention parts the layer in two: what feeds it are projections, norms of heads and the
rotary embedding; what follows is the output projection and the feed-forward block. Norms of the whole hidden state are
told apart by their place and by whether they add the residual stream themselves: vLLM hands (block output, residual)
on, so the sum first exists inside the next such norm, and is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from logdiff_kernels.engines.vllm.boundaries.calls import WHOLE, Call, Found, Shard
from logdiff_kernels.engines.vllm.boundaries.kinds import experts_facts, facts_of, router_facts
from logdiff_kernels.engines.vllm.boundaries.shards import input_shard, output_shard, split_parts
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.rowhash import same

_LATENT = {
    "q_a_proj": "q_a", "q_a_layernorm": "q_a_norm", "q_b_proj": "q", "q_proj": "q",
    "kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "kv_a_norm", "kv_b_proj": "kv_b",
}  # fmt: skip
"""Attributes of attention over latents, alike wherever vLLM has it."""

_LATENT_NORM = "kv_a_layernorm"
_FUSED_LATENT = "fused_qkv_a_proj"


def place_layer(layer: int, calls: Sequence[Call], stream: torch.Tensor | None) -> tuple[list[Found], list[Call]]:
    """The boundaries of one decoder layer's calls, and the calls that no boundary stands for.

    Args:
        layer: its index.
        calls: in the order in which they ended.
        stream: [n, H] the residual stream that enters the layer, where it is known as a sum.
    """
    room = _Layer(layer, calls, stream)
    room.attention_inputs()
    room.feed_forward()
    room.experts()
    room.norms()
    found = sorted(room.found.values(), key=lambda one: names.order(one.name))
    placed = {id(module) for one in found for module in one.modules}
    return found, [call for call in calls if id(call.module) not in placed]


def place_end(layer: int, calls: Iterable[Call]) -> list[Found]:
    """`final_norm`, and the residual stream that leaves layer `layer`, the last one, from calls after the layers."""
    found: list[Found] = []
    for call in calls:
        if call.kind == "norm" and not any(one.name == "final_norm" for one in found):
            found += _norm_of("final_norm", f"layers.{layer}.residual", call)
    return found


def place_output(
    layer: int, where: str, output: torch.Tensor, found: Sequence[Found], stream: torch.Tensor | None
) -> Found:
    """The residual stream that a layer returns as one tensor, where no norm makes the sum."""
    parts = {names.parse(one.name)[1]: one.values for one in found}
    before = parts.get("attn_residual", stream)
    block = next((parts[p] for p in ("mlp_post_norm", "moe_out", "mlp_out") if p in parts), None)
    return Found(f"layers.{layer}.residual", where, output, [t for t in (before, block) if t is not None], {})


class _Layer:
    def __init__(self, layer: int, calls: Sequence[Call], stream: torch.Tensor | None) -> None:
        self.layer, self.calls, self.stream = layer, calls, stream
        self.found: dict[str, Found] = {}
        self.at = next((i for i, call in enumerate(calls) if call.kind == "attention"), len(calls))
        self.attention = calls[self.at] if self.at < len(calls) else None
        self.block = _block(calls, self.attention)
        self.latent = any(_leaf(call) == _LATENT_NORM for call in calls)
        self.shared = {
            id(module)
            for call in calls
            if call.kind == "moe" and _shared(call.module) is not None
            for module in _shared(call.module).modules()
        }

    def add(
        self, part: str, call: Call, values: torch.Tensor, given: list[torch.Tensor], shard: Shard = WHOLE,
        given_shards: Sequence[Shard] = (), facts: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        name = f"layers.{self.layer}.{part}"
        if name in self.found:
            return
        own = facts_of(call.kind, call.module) if facts is None else facts
        self.found[name] = Found(name, call.where, values, given, own, (call.module,), shard, list(given_shards))

    def part(self, *parts: str) -> Found | None:
        """The first of these boundaries that the layer has."""
        return next((f for p in parts if (f := self.found.get(f"layers.{self.layer}.{p}")) is not None), None)

    def inside(self, call: Call) -> bool:
        """Whether a call belongs to the attention block."""
        return bool(self.block) and call.where.startswith(f"{self.block}.")

    def of_kind(self, *kinds: str) -> list[tuple[int, Call]]:
        return [(i, call) for i, call in enumerate(self.calls) if call.kind in kinds]

    # attention

    def attention_inputs(self) -> None:
        """Projections, norms of heads, rotation, context and output projection."""
        for _, call in self.of_kind("linear"):
            self._projection(call)
        for _, call in self.of_kind("norm"):
            self._head_norm(call)
        for i, call in self.of_kind("rope"):
            if i < self.at:
                self._rotation(call)
        if self.attention is not None:
            self._context(self.attention)
        for i, call in self.of_kind("linear"):
            if i > self.at and self.inside(call) and self.part("attn_out") is None:
                self._row("attn_out", call)

    def _projection(self, call: Call) -> None:
        from vllm.model_executor.layers.linear import QKVParallelLinear

        leaf = _leaf(call)
        if isinstance(call.module, QKVParallelLinear):
            for part, values, shard in split_parts(call):
                self.add(str(part), call, values, call.given, shard)
        elif self.latent and leaf == _FUSED_LATENT:
            for part, (_, values, shard) in zip(("q_a", "kv_a"), split_parts(call), strict=False):
                self.add(part, call, values, call.given, shard)
        elif self.latent and leaf in _LATENT:
            self.add(_LATENT[leaf], call, call.left[0], call.given, output_shard(call))
        elif self.inside(call) and (role := self._role(call)) is not None:
            self.add(role, call, call.left[0], call.given, output_shard(call))

    def _role(self, call: Call) -> str | None:
        """Which argument of attention a projection of its own becomes, by following its rows."""
        if self.attention is None:
            return None
        rows, ends = call.left[0], self.attention.given[:3]
        for step in self.calls[: self.at]:
            for given, left in zip(step.given, step.left, strict=False):
                if step.kind in ("norm", "rope") and same(rows, given):
                    rows = left
        return next((part for part, end in zip(("q", "k", "v"), ends, strict=False) if same(rows, end)), None)

    def _head_norm(self, call: Call) -> None:
        leaf = _leaf(call)
        if self.latent and leaf in _LATENT:
            self.add(_LATENT[leaf], call, call.left[0], call.given)
            return
        for part in ("q", "k", "v"):
            source = self.part(part)
            if source is not None and call.given and same(call.given[0], source.values):
                shard = source.shard
                self.add(f"{part}_norm", call, call.left[0], call.given[:1], shard, [shard])
                return
        if self.inside(call) and call.left and leaf[:1] in ("q", "k", "v"):  # fed something else than the projection
            source = self.part(leaf[0])
            shard = source.shard.like(call.left[0].shape[1], source.values.shape[1]) if source is not None else WHOLE
            self.add(f"{leaf[0]}_norm", call, call.left[0], call.given[:1], shard, [shard])

    def _rotation(self, call: Call) -> None:
        for part, given, left in zip(("q", "k"), call.given, call.left, strict=False):
            source = self.part(f"{part}_norm", part)
            shard = WHOLE
            if source is not None and not (self.latent and part == "k"):
                shard = source.shard.like(left.shape[1], source.values.shape[1])
            facts = facts_of("rope", call.module)
            if self.pairs:
                left, facts = _halves_first(left, self.pairs, self.pairs), {**facts, "reordered": "pairs to halves"}
            self.add(f"{part}_rope", call, left, [given], shard, [shard], facts)

    @property
    def pairs(self) -> int:
        """Features of a head that attention over latents rotates in pairs; 0 where halves are rotated, or no latents.

        Such features are put in halves, on queries and keys alike, as other engines leave them: no score changes.
        """
        call = next((one for _, one in self.of_kind("rope")), None)
        if not self.latent or call is None or getattr(call.module, "is_neox_style", True):
            return 0
        return int(call.module.rotary_dim)

    def _context(self, call: Call) -> None:
        shards = []
        for part, given in zip(("q", "k", "v"), call.given, strict=False):
            source = self.part(f"{part}_rope", f"{part}_norm", part)
            known = source is not None and not (self.latent and part != "q")
            shards.append(source.shard.like(given.shape[1], source.values.shape[1]) if known and source else WHOLE)
            if part != "v" and source is not None and not self.latent and not self.part(f"{part}_rope"):
                self._unseen_rotation(part, call, given, source, shards[-1])
        for given in self._attended(call)[1:]:
            self._cached(given)
        left = call.left[0]
        shard = shards[0].like(left.shape[1], call.given[0].shape[1]) if shards else WHOLE
        facts = {**facts_of("attention", call.module), "latent": self.latent}
        self.add("context", call, left, self._attended(call), shard, shards, facts)

    def _attended(self, call: Call) -> list[torch.Tensor]:
        """What attention is given: queries, keys, values, or queries, latents and rotated keys."""
        given = call.given[:3]
        if self.pairs and len(given) == 3:
            head = int(call.module.qk_head_dim)
            given = [
                _halves_first(given[0], head, self.pairs),
                given[1],
                _halves_first(given[2], self.pairs, self.pairs),
            ]
        return given

    def _unseen_rotation(self, part: str, call: Call, given: torch.Tensor, source: Found, shard: Shard) -> None:
        """Rows that attention is given, where they are no more those of the projection and no module rotated them."""
        if not same(given, source.values) and given.shape == source.values.shape:
            facts = {"taken": "what attention is given"}
            self.add(f"{part}_rope", call, given, [source.values], shard, [source.shard], facts)

    def _cached(self, rows: torch.Tensor) -> None:
        for one in self.found.values():
            if same(one.values, rows):
                one.every = True

    def _row(self, part: str, call: Call) -> None:
        self.add(part, call, call.left[0], call.given, output_shard(call), [input_shard(call)])

    # feed-forward

    def feed_forward(self) -> None:
        """Gated blocks, shared experts among them: gate, up, activation, output."""
        linears = [call for _, call in self.of_kind("linear")]
        for at, call in self.of_kind("activation"):
            shared = "shared_" if id(call.module) in self.shared else ""
            source = _feeding(call, [one for one in linears if not self.inside(one)])
            home = (call if source is None else source).where.rpartition(".")[0]  # layers may share an activation
            if source is not None:
                pieces = list(split_parts(source))
                parts = ("gate", "up") if len(pieces) == 2 else ("up",)
                for part, (_, values, shard) in zip(parts, pieces, strict=False):
                    self.add(f"{shared}{part}", source, values, source.given, shard)
            gate = self.part(f"{shared}gate", f"{shared}up")
            width = call.left[0].shape[1]
            shard = gate.shard.like(width, gate.values.shape[1]) if gate is not None else WHOLE
            given = _halves(call)
            self.add(f"{shared}act", call, call.left[0], given, shard, [shard] * len(given))
            for later in self.calls[at + 1 :]:
                if later.kind == "linear" and later.where.rpartition(".")[0] == home:
                    self._row("shared_out" if shared else "mlp_out", later)
                    break

    def experts(self) -> None:
        """Router, routed experts and their sum."""
        runner = next((call for _, call in self.of_kind("moe")), None)
        if runner is None:
            return
        facts, scale = router_facts(runner.module), self._scale(runner)
        total = scale * facts["scaling"]
        for _, call in self.of_kind("linear"):
            if call.left[0].shape[1] == 1 and not self.inside(call):  # the gate of a shared expert
                self.add("shared_scale", call, call.left[0], call.given)
        for _, call in self.of_kind("router"):
            logits = call.given[0]
            source = next((c for _, c in self.of_kind("linear") if same(c.left[0], logits)), None)
            if source is not None:
                self.add("router_logits", source, source.left[0], source.given)
            else:
                self.add("router_logits", call, logits, [], facts={"class": facts["class"]})
            self.add("expert_ids", call, call.left[1], [logits], facts=facts)
            self.add("expert_weights", call, scale * call.left[0], [logits], facts={**facts, "scaling": total})
        gate = getattr(runner.module, "gate", None)
        for _, call in self.of_kind("linear"):  # where the choice of experts was not seen
            if call.module is gate or any(same(call.left[0], given) for given in runner.given[1:]):
                self.add("router_logits", call, call.left[0], call.given)
        ranks = getattr(runner.module, "moe_config", None)
        several = ranks is not None and int(ranks.tp_size) * int(ranks.ep_size) > 1
        for _, call in self.of_kind("experts"):
            partial = several and not getattr(runner.module, "_fused_output_is_reduced", False)
            shard = Shard("sum") if partial else WHOLE
            given = [call.given[0], *(scale * t if t.is_floating_point() else t for t in call.given[1:])]
            self.add("experts_out", call, scale * call.left[0], given, shard, facts=experts_facts(runner.module))
        if self.part("experts_out") is None and _shared(runner.module) is None:  # the layer is one operator
            chosen = [f.values for p in ("expert_weights", "expert_ids") if (f := self.part(p)) is not None]
            given = [*runner.given[:1], *chosen]
            self.add("experts_out", runner, runner.left[0], given, facts=experts_facts(runner.module))
        terms = [f for p in ("experts_out", "shared_out", "shared_scale") if (f := self.part(p)) is not None]
        own = {"scaling": experts_facts(runner.module)["scaling"], "shared": _shared(runner.module) is not None}
        self.add("moe_out", runner, runner.left[0], [f.values for f in terms], WHOLE, [f.shard for f in terms], own)
        held = getattr(runner.module, "routed_experts", None)
        if held is not None and not self.of_kind("experts"):  # their weights were read by the layer itself
            self.found[self._name("moe_out")].modules += (held,)

    def _scale(self, runner: Call) -> float:
        """The factor that the layer puts on the sum of routed experts after it was made; with it, weights and sum are
        what engines that scale the weights have."""
        scale = float(getattr(runner.module, "routed_scaling_factor", 1.0) or 1.0)
        divided = runner.left[0].dtype == torch.float16 and _shared(runner.module) is not None  # the shared experts are
        return 1.0 if divided else scale

    # norms of the hidden state

    def norms(self) -> None:
        """Norms before and after the blocks, and the sums that they show."""
        placed = {id(module) for one in self.found.values() for module in one.modules}
        started = next((i for i, c in enumerate(self.calls) if i > self.at and self._feeds_forward(c)), len(self.calls))
        for i, call in self.of_kind("norm"):
            if id(call.module) in placed or not call.given or not call.left:
                continue
            if i < self.at:
                self._take(_norm_of(self._name("input_norm"), f"layers.{self.layer - 1}.residual", call))
            elif i > started:
                self._take(_norm_of(self._name("mlp_post_norm"), None, call))
            else:
                self._between(call)
        if self.part("attn_residual") is None and self.part("mlp_norm") is None and self.part("attn_out") is not None:
            self._sum_before_block(started)

    def _between(self, call: Call) -> None:
        """A norm after attention and before the feed-forward block."""
        block = self.part("attn_out")
        alone = len(call.given) == 1
        if alone and self.part("attn_post_norm") is None and block is not None and same(call.given[0], block.values):
            self._take(_norm_of(self._name("attn_post_norm"), None, call))
            return
        if alone:
            self._explicit_sum(call.given[0], call)
        self._take(_norm_of(self._name("mlp_norm"), self._name("attn_residual"), call))

    def _sum_before_block(self, started: int) -> None:
        """No norm stands before the feed-forward block: it receives the stream itself."""
        call = self.calls[started] if started < len(self.calls) else None
        norms = [one.values for one in self.found.values() if one.name.endswith("_norm")]
        if call is not None and call.given and not any(same(call.given[0], rows) for rows in norms):
            self._explicit_sum(call.given[0], call)

    def _explicit_sum(self, total: torch.Tensor, call: Call) -> None:
        block = self.part("attn_post_norm", "attn_out")
        given = [rows for rows in (self.stream, None if block is None else block.values) if rows is not None]
        name = self._name("attn_residual")
        self.found.setdefault(name, Found(name, call.where.rpartition(".")[0], total, given, {}))

    def _feeds_forward(self, call: Call) -> bool:
        return call.kind in ("linear", "activation", "moe", "router", "experts") and not self.inside(call)

    def _name(self, part: str) -> str:
        return f"layers.{self.layer}.{part}"

    def _take(self, found: Iterable[Found]) -> None:
        for one in found:
            self.found.setdefault(one.name, one)


def _norm_of(name: str, total: str | None, call: Call) -> list[Found]:
    """A norm; with the sum `total` where it adds the residual stream itself: (x, residual) -> (norm, x + residual)."""
    facts = facts_of("norm", call.module)
    if total is None or len(call.given) < 2 or len(call.left) < 2:
        return [Found(name, call.where, call.left[0], call.given[:1], facts, (call.module,))]
    x, residual = call.given[:2]
    rows, stream = call.left[:2]
    return [
        Found(total, call.where, stream, [residual, x], {"class": facts["class"]}, ()),
        Found(name, call.where, rows, [stream], {**facts, "fused_add": True}, (call.module,)),
    ]


def _halves_first(rows: torch.Tensor, head: int, pairs: int) -> torch.Tensor:
    """The last `pairs` features of each head with first members of pairs before second ones."""
    each = rows.view(len(rows), -1, head)
    kept, turned = each[..., : head - pairs], each[..., head - pairs :]
    return torch.cat([kept, turned[..., 0::2], turned[..., 1::2]], -1).reshape(len(rows), -1)


def _feeding(call: Call, linears: Sequence[Call]) -> Call | None:
    """The linear layer whose rows an activation received; the last one of that width if something lies between."""
    if not call.given:
        return None
    given = call.given[0]
    wide = [one for one in linears if one.left[0].shape == given.shape]
    return next((one for one in wide if same(one.left[0], given)), wide[-1] if wide else None)


def _halves(call: Call) -> list[torch.Tensor]:
    """Gate and up rows that an activation received as one."""
    if len(call.given) == 1 and call.given[0].shape[1] == 2 * call.left[0].shape[1]:
        return [half.contiguous() for half in call.given[0].chunk(2, dim=1)]
    return call.given


def _block(calls: Sequence[Call], attention: Call | None) -> str:
    """Path of the block that attention lies in: the longest one that it shares with a linear layer around it."""
    if attention is None:
        return ""
    paths = [call.where.split(".") for call in calls if call.kind == "linear" and call.where]
    own, best = attention.where.split("."), 0
    for path in paths:
        shared = 0
        while shared < min(len(own), len(path)) and own[shared] == path[shared]:
            shared += 1
        best = max(best, shared)
    return ".".join(own[:best])


def _shared(runner: Any) -> Any:
    return getattr(runner, "shared_experts", None)


def _leaf(call: Call) -> str:
    return call.where.rpartition(".")[2]
