"""Capture in one vLLM worker: steps, logical rows, boundaries, this rank's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.engines.vllm.boundaries.calls import Call, Found
from logdiff_kernels.engines.vllm.boundaries.hooks import ModelHooks, decoder_layers, tensors
from logdiff_kernels.engines.vllm.boundaries.kinds import facts_of, head_facts
from logdiff_kernels.engines.vllm.boundaries.naming import place_end, place_layer, place_output
from logdiff_kernels.engines.vllm.boundaries.rows import StepRows, step_rows
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.recorder import Recorder, Rows
from logdiff_kernels.observe.boundaries.rowhash import same


class WorkerCapture:
    """Keeps the boundaries of the kept samples' rows while it is installed.

    Args:
        runner: vLLM's model runner, idle.
        recorder: of the task's samples.
        samples: index of each kept sample -> (tokens of the prompt, tokens of prompt and response).
    """

    def __init__(self, runner: Any, recorder: Recorder, samples: dict[int, tuple[int, int]]) -> None:
        self._runner, self._recorder, self._samples = runner, recorder, samples
        self._model = runner.get_model()
        self._hooks = ModelHooks(
            self._model, self._taker, self._begin_layer, self._end_layer, self._outside, self._raw, self._asked
        )
        self._last_layer = max((index for _, index in decoder_layers(self._model)), default=-1)
        self._patches = Patches()
        self._handles: list[Any] = []
        self._seen: dict[int, set[int]] = {}
        self._scheduled: dict[str, int] | None = None
        self._rows: StepRows | None = None
        self._padded = 0
        self._stream: torch.Tensor | None = None
        self._embedded: Call | None = None
        self._in_layers = False
        self._ids: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._rope_positions: torch.Tensor | None = None
        self._hidden: torch.Tensor | None = None
        self._waiting: list[tuple[Found, torch.Tensor | None]] | None = None
        self._placed: set[int] = set()
        self.shards: dict[str, list[list[Any]]] = {}
        self.places: dict[str, tuple[str, Any]] = {}
        self._strays: dict[str, str] = {}
        self._broken: set[str] = set()
        self.steps = 0
        self.rows = 0
        self.again = 0
        self.moved = 0
        self.unplaced = 0
        self.cached: dict[int, int] = {}
        self.eager: list[str] = []

    def install(self) -> None:
        """Watch the runner's steps and the model; run compiled parts as they were written."""
        self._uncompiled()
        self._hooks.install()
        self._handles.append(self._model.register_forward_pre_hook(self._begin_pass, with_kwargs=True))
        self._handles.append(self._model.register_forward_hook(self._end_pass))
        execute, compute = self._runner.execute_model, self._model.compute_logits
        dummy = self._runner._dummy_run

        def execute_model(scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
            self._forget()
            self._scheduled = dict(scheduler_output.num_scheduled_tokens)
            self.steps += bool(self._scheduled)
            return execute(scheduler_output, *arguments, **named)

        def compute_logits(hidden: Any, *arguments: Any, **named: Any) -> Any:
            logits = compute(hidden, *arguments, **named)
            if isinstance(hidden, torch.Tensor) and isinstance(logits, torch.Tensor):
                self._logits(hidden, logits)
            return logits

        def dummy_run(*arguments: Any, **named: Any) -> Any:
            self._forget()
            return dummy(*arguments, **named)

        self._patches.set(self._runner, "execute_model", execute_model)
        self._patches.set(self._runner, "_dummy_run", dummy_run)
        self._patches.set(self._model, "compute_logits", compute_logits)

    @property
    def watched(self) -> int:
        """Modules that are watched."""
        return self._hooks.watched

    @property
    def blind(self) -> bool:
        """Whether rows were computed and no module was seen to run."""
        return self.rows > 0 and not self._hooks.seen

    def remove(self) -> None:
        """Put everything back."""
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._hooks.remove()

    def unmapped(self) -> list[dict[str, str]]:
        """Modules with weights, and operators that ran, that no boundary stands for."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        found = []
        sinks = {
            one.impl.sinks.data_ptr()
            for one in self._model.modules()
            if id(one) in self._placed and isinstance(getattr(getattr(one, "impl", None), "sinks", None), torch.Tensor)
        }
        skipped = tuple(f"{name}." for name in self._hooks.skipped)
        for name, module in self._model.named_modules():
            if skipped and name.startswith(skipped):
                continue
            own = [key for key, one in module.named_parameters(recurse=False) if one.data_ptr() not in sinks]
            if own and id(module) not in self._placed and not isinstance(module, ParallelLMHead):
                why = self._strays.get(name, "it was not called, or its class is none that a boundary is known of")
                found.append({"where": name, "why": f"{type(module).__name__} ({', '.join(own)}): {why}"})
        held = {one["where"] for one in found}
        found += [{"where": name, "why": why} for name, why in self._strays.items() if name not in held]
        return found

    # passes

    def _uncompiled(self) -> None:
        for name, module in self._model.named_modules():
            if getattr(module, "do_not_compile", True) is False:
                self._patches.set(module, "do_not_compile", True)
                self.eager.append(name or type(module).__name__)
            if getattr(module, "_compiled_call_impl", None) is not None:
                self._patches.set(module, "_compiled_call_impl", None)
                self.eager.append(name or type(module).__name__)
        if self._runner.model is not self._model:  # a wrapper that replays graphs
            self.eager.append(type(self._runner.model).__name__)
            self._patches.set(self._runner, "model", self._model)

    def _forget(self) -> None:
        self._recorder.end()
        self._scheduled, self._rows, self._padded, self._in_layers = None, None, 0, False
        self._ids = self._positions = self._rope_positions = self._hidden = self._stream = None
        self._embedded, self._waiting = None, []

    def _begin_pass(self, _module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._scheduled is None:
            return
        self._start_rows()
        found = {key: value for key, value in named.items() if isinstance(value, torch.Tensor)}
        given = list(tensors(arguments))
        ids = found.get("input_ids", given[0] if given else None)
        positions = found.get("positions", given[1] if len(given) > 1 else None)
        batch = ids if ids is not None else found.get("inputs_embeds")
        if batch is not None:
            self._padded = len(batch)
        if ids is not None and self._ids is None:
            self._ids = ids.detach().clone()
        if positions is not None:
            self._positions = positions.detach().clone()

    def _end_pass(self, _module: Any, _arguments: Any, output: Any) -> None:
        if self._rows is None:
            return
        first = output[0] if isinstance(output, (tuple, list)) else output
        self._hidden = first if isinstance(first, torch.Tensor) else None
        self._begin_rows()

    def _begin_rows(self) -> None:
        """Tell the recorder whose rows come; when the first layer is over its positions are known."""
        if self._waiting is None or self._rows is None:
            return
        rows, waiting, self._waiting = self._rows, self._waiting, None
        received = self._runner.input_ids.gpu if self._ids is None else self._ids
        ids = received[rows.index.to(received.device)]
        positions, rotated = self._pick(self._positions), self._pick(self._rope_positions)
        if positions is not None and rotated is not None:
            self.moved += int((positions != rotated).sum())
        self.rows += len(rows.index)
        self._recorder.begin(Rows(rows.sample, rows.position, ids, positions if rotated is None else rotated))
        for found, at in waiting:
            self._give(found, at)

    def _pick(self, positions: torch.Tensor | None) -> torch.Tensor | None:
        assert self._rows is not None
        if positions is None:
            return None
        flat = positions[0] if positions.dim() > 1 else positions  # several axes: the first is time
        return flat[self._rows.index.to(flat.device)].cpu().long()

    def _start_rows(self) -> None:
        if self._rows is None and self._scheduled is not None:
            self._rows, again, cached = step_rows(self._runner.input_batch, self._scheduled, self._samples, self._seen)
            self.again += again
            self.cached |= {index: count for index, count in cached.items() if index not in self.cached}

    def _asked(self, layer: int) -> bool:
        """Whether a layer's calls show anything that is asked for; the sum before it first shows in its norm."""
        parts = [f"layers.{layer}.{part}" for part in names.LAYER]
        return any(map(self._recorder.wants, [*parts, *([f"layers.{layer - 1}.residual"] if layer else [])]))

    def _taker(self) -> Any:
        rows, padded = self._rows, self._padded
        if rows is None or not len(rows.index) or not padded:
            return None

        def take(tensor: torch.Tensor) -> torch.Tensor | None:
            if tensor.dim() == 0 or tensor.shape[0] % padded:
                return None
            flat = tensor.detach().reshape(padded, -1)
            return flat.index_select(0, rows.index.to(flat.device)).cpu()

        return take

    def _raw(self, kind: str, values: torch.Tensor) -> None:
        if self._scheduled is None or values.is_floating_point():
            return
        if kind == "ids" and values.dim() == 1:
            self._start_rows()
            self._ids, self._padded = values.detach().clone(), len(values)
        elif kind == "positions" and self._rope_positions is None and self._padded == values.shape[-1]:
            self._rope_positions = values.detach().clone()

    # boundaries

    def _begin_layer(self, index: int, name: str, hidden: torch.Tensor | None) -> None:
        if index and not self._asked(index - 1):
            self._stream = None
        if self._in_layers or hidden is None:
            return
        self._in_layers = True
        call = self._embedded
        facts: dict[str, Any] = {"scale": _embedding_scale(self._model)}
        where, modules = name, tuple[Any, ...]()
        if call is not None:
            where, modules = call.where, (call.module,)
            facts = {**facts_of("embedding", call.module), **facts, "scaled": not same(call.left[0], hidden)}
        self._stream = hidden
        self._emit(Found("embedding", where, hidden, [], facts, modules))

    def _end_layer(self, index: int, name: str, calls: list[Call], outputs: list[torch.Tensor]) -> None:
        self._begin_rows()
        try:
            found, strays = place_layer(index, calls, self._stream)
        except Exception as error:  # a layer that is built otherwise must not end the user's engine
            self._strays[name] = f"its calls could not be placed: {type(error).__name__}: {error}"
            self._stream = None
            return
        for one in found:
            self._emit(one)
        for call in strays:
            self._strays.setdefault(call.where, f"its place in a layer is not known ({call.kind})")
        alone = len(outputs) == 1 and self._stream is not None and outputs[0].shape == self._stream.shape
        if alone:
            last = place_output(index, name, outputs[0], found, self._stream)
            self._emit(last)
            self._stream = last.values
        else:
            total = next((one.values for one in found if one.name.endswith("attn_residual")), None)
            self._stream = total if total is not None else self._stream

    def _outside(self, call: Call) -> None:
        if call.kind == "embedding" and not self._in_layers:
            self._embedded = call
        elif call.kind == "norm" and self._in_layers:
            for one in place_end(self._last_layer, [call]):
                self._emit(one)

    def _logits(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        """Place the rows of one call: a slice of the model's output, or each request's last row."""
        rows, output = self._rows, self._hidden
        if rows is None or output is None or not len(rows.index):
            return
        places = _slice_of(hidden, output)
        last = rows.last.to(output.device)
        if places is None and len(hidden) == len(last) and same(output[last], hidden):
            places = rows.last
        if places is None:
            self.unplaced += len(hidden)
            return
        where = {int(place): at for at, place in enumerate(rows.index)}
        kept, source = [], []
        for row, place in enumerate(places.tolist()):
            at = where.get(place)
            if at is not None and self._scores(int(rows.sample[at]), int(rows.position[at])):
                kept.append(at)
                source.append(row)
        if not kept:
            return
        picked = torch.tensor(source, device=logits.device)
        found = Found(
            "logits", "compute_logits", logits.detach()[picked].cpu(), [hidden.detach()[picked].cpu()],
            head_facts(self._model),
        )  # fmt: skip
        self._emit(found, torch.tensor(kept))

    def sources(self, prompts: Sequence[Any], responses: Sequence[Any]) -> dict[int, tuple[int, int | None]]:
        """{sample: (rows that came from the prefix cache, a kept sample of the same ids that computed them)}."""
        found: dict[int, tuple[int, int | None]] = {}
        for index, count in self.cached.items():
            wanted = [*prompts[index], *responses[index]][:count]
            found[index] = (
                count,
                next(
                    (
                        other
                        for other, positions in self._seen.items()
                        if other != index
                        and positions >= set(range(count))
                        and [*prompts[other], *responses[other]][:count] == wanted
                    ),
                    None,
                ),
            )
        return found

    def _scores(self, sample: int, position: int) -> bool:
        prompt, total = self._samples[sample]
        return prompt - 1 <= position < total - 1

    def _emit(self, found: Found, at: torch.Tensor | None = None) -> None:
        self._placed.update(id(module) for module in found.modules)
        if self._waiting is None:
            self._give(found, at)
        else:
            self._waiting.append((found, at))

    def _give(self, found: Found, at: torch.Tensor | None) -> None:
        self.places[found.name] = found.where, found.modules[0] if found.modules else None
        self.shards[found.name] = [
            [shard.mode, shard.start, shard.total] for shard in (found.shard, *found.given_shards)
        ]
        if found.name in self._broken:
            return
        try:
            self._recorder.give(
                found.name, found.values, where=found.where, inputs=found.given, facts=found.facts, at=at,
                every=found.every or None,
            )  # fmt: skip
        except ValueError as error:
            self._broken.add(found.name)
            self._recorder.note(f"{found.name} ends where it changed: {error}")


def _slice_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor | None:
    """The rows of `whole` that `part` is a view of."""
    if part.dim() != 2 or whole.dim() != 2 or part.shape[1] != whole.shape[1] or part.dtype != whole.dtype:
        return None
    if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr() or part.stride() != whole.stride():
        return None
    start = (part.storage_offset() - whole.storage_offset()) // whole.stride(0)
    return torch.arange(start, start + len(part)) if 0 <= start <= len(whole) - len(part) else None


def _embedding_scale(model: Any) -> float | None:
    """The factor on embeddings that a module of the model keeps under one of vLLM's names for it."""
    for module in model.modules():
        for name in ("normalizer", "embed_scale", "embedding_multiplier"):
            value = getattr(module, name, None)
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                return float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None
