"""Training = prefill = decode: the same tokens through the drivers by every way that an engine takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from logdiff_kernels.ascendc import activation, attention, linear, logprob, norm, rope
from logdiff_kernels.ascendc.attention_inputs import starts
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.build.selftest import bits, inputs
from logdiff_kernels.build.selftest.section import Scope, Section
from logdiff_kernels.contract.linear import row_leaves
from logdiff_kernels.cpu.linear import SINGLE, TREE


@dataclass(frozen=True)
class Kind:
    """A kind of attention.

    Attributes:
        name: in the report.
        lengths: of the sequences.
        heads: of queries, of keys.
        dims: of keys, of values.
        block: tokens of a page.
        window: keys that a query sees; 0: all.
        softcap: of scores; 0: none.
        sinks: whether each head has one.
        latent: values are the first elements of keys (MLA).
    """

    name: str
    lengths: tuple[int, ...] = (1, 70, 530)
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (64, 64)
    block: int = 16
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    latent: bool = False


KINDS = {
    Scope.QUICK: (Kind("attention", (1, 70)), Kind("attention window sinks", (40, 150), window=40, sinks=True)),
    Scope.DEFAULT: (
        Kind("attention"),
        Kind("attention window sinks", window=40, sinks=True, dims=(128, 128), block=128),
        Kind("attention softcap", (66, 515), softcap=20.0),
        Kind("attention latent", (3, 140), heads=(16, 1), dims=(576, 512), block=128, latent=True),
    ),
    Scope.FULL: (
        Kind("attention", (1, 15, 511, 513, 4100)),
        Kind("attention window sinks", (70, 530, 4200), window=300, sinks=True, dims=(128, 128), block=128),
        Kind("attention softcap", (66, 515, 1030), softcap=20.0),
        Kind("attention wide", (66, 515), heads=(2, 1), dims=(256, 256)),
        Kind("attention latent", (3, 140, 600), heads=(16, 1), dims=(576, 512), block=128, latent=True),
    ),
}


def section(launcher: Launcher, scope: Scope) -> Section:
    """The ways of the same tokens against each other."""
    found = Section(
        "phases",
        "whether training, prefill in any chunks and decode over pages give the same bits for attention, linear and a"
        " whole decoder layer with its log-probabilities",
        "log-probabilities of a trainer on one host and a rollout on the other differ",
    )
    dtypes = (torch.bfloat16,) if scope is Scope.QUICK else (torch.bfloat16, torch.float16)
    for dtype in dtypes:
        word = str(dtype).removeprefix("torch.")
        for kind in KINDS[scope]:
            tokens = _Tokens(launcher, kind, dtype, found, f"{kind.name}/{word}")
            for law, run in tokens.laws():
                found.check(tokens.name, law, run)
        if scope is not Scope.QUICK:
            found.check(f"attention/{word}", "decode = prefill past 4096 keys", partial(_long, launcher, dtype))
        for name, plan, bias in (("linear", SINGLE, True), ("linear_row", TREE, False)):
            law = "decode = prefill = training"
            found.check(f"{name}/{word}", law, partial(_linear, launcher, dtype, plan, bias))
        layer = Layer(launcher, dtype)
        for law, run in layer.laws(found, f"decoder layer/{word}"):
            found.check(f"decoder layer/{word}", law, run)
    return found


def _values(shape: tuple[int, ...], stream: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(inputs.normal(shape, stream, 4)).to(dtype).to(device)


class _Tokens:
    """Queries, keys and values of several sequences."""

    def __init__(self, launcher: Launcher, kind: Kind, dtype: torch.dtype, section: Section, name: str) -> None:
        self.launcher = launcher
        self.kind = kind
        self.dtype = dtype
        self.section = section
        self.name = name
        self.begins = [sum(kind.lengths[:i]) for i in range(len(kind.lengths))]

    def laws(self) -> list[tuple[str, Callable[[], str]]]:
        return [
            ("run to run", self._again),
            ("packed = one at a time", self._alone),
            ("prefill in chunks = training", self._chunks),
            ("prefill over pages = training", self._pages),
            ("decode = training", self._decode),
            ("decode, one sequence at a time = training", self._decode_alone),
        ]

    @cached_property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        kind, total, device = self.kind, sum(self.kind.lengths), self.launcher.device
        q = _values((total, kind.heads[0], kind.dims[0]), 41, self.dtype, device)
        k = _values((total, kind.heads[1], kind.dims[0]), 42, self.dtype, device)
        if kind.latent:
            return q, k, k[..., : kind.dims[1]]
        return q, k, _values((total, kind.heads[1], kind.dims[1]), 43, self.dtype, device)

    @cached_property
    def _sinks(self) -> Tensor | None:
        if not self.kind.sinks:
            return None
        return _values((self.kind.heads[0],), 44, torch.float32, self.launcher.device)

    @property
    def _options(self) -> tuple[float, bool, int, float, Tensor | None]:
        kind = self.kind
        return kind.dims[0] ** -0.5, True, kind.window, kind.softcap, self._sinks

    def _packed(self, queries: list[range], keys: list[range]) -> Tensor:
        """Attention of these tokens' queries over these tokens' keys, packed."""
        q, k, v = self.qkv
        at, to = (torch.tensor([i for part in parts for i in part], device=q.device) for parts in (queries, keys))
        k_part = k[to]
        v_part = k_part[..., : self.kind.dims[1]] if self.kind.latent else v[to]
        cu_q, cu_k = (starts([len(part) for part in parts]) for parts in (queries, keys))
        options = self._options
        out, _ = attention.attention(self.launcher, q[at], k_part, v_part, cu_q, cu_k, *options, False)
        return out

    @cached_property
    def whole(self) -> Tensor:
        """The training forward."""
        sequences = [range(begin, begin + n) for begin, n in zip(self.begins, self.kind.lengths, strict=True)]
        found = self._packed(sequences, sequences)
        lengths = ", ".join(map(str, self.kind.lengths))
        self.section.record(self.name, **{f"results of lengths {lengths}": bits.sha256(bits.array(found))})
        return found

    def _against(self, found: Tensor, tokens: list[int] | range) -> str:
        return bits.tensors_differ([found], [self.whole[torch.tensor(list(tokens), device=found.device)]])

    def _again(self) -> str:
        sequences = [range(begin, begin + n) for begin, n in zip(self.begins, self.kind.lengths, strict=True)]
        return bits.tensors_differ([self._packed(sequences, sequences)], [self.whole])

    def _alone(self) -> str:
        for begin, n in zip(self.begins, self.kind.lengths, strict=True):
            tokens = range(begin, begin + n)
            said = self._against(self._packed([tokens], [tokens]), tokens)
            if said:
                return f"sequence of {n}: {said}"
        return ""

    def _chunks(self) -> str:
        """The last sequence in chunks of 1, a hundred, and the rest."""
        begin, n = self.begins[-1], self.kind.lengths[-1]
        for first, last in ((0, 1), (1, min(101, n)), (min(101, n), n)):
            tokens = range(begin + first, begin + last)
            if not tokens:
                continue
            said = self._against(self._packed([tokens], [range(begin, begin + last)]), tokens)
            if said:
                return f"chunk of {last - first} after {first}: {said}"
        return ""

    @cached_property
    def _cache(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values, and the block table; pages in an order of no meaning."""
        kind, (_, k, v) = self.kind, self.qkv
        pages = [-(-n // kind.block) for n in kind.lengths]
        count = sum(pages)
        order = [(5 * i + 3) % count for i in range(count)] if count % 5 else list(range(count))[::-1]
        table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
        slots: list[int] = []
        for row, (n, many) in enumerate(zip(kind.lengths, pages, strict=True)):
            mine = [order.pop() for _ in range(many)]
            table[row, :many] = torch.tensor(mine)
            slots += [mine[p // kind.block] * kind.block + p % kind.block for p in range(n)]
        keys = torch.zeros((count, kind.block, *k.shape[1:]), dtype=self.dtype, device=k.device)
        if kind.latent:  # keys and values share the cache
            keys.view(-1, *k.shape[1:])[torch.tensor(slots, device=k.device)] = k
            return keys, keys[..., : kind.dims[1]], table.to(k.device)
        values = torch.zeros((count, kind.block, *v.shape[1:]), dtype=self.dtype, device=k.device)
        attention.store_kv(self.launcher, k, v, keys, values, torch.tensor(slots, device=k.device))
        return keys, values, table.to(k.device)

    def _paged(self, tokens: list[int], owners: list[int], counts: list[int], seen: list[int]) -> Tensor:
        """Attention over pages: `tokens` are the queries; per batch entry the sequence, queries and keys."""
        keys, values, table = self._cache
        q = self.qkv[0][torch.tensor(tokens, device=table.device)]
        lengths = torch.tensor(seen, dtype=torch.int32)
        rows = table[torch.tensor(owners, device=table.device)]
        return attention.paged_attention(
            self.launcher, q, keys, values, rows, starts(counts), lengths, *self._options, None
        )

    def _pages(self) -> str:
        lengths = list(self.kind.lengths)
        tokens = list(range(sum(lengths)))
        return self._against(self._paged(tokens, list(range(len(lengths))), lengths, lengths), tokens)

    @cached_property
    def _steps(self) -> list[tuple[int, int]]:
        """(sequence, position) of the decode steps that are tried: the ends of every tile, step and page."""
        edges = (0, 1, 14, 15, 16, 63, 64, 127, 128, 510, 511, 512, 4095, 4096)
        found = []
        for row, n in enumerate(self.kind.lengths):
            found += [(row, p) for p in sorted({*(p for p in edges if p < n), n - 1})]
        return found

    def _decode(self) -> str:
        """All steps in one batch: sequences that share pages and see a different number of keys."""
        tokens = [self.begins[row] + p for row, p in self._steps]
        found = self._paged(tokens, [row for row, _ in self._steps], [1] * len(tokens), [p + 1 for _, p in self._steps])
        apart = [
            f"position {p} of sequence {row}"
            for i, (row, p) in enumerate(self._steps)
            if self._against(found[i : i + 1], [tokens[i]])
        ]
        return f"{len(apart)} of {len(tokens)} steps differ: {', '.join(apart[:4])}" if apart else ""

    def _decode_alone(self) -> str:
        for row, n in enumerate(self.kind.lengths):
            token = self.begins[row] + n - 1
            said = self._against(self._paged([token], [row], [1], [n]), [token])
            if said:
                return f"sequence of {n}: {said}"
        return ""


def _long(launcher: Launcher, dtype: torch.dtype) -> str:
    """The last 3 of 4098 keys: a chunk that crosses the contract's 4096, and one by one."""
    n, new = 4098, 3
    q, k, v = (_values((count, 2, 64), 45 + i, dtype, launcher.device) for i, count in enumerate((new, n, n)))

    def run(first: int, last: int) -> Tensor:
        seen = n - new + last
        cu_q, cu_k = starts([last - first]), starts([seen])
        options = (0.125, True, 0, 0.0, None, False)
        return attention.attention(launcher, q[first:last], k[:seen], v[:seen], cu_q, cu_k, *options)[0]

    one_by_one = torch.cat([run(i, i + 1) for i in range(new)])
    return bits.tensors_differ([one_by_one], [run(0, new)])


def _linear(launcher: Launcher, dtype: torch.dtype, plan: int, with_bias: bool) -> str:
    rows, n, k = 133, 150, 576
    x, weight = _values((rows, k), 51, dtype, launcher.device), _values((n, k), 52, dtype, launcher.device)
    bias = _values((n,), 53, dtype, launcher.device) if with_bias else None
    leaves = row_leaves(k) if plan == TREE else 1

    def run(part: Tensor) -> Tensor:
        return linear.matmul(launcher, part, weight, bias, dtype, plan, leaves)

    whole = run(x)
    for first, last in ((0, 1), (0, 7), (64, 65), (1, 129), (132, 133)):
        said = bits.tensors_differ([run(x[first:last])], [whole[first:last]])
        if said:
            return f"rows {first} to {last - 1} alone: {said}"
    return ""


@dataclass
class Layer:
    """A decoder layer and a head: norms, rotation, attention over pages or packed, a gated MLP, log-probabilities.

    Attributes:
        launcher: runs it.
        dtype: of weights and activations.
    """

    launcher: Launcher
    dtype: torch.dtype
    lengths: tuple[int, ...] = (5, 19)
    width: int = 128
    heads: tuple[int, int] = (4, 2)
    dim: int = 32
    inner: int = 192
    vocabulary: int = 160
    block: int = 16
    weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        many, few = self.heads[0] * self.dim, self.heads[1] * self.dim
        shapes: dict[str, tuple[int, ...]] = {
            "norm": (self.width,),
            "qkv": (many + 2 * few, self.width),
            "out": (self.width, many),
            "norm2": (self.width,),
            "gate_up": (2 * self.inner, self.width),
            "down": (self.width, self.inner),
            "head": (self.vocabulary, self.width),
        }
        for i, (name, shape) in enumerate(shapes.items()):
            self.weights[name] = _values(shape, 61 + i, self.dtype, self.launcher.device)

    def laws(self, section: Section, name: str) -> list[tuple[str, Callable[[], str]]]:
        """Of the whole layer."""

        def prefill(sizes: tuple[int, ...]) -> str:
            return bits.tensors_differ([self.over_pages(sizes)], [self.trained(section, name)])

        return [
            ("prefill in one piece = training", partial(prefill, (max(self.lengths),))),
            ("prefill in chunks, then decode = training", partial(prefill, (3, 8))),
            ("decode from the first token = training", partial(prefill, (1,))),
        ]

    def trained(self, section: Section, name: str) -> Tensor:
        """log p of every token from the packed forward, fp32 [tokens, width of results]."""
        positions = [p for n in self.lengths for p in range(n)]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            options = (self.dim**-0.5, True, 0, 0.0, None, False)
            return attention.attention(self.launcher, q, k, v, starts(list(self.lengths)), None, *options)[0]

        found = self._forward(list(range(sum(self.lengths))), positions, attend)
        section.record(name, results=bits.sha256(bits.array(found)))
        return found

    def over_pages(self, sizes: tuple[int, ...]) -> Tensor:
        """The same, by steps of these sizes for every sequence, the rest token by token; keys and values in pages."""
        device, row = self.launcher.device, (self.heads[1], self.dim)
        pages = [-(-n // self.block) for n in self.lengths]
        k_cache, v_cache = (
            torch.zeros((sum(pages), self.block, *row), dtype=self.dtype, device=device) for _ in range(2)
        )
        table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
        for i, many in enumerate(pages):
            table[i, :many] = torch.arange(sum(pages[:i]), sum(pages[: i + 1])).flip(0)
        begins = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        found = torch.zeros(sum(self.lengths), 1 + self.width, device=device)
        done, step = 0, 0
        while done < max(self.lengths):
            size = sizes[step] if step < len(sizes) else 1
            step += 1
            parts = [(i, range(done, min(done + size, n))) for i, n in enumerate(self.lengths) if done < n]
            done += size
            tokens = [begins[i] + p for i, part in parts for p in part]
            positions = [p for _, part in parts for p in part]
            slots = [int(table[i, p // self.block]) * self.block + p % self.block for i, part in parts for p in part]
            seen = torch.tensor([part.stop for _, part in parts], dtype=torch.int32)
            rows = table[[i for i, _ in parts]].to(device)
            counts = starts([len(part) for _, part in parts])

            def attend(
                q: Tensor,
                k: Tensor,
                v: Tensor,
                slots: list[int] = slots,
                rows: Tensor = rows,
                counts: Tensor = counts,
                seen: Tensor = seen,
            ) -> Tensor:
                attention.store_kv(self.launcher, k, v, k_cache, v_cache, torch.tensor(slots, device=device))
                options = (self.dim**-0.5, True, 0, 0.0, None, None)
                return attention.paged_attention(self.launcher, q, k_cache, v_cache, rows, counts, seen, *options)

            found[torch.tensor(tokens, device=device)] = self._forward(tokens, positions, attend)
        return found

    def _forward(
        self, tokens: list[int], positions: list[int], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """[tokens, 1 + width]: log p of some next token, and the hidden state."""
        run, w, at = self.launcher, self.weights, torch.tensor(tokens)
        embedded = inputs.normal((sum(self.lengths), self.width), 70, 4)
        x = torch.from_numpy(embedded)[at].to(self.dtype).to(run.device)
        inverse = 10000.0 ** -(torch.arange(self.dim // 2, dtype=torch.float64) / (self.dim // 2))
        angle = torch.tensor(positions, dtype=torch.float64)[:, None] * inverse
        cos, sin = angle.cos().float().to(run.device), angle.sin().float().to(run.device)
        many, few = self.heads

        h, _ = norm.rms_norm(run, x, w["norm"], 1e-6, 0.0, False)
        qkv = linear.matmul(run, h, w["qkv"], None, self.dtype).view(len(tokens), many + 2 * few, self.dim)
        q, k = (rope.rope(run, part, cos, sin, False, False) for part in (qkv[:, :many], qkv[:, many : many + few]))
        attended = attend(q, k, qkv[:, many + few :]).reshape(len(tokens), -1)
        out = linear.matmul(run, attended, w["out"], None, self.dtype, TREE, row_leaves(attended.shape[1]))
        h, x, _ = norm.add_rms_norm(run, out, x, w["norm2"], 1e-6, 0.0, False)
        both = linear.matmul(run, h, w["gate_up"], None, self.dtype)
        inner = activation.glu(run, both[:, : self.inner], both[:, self.inner :], 0, 0.0, 0.0)
        down = linear.matmul(run, inner, w["down"], None, self.dtype, TREE, row_leaves(self.inner))
        h, x, _ = norm.add_rms_norm(run, down, x, w["norm"], 1e-6, 0.0, False)
        logits = linear.matmul(run, h, w["head"], None, torch.float32)
        ids = (at * 37 + 11) % self.vocabulary
        logp = logprob.logprob(run, logits, None, ids.to(run.device), self.vocabulary, False)[0]
        return torch.cat([logp[:, None], x.float()], 1)
