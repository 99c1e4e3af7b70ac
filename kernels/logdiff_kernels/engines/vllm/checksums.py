"""Checksums of one tensor-parallel rank's weights under checkpoint names, and their sum over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from logdiff_kernels.engines.vllm.checkpoint_names import NameTable
from logdiff_kernels.engines.vllm.linear_parts import Rows, row_parts, weight_shape
from logdiff_kernels.engines.vllm.unpack import expert_weights, is_packed, weight_columns
from logdiff_kernels.weights import TensorSum, WeightsReport, dtype_name

Span = tuple[int, int]
"""First and last-plus-one index along one dimension of the full tensor."""


class RankChecksums:
    """Walks the modules of one rank's model and adds up what it finds, shard by shard."""

    def __init__(self, model: Any, names: NameTable, *, tied: bool) -> None:
        self._model = model
        self._names = names
        self._tied = tied
        self._entries: dict[tuple[str, tuple[Span, ...]], TensorSum] = {}
        self._missing: list[dict[str, str]] = []
        self._adapters: list[str] = []

    def run(self) -> dict[str, Any]:
        """{"entries": [[name, spans, state]], "not_covered", "adapters"} of this rank."""
        from vllm.model_executor.layers.attention.mla_attention import MLAAttention
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        modules = dict(self._model.named_modules())
        has_head = any(isinstance(module, ParallelLMHead) for module in modules.values())
        for name, module in modules.items():
            if hasattr(module, "lora_a_stacked"):
                self._adapters.append(name)
            elif isinstance(module, RoutedExperts):
                self._guarded(name, self._experts, module)
            elif isinstance(module, LinearBase):
                self._guarded(name, self._linear, module)
            elif isinstance(module, MLAAttention):
                self._latent(name, module)
            elif isinstance(module, ParallelLMHead):
                self._guarded(name, self._head, module)
            elif isinstance(module, VocabParallelEmbedding):
                self._guarded(name, self._embedding, module)
                if self._tied and not has_head:
                    self._guarded("lm_head", self._head, module)
            else:
                self._plain(name, module)
        entries = [[name, spans, total.state()] for (name, spans), total in self._entries.items()]
        return {"entries": entries, "not_covered": self._missing, "adapters": self._adapters}

    def _guarded(self, name: str, walk: Any, module: Any) -> None:
        """Walk one layer, or say why it can't be read."""
        method = type(getattr(module, "quant_method", None)).__name__
        if not method.startswith("Unquantized"):
            self._skip(f"{name}.*", f"quantised: {method}")
            return
        try:
            walk(name, module)
        except (ValueError, AttributeError, NotImplementedError, RuntimeError) as error:
            self._skip(f"{name}.weight", f"{type(error).__name__}: {error}")

    def _skip(self, name: str, why: str) -> None:
        self._missing.append({"name": name, "why": why})

    def _add(
        self,
        name: str,
        shape: list[int],
        shard: list[Span],
        values: torch.Tensor,
        how: str,
        *,
        at: list[Span] | None = None,
    ) -> None:
        """Add `values`, which stand at `at` (default: `shard`) of the full tensor of that shape.

        All pieces of one shard make one entry, so that copies of a shard on several ranks can be told.

        Raises:
            ValueError: the checkpoint has another shape.
        """
        known = self._names.shapes.get(name)
        if known is not None and list(known) != shape:
            raise ValueError(f"{name} has shape {known} in the checkpoint and {shape} in the engine")
        total = self._entries.setdefault((name, tuple(shard)), TensorSum(tuple(shape), dtype_name(values.dtype), how))
        total.add(values, [slice(a, b) for a, b in at or shard])

    def _linear(self, name: str, layer: Any) -> None:
        parts = [(part, *self._target(f"{name}.weight", part)) for part in row_parts(layer)]
        how = "unpacked" if is_packed(layer) else "memory"
        (_, local), full = weight_shape(layer), int(layer.input_size)
        left = int(layer.tp_rank) * local if local != full else 0
        for start, block in weight_columns(layer):
            columns = (left + start, left + start + block.shape[1])
            for part, target, base, rows in parts:
                span = (base + part.start, base + part.start + part.count)
                values = block[part.local : part.local + part.count]
                self._add(target, [rows, full], [span, (left, left + local)], values, how, at=[span, columns])
        if getattr(layer, "bias", None) is not None:
            for part in row_parts(layer):
                target, base, rows = self._target(f"{name}.bias", part)
                values = layer.bias.data[part.local : part.local + part.count]
                self._add(target, [rows], [(base + part.start, base + part.start + part.count)], values, "memory")
        self._plain(name, layer, told=("weight", "bias"))

    def _latent(self, name: str, layer: Any) -> None:
        """Latent attention keeps copies of parts of its up-projection, which must be what that one holds."""
        own = dict(layer.named_parameters(recurse=False))
        copies = [own.pop(leaf, None) for leaf in ("W_UK_T", "W_UV")]
        weight = layer.kv_b_proj.weight.data
        if copies != [None, None] and weight.numel():
            heads, nope = weight.unflatten(0, (int(layer.num_heads), -1)), int(layer.qk_nope_head_dim)
            parts = heads[:, :nope], heads[:, nope:].transpose(1, 2)
            for leaf, copy, expected in zip(("W_UK_T", "W_UV"), copies, parts, strict=True):
                if copy is None or not torch.equal(copy.data, expected):
                    self._skip(f"{name}.{leaf}", "not the part of kv_b_proj that it is a copy of")
        for leaf in own:
            self._skip(f"{name}.{leaf}", "the checkpoint has no such tensor")

    def _target(self, parameter: str, part: Rows) -> tuple[str, int, int]:
        """(checkpoint name, row of the part's beginning in that tensor, rows of that tensor)."""
        whole = self._names.find(parameter)
        if part.shard is None:
            if whole is None:
                raise ValueError("the checkpoint has no such tensor")
            return whole, 0, part.total
        if whole is not None and self._names.shapes:  # fused in the checkpoint too
            return whole, part.fused_start, part.fused_total
        name = self._names.find(parameter, part.shard)
        if name is None:
            raise ValueError(f"the checkpoint has no tensor for part {part.shard!r}")
        return name, 0, part.total

    def _vocabulary(self, name: str, layer: Any, blocks: Iterator[tuple[int, torch.Tensor]], how: str) -> None:
        indices = layer.shard_indices
        rows = (int(indices.org_vocab_start_index), int(indices.org_vocab_end_index))
        shape = [int(layer.org_vocab_size), int(layer.embedding_dim)]
        for start, block in blocks:
            at = [rows, (start, start + block.shape[1])]
            self._add(name, shape, [rows, (0, shape[1])], block[: rows[1] - rows[0]], how, at=at)

    def _embedding(self, name: str, layer: Any) -> None:
        target = self._names.find(f"{name}.weight")
        if target is None:
            raise ValueError("the checkpoint has no such tensor")
        self._vocabulary(target, layer, iter([(0, layer.weight.data)]), "memory")

    def _head(self, name: str, layer: Any) -> None:
        target = self._names.find(f"{name}.weight") or f"{name}.weight"
        self._vocabulary(target, layer, weight_columns(layer), "unpacked" if is_packed(layer) else "memory")
        if getattr(layer, "bias", None) is not None:
            self._skip(f"{name}.bias", "biases of language-model heads are not read")

    def _experts(self, name: str, layer: Any) -> None:
        parallel = layer.moe_config.moe_parallel_config
        rank, size = int(parallel.tp_rank), int(parallel.tp_size)
        experts = _global_experts(layer)
        prefix = name.removesuffix(".routed_experts")
        gate, up, down = layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name
        fused = self._fused_experts(prefix)
        for local, w13, w2, unpacked in expert_weights(layer):
            how, expert = "unpacked" if unpacked else "memory", f"{prefix}.{experts[local]}"
            inner = w2.shape[1]
            if fused:
                self._add_shard(f"{expert}.gate_up_proj", w13.t(), 1, rank, size, how)
                self._add_shard(f"{expert}.down_proj", w2.t(), 0, rank, size, how)
                continue
            self._add_shard(f"{expert}.{gate}.weight", w13[:inner], 0, rank, size, how)
            self._add_shard(f"{expert}.{up}.weight", w13[inner:], 0, rank, size, how)
            self._add_shard(f"{expert}.{down}.weight", w2, 1, rank, size, how)
        if hasattr(layer, "w13_bias"):
            self._expert_biases(prefix, layer, experts, fused=fused)

    def _expert_biases(self, prefix: str, layer: Any, experts: list[int], *, fused: bool) -> None:
        parallel = layer.moe_config.moe_parallel_config
        rank, size = int(parallel.tp_rank), int(parallel.tp_size)
        if not fused:
            self._skip(f"{prefix}.*.bias", "biases of experts that the checkpoint holds one by one are not read")
            return
        for local, expert in enumerate(experts):
            self._add_shard(f"{prefix}.{expert}.gate_up_proj_bias", layer.w13_bias.data[local], 0, rank, size, "memory")
            if rank == 0:  # the other ranks hold zeros, so that the sum over ranks adds it once
                self._add_shard(f"{prefix}.{expert}.down_proj_bias", layer.w2_bias.data[local], 0, 0, 1, "memory")
            elif bool(layer.w2_bias.data[local].any()):
                self._skip(f"{prefix}.{expert}.down_proj_bias", f"rank {rank} adds a second bias")

    def _fused_experts(self, prefix: str) -> bool:
        """Whether the checkpoint holds gate and up of all experts interleaved in one tensor, input-major (GPT-OSS)."""
        return f"{prefix}.gate_up_proj" in self._names.shapes and f"{prefix}.gate_up_proj_bias" in self._names.shapes

    def _add_shard(self, name: str, values: torch.Tensor, dim: int, rank: int, size: int, how: str) -> None:
        shape = list(values.shape)
        spans = [(0, length) for length in shape]
        spans[dim] = (rank * shape[dim], (rank + 1) * shape[dim])
        shape[dim] *= size
        self._add(name, shape, spans, values, how)

    def _plain(self, name: str, module: Any, told: tuple[str, ...] = ()) -> None:
        """Parameters of a module that vLLM neither fuses nor packs, but those `told`: norms, sinks, corrections."""
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

        for leaf, parameter in module.named_parameters(recurse=False):
            if leaf in told:
                continue
            path = f"{name}.{leaf}" if name else leaf
            target = self._names.find(path)
            if target is None:
                self._skip(path, "the checkpoint has no such tensor")
                continue
            local = list(parameter.shape)
            full = list(self._names.shapes.get(target, local))
            size = get_tensor_model_parallel_world_size()
            if local == full:
                self._add(target, full, [(0, length) for length in full], parameter.data, "memory")
                continue
            dims = [d for d, (a, b) in enumerate(zip(local, full, strict=False)) if a != b]
            if len(local) != len(full) or len(dims) != 1 or local[dims[0]] * size != full[dims[0]]:
                self._skip(target, f"shape {local} in the engine, {full} in the checkpoint")
                continue
            self._add_shard(target, parameter.data, dims[0], get_tensor_model_parallel_rank(), size, "memory")


def _global_experts(layer: Any) -> list[int]:
    """Global ids of the local experts, in local order."""
    count = int(layer.local_num_experts)
    table = getattr(layer, "expert_map", None)
    if table is None:
        return list(range(count))
    owners = {int(local): expert for expert, local in enumerate(table.tolist()) if local >= 0}
    return [owners[local] for local in range(count)]


def rank_checksums(worker: Any, shapes: dict[str, list[int]]) -> dict[str, Any]:
    """Checksums of what this worker holds. `shapes`: the checkpoint's tensors (`checkpoint_shapes`)."""
    model = worker.model_runner.get_model()
    tied = bool(getattr(worker.model_config.hf_text_config, "tie_word_embeddings", False))
    return RankChecksums(model, NameTable(model, shapes), tied=tied).run()


def merge_ranks(
    ranks: list[dict[str, Any]], shapes: dict[str, list[int]], *, tied: bool, quantization: str | None
) -> WeightsReport:
    """One report from the ranks' parts.

    A shard that several ranks hold counts once; where their copies differ the tensor is `not_covered` and the ranks
    are named. Checkpoint tensors that no rank holds are `not_covered` too.
    """
    report = WeightsReport(quantization=quantization)
    shards: dict[tuple[str, str], list[TensorSum]] = {}
    for rank in ranks:
        for name, spans, state in rank["entries"]:
            shards.setdefault((name, str(spans)), []).append(TensorSum.from_state(state))
        report.not_covered += [entry for entry in rank["not_covered"] if entry not in report.not_covered]
        report.adapters += [name for name in rank["adapters"] if name not in report.adapters]
    disagreeing: set[str] = set()
    for (name, _), copies in shards.items():
        if any(copy.sums != copies[0].sums for copy in copies):
            disagreeing.add(name)
        elif name in report.tensors:
            report.tensors[name].merge(copies[0])
        else:
            report.tensors[name] = copies[0]
    for name in sorted(disagreeing):
        report.tensors.pop(name, None)
        report.not_covered.append({"name": name, "why": "tensor-parallel ranks hold different copies"})
    _follow_ties(report, tied=tied)
    _name_missing(report, shapes)
    return report


def _follow_ties(report: WeightsReport, *, tied: bool) -> None:
    """A tied head whose memory equals the embedding is named in `tied`; one that differs stays a tensor of its own."""
    head = report.tensors.get("lm_head.weight")
    if not tied or head is None:
        return
    for name, tensor in report.tensors.items():
        if name != "lm_head.weight" and tensor.shape == head.shape and tensor.sums == head.sums:
            report.tied["lm_head.weight"] = name
            del report.tensors["lm_head.weight"]
            return


def _name_missing(report: WeightsReport, shapes: dict[str, list[int]]) -> None:
    told = {entry["name"] for entry in report.not_covered}
    quantised = [name.removesuffix("*") for name in told if name.endswith(".*")]
    for name in shapes:
        if name in report.tensors or name in report.tied or name in told or any(map(name.startswith, quantised)):
            continue
        head, _, leaf = name.rpartition(".")
        if any(other.startswith(f"{head}.") and other.endswith(f".{leaf}") for other in report.tensors):
            continue  # a stack of experts, told one by one
        report.not_covered.append({"name": name, "why": "the engine holds no such tensor"})
