"""The vLLM adapter: generation, forced decoding, rescoring, weights, reload and fingerprint of a live engine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logdiff_kernels import frames
from logdiff_kernels.align import budget_mode, parse_switch
from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.engines.settings import Sampling, order_of
from logdiff_kernels.engines.vllm import launch
from logdiff_kernels.engines.vllm.checkpoint_names import checkpoint_shapes
from logdiff_kernels.engines.vllm.plugin import METHOD
from logdiff_kernels.engines.vllm.requests import (
    Job,
    TokenColumns,
    resolved,
    run_jobs,
    sample_seed,
    starts,
)
from logdiff_kernels.engines.vllm.routing import aligned_experts, received_experts
from logdiff_kernels.errors import EngineError, InputError, RunnerError, UnsupportedError
from logdiff_kernels.protocol import Request, plain, required
from logdiff_kernels.sequences import Sequences, build, read, write

_ERRORS = {"InputError": InputError, "EngineError": EngineError, "UnsupportedError": UnsupportedError}
_LOGPROB_MODES = ("raw_logprobs", "processed_logprobs")


def create(request: Request) -> VllmEngine:
    """Start vLLM for a request. Raises `InputError` or `EngineError`; see `launch.start`."""
    return VllmEngine(request, launch.start(request))


class VllmEngine:
    """A running `vllm.LLM`; the adapter face of `engines.base.Adapter`."""

    tasks = frozenset(
        {
            "tokenize",
            "decode_text",
            "generate",
            "force",
            "rescore",
            "weights",
            "fingerprint",
            "reload",
            "realign",
            "dispatch_trace",
            "capture",
            "swap",
        }
    )

    def __init__(self, request: Request, started: launch.Started) -> None:
        self._request = request
        self._started: launch.Started | None = started
        self._model = str(request.model)
        self._effective: dict[str, Any] = {}
        self._repaired: list[str] = []

    @property
    def llm(self) -> Any:
        """The `vllm.LLM`. Raises `EngineError` once it is closed."""
        if self._started is None:
            raise EngineError("the engine is closed", fatal=True)
        return self._started.llm

    @property
    def side(self) -> str:
        """The side that the request names."""
        return self._request.side

    @property
    def model(self) -> str:
        """Folder of the weights that the engine holds."""
        return self._model

    @property
    def config(self) -> Any:
        """vLLM's resolved `VllmConfig`."""
        return self.llm.llm_engine.vllm_config

    @property
    def logprobs_mode(self) -> str:
        """What the engine's log-probabilities mean: raw (before temperature and filters) or processed."""
        return str(self.config.model_config.logprobs_mode)

    def run(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Do one task of docs/architecture.md. Raises a `RunnerError`."""
        work = getattr(self, f"_{task['task']}")
        try:
            output: TaskOutput = work(task, progress)
        except RunnerError:
            raise
        except (ValueError, TypeError) as error:
            raise EngineError(f"vLLM refused: {type(error).__name__}: {error}", hint=frames.hint(error)) from error
        except Exception as error:
            dead = "dead" in type(error).__name__.lower()
            words = f"vLLM failed: {type(error).__name__}: {error}"
            raise EngineError(words, hint=frames.hint(error), fatal=dead) from error
        return output

    def close(self) -> None:
        """End the engine and its processes. May be called twice."""
        started, self._started = self._started, None
        if started is not None:
            launch.stop(started)

    def ask_workers(self, operation: str, **payload: Any) -> list[tuple[Any, bytes]]:
        """Do `operation` of `worker` in every worker. Returns their values in rank order; raises the first error."""
        answers = self.llm.collective_rpc(METHOD, args=(operation, json.dumps(payload)))
        values = []
        for text, blob in answers:
            document = json.loads(text)
            if "error" in document:
                error = document["error"]
                kind = _ERRORS.get(error["type"], EngineError)
                raise kind(error["message"], value=error["value"], hint=error["hint"])
            values.append((document["value"], blob))
        return values

    def _tokenizer(self) -> Any:
        if self._started is None or not self._started.tokenizer:
            raise UnsupportedError(
                "the model folder has no tokenizer", value=self._model, hint="give token ids instead"
            )
        return self.llm.get_tokenizer()

    def _tokenize(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        texts, tokenizer = required(task, "texts", list), self._tokenizer()
        ids: list[list[int]] = []
        for text in texts:
            if task.get("chat"):
                found = tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
                )
            else:
                found = tokenizer.encode(text)
            ids.append([int(token) for token in found])
        names = [str(index) for index in range(len(ids))]
        path = write(required(task, "output", str), build(names, ids, metadata={"task": "tokenize"}))
        return TaskOutput({"sequences": path}, {"samples": len(ids), "tokens": sum(map(len, ids))})

    def _decode_text(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        tokenizer = self._tokenizer()
        tokens = [[tokenizer.decode([int(token)]) for token in ids] for ids in required(task, "ids", list)]
        path = Path(required(task, "output", str))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
        return TaskOutput({"text": path}, {"samples": len(tokens)})

    def _generate(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        source, sampling = read(required(task, "input", str)), self._sampling_of(task)
        self._check_mode()
        self._check_lengths(source)
        jobs = [
            Job(index, prompt, self._params(sampling, index, max_tokens=sampling.max_tokens))
            for index, prompt in enumerate(source.prompts)
        ]
        outputs, experts = self._observed(jobs, task, progress)
        responses = [list(outputs[index].outputs[0].token_ids) for index in range(len(jobs))]
        result = build(source.sample_ids, source.prompts, responses)
        columns = TokenColumns.empty(result.tokens, sampling.topk)
        for index, start in enumerate(starts(responses)):
            columns.fill(start, responses[index], outputs[index].outputs[0].logprobs or [None] * len(responses[index]))
        reasons = [str(outputs[index].outputs[0].finish_reason) for index in range(len(jobs))]
        return self._finish(
            task, source, result, columns, experts, finish={reason: reasons.count(reason) for reason in set(reasons)}
        )

    def _force(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.vllm.observers import FORCE

        source, sampling = read(required(task, "input", str)), self._sampling_of(task)
        self._check_mode()
        responses = source.responses
        jobs = [
            Job(
                index,
                prompt,
                self._params(sampling, index, max_tokens=len(given), ignore_eos=True, extra_args={FORCE: given}),
            )
            for index, (prompt, given) in enumerate(zip(source.prompts, responses, strict=True))
            if given
        ]
        outputs, experts = self._observed(jobs, task, progress, force=True)
        columns = TokenColumns.empty(source.tokens, sampling.topk)
        for index, start in enumerate(starts(responses)):
            if index in outputs:
                decoded = list(outputs[index].outputs[0].token_ids)
                if decoded != responses[index]:
                    raise EngineError(
                        "the engine did not decode the given tokens",
                        value={
                            "sample_id": source.sample_ids[index],
                            "given": len(responses[index]),
                            "got": len(decoded),
                        },
                        hint="prompt and response must fit into max_model_len",
                    )
                columns.fill(start, responses[index], outputs[index].outputs[0].logprobs)
        return self._finish(task, source, source, columns, experts)

    def _rescore(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        source, sampling = read(required(task, "input", str)), self._sampling_of(task)
        self._check_mode()
        responses, limit = source.responses, int(self.config.model_config.max_model_len)
        jobs, unscored, lengthened = [], 0, 0
        scored: dict[int, list[int]] = {}
        for index, (prompt, given) in enumerate(zip(source.prompts, responses, strict=True)):
            whole = [*prompt, *given]
            if len(whole) >= limit:  # vLLM wants room for one more token; the last one stays null
                unscored += len(whole) - (limit - 1)
                whole = whole[: limit - 1]
            if given:
                params = self._params(
                    sampling, index, max_tokens=1, ignore_eos=True, logprobs=None, prompt_logprobs=sampling.topk
                )
                jobs.append(Job(index, whole, params))
                scored[index] = whole
        outputs, experts = self._observed(jobs, task, progress, prompt_scores=self._prompt_scores(sampling))
        columns = TokenColumns.empty(source.tokens, sampling.topk)
        for index, start in enumerate(starts(responses)):
            if index in outputs:
                # An engine that puts ids of its own before or into a prompt reports them too; the response is its end.
                more = len(outputs[index].prompt_token_ids or scored[index]) - len(scored[index])
                lengthened += more != 0
                entries = list(outputs[index].prompt_logprobs[max(0, len(source.prompts[index]) + more) :])
                entries = entries[: len(responses[index])]
                columns.fill(start, responses[index][: len(entries)], entries)
        extra = {"beyond_max_model_len": unscored} if unscored else {}
        extra |= {"prompts_of_other_length": lengthened} if lengthened else {}
        return self._finish(task, source, source, columns, experts, **extra)

    def _prompt_scores(self, sampling: Sampling) -> dict[str, Any] | None:
        """The transform that makes prompt scores mean what this engine's decode log-probabilities mean, if any."""
        if self.logprobs_mode == "raw_logprobs" or sampling.temperature == 0:
            return None
        plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k <= 0
        return (
            None
            if plain
            else {"temperature": sampling.temperature, "top_k": max(0, sampling.top_k), "top_p": sampling.top_p}
        )

    def _sampling_of(self, task: dict[str, Any]) -> Sampling:
        """The request's sampling with the task's on top. Without a seed both runs and repeats draw from 0.

        The temperature is the one that vLLM makes of it: it raises those between 0 and 0.01.
        """
        from vllm import SamplingParams

        merged = {**self._request.sampling, **(task.get("sampling") or {})}
        if merged.get("seed") is None:
            merged["seed"] = 0
        sampling = Sampling.parse(merged)
        return replace(sampling, temperature=float(SamplingParams(temperature=sampling.temperature).temperature))

    def _check_mode(self) -> None:
        if self.logprobs_mode not in _LOGPROB_MODES:
            raise UnsupportedError(
                f"logprobs_mode {self.logprobs_mode} reports logits, not log-probabilities",
                value=self.logprobs_mode,
                hint=f"use one of {', '.join(_LOGPROB_MODES)}",
            )

    def _check_lengths(self, source: Sequences) -> None:
        limit = int(self.config.model_config.max_model_len)
        for name, prompt in zip(source.sample_ids, source.prompts, strict=True):
            if len(prompt) >= limit:
                raise InputError(
                    f"the prompt of sample {name} has {len(prompt)} tokens, and max_model_len is {limit}",
                    value=len(prompt),
                    hint="raise max_model_len in args, or shorten the prompt: one token more must fit",
                )

    def _params(self, sampling: Sampling, index: int, **changes: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        values: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": None if sampling.temperature == 0 else sample_seed(sampling.seed or 0, index),
            "logprobs": sampling.topk,
            "ignore_eos": sampling.ignore_eos,
            "detokenize": False,
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        return SamplingParams(**{**values, **changes})

    def _observed(
        self,
        jobs: Sequence[Job],
        task: dict[str, Any],
        progress: Progress,
        *,
        force: bool = False,
        prompt_scores: dict[str, Any] | None = None,
    ) -> tuple[dict[int, Any], tuple[dict[int, Any], str | None]]:
        """Run jobs with observers. Returns ({index: RequestOutput}, ({index: experts by position}, why none))."""
        order = order_of(len(jobs), str(task.get("order") or "given"))
        ordered = [jobs[place] for place in order]
        batch = task.get("batch")
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise InputError("'batch' must be a positive whole number or null", value=batch)
        if jobs:
            self._note_effective(jobs[0])
        outputs: dict[int, Any] = {}

        def finished(index: int, output: Any) -> None:
            outputs[index] = output
            progress(len(outputs), len(jobs), "sample")

        self.llm.reset_prefix_cache()
        answers = self.ask_workers(
            "observe", force=force, prompt_scores=prompt_scores, experts=bool(task.get("experts", True))
        )
        try:
            progress(0, len(jobs), "sample")
            run_jobs(self.llm, ordered, batch=batch, finished=finished)
        finally:
            seen = self.ask_workers("release")
        return outputs, (received_experts(seen), answers[0][0]["experts"])

    def _note_effective(self, job: Job) -> None:
        params = resolved(self.llm, job.prompt, job.params)
        self._effective = {
            "temperature": float(params.temperature),
            "top_p": float(params.top_p),
            "top_k": int(params.top_k),
            "min_p": float(params.min_p),
            "repetition_penalty": float(params.repetition_penalty),
            "presence_penalty": float(params.presence_penalty),
            "frequency_penalty": float(params.frequency_penalty),
            "stop_token_ids": sorted(params.all_stop_token_ids),
        }

    def _finish(
        self,
        task: dict[str, Any],
        source: Sequences,
        result: Sequences,
        columns: TokenColumns,
        experts: tuple[dict[int, Any], str | None],
        **extra: Any,
    ) -> TaskOutput:
        """Write the sequence file of a task."""
        found, reason = experts
        sampling = self._sampling_of(task)
        processed = self.logprobs_mode == "processed_logprobs"
        data = {
            "samples": len(result),
            "tokens": result.tokens,
            "null": int(columns.null.sum()),
            "logprobs_mode": self.logprobs_mode,
            "temperature_applied": sampling.scored_temperature if processed else 1.0,
            "experts": reason or "captured",
            **extra,
        }
        per_token = columns.as_columns()
        if reason is None:
            per_token["experts"] = aligned_experts(found, source.prompts, result.responses)
        metadata = {
            "task": task["task"],
            "step": source.metadata.get("step", 0),
            "sampling": sampling.as_dict(),
            **data,
        }
        sequences = build(result.sample_ids, result.prompts, result.responses, columns=per_token, metadata=metadata)
        return TaskOutput({"sequences": write(required(task, "output", str), sequences)}, data)

    def _weights(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.vllm.checksums import merge_ranks

        shapes = checkpoint_shapes(self._model)
        model_config = self.config.model_config
        ranks = [value for value, _ in self.ask_workers("weights", names=shapes)]
        report = merge_ranks(
            ranks,
            shapes,
            tied=bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False)),
            quantization=model_config.quantization,
        )
        path = report.write(required(task, "output", str))
        return TaskOutput(
            {"weights": path}, {"tensors": len(report.tensors), "not_covered": len(report.as_dict()["not_covered"])}
        )

    def _realign(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Switch aligned operators on and off in place; the engine must have been started in budget mode."""
        wanted = parse_switch(task.get("ops", "all"))
        begin = time.monotonic()
        ranks = [value for value, _ in self.ask_workers("realign", ops=sorted(wanted))]
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM could not reset its prefix cache after the switch", fatal=True)
        data = {**ranks[0], "bytes": sum(rank["bytes"] for rank in ranks)}
        return TaskOutput({}, {**data, "seconds": round(time.monotonic() - begin, 3)})

    def _reload(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        path = required(task, "path", str)
        if budget_mode():
            raise UnsupportedError("an engine in budget mode keeps the raw weights of its start", value=path)
        if not Path(path).is_dir() or not checkpoint_shapes(path):
            raise InputError("no weights to load", value=path, hint="a folder with safetensors files")
        shapes, repair, repaired = checkpoint_shapes(path), bool(task.get("repair", True)), set[str]()
        if repair:
            repaired |= {name for value, _ in self.ask_workers("prepare_reload") for name in value}
        try:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
        except Exception as error:  # the model is half on the meta device now
            raise EngineError(
                f"vLLM's reload_weights failed: {type(error).__name__}: {error}",
                value=path,
                hint="start the engine again with the new weights",
                fatal=True,
            ) from error
        if repair:
            try:
                answers = self.ask_workers("finish_reload", folder=path, names=shapes)
            except RunnerError as error:  # old and new weights are mixed in memory now
                error.fatal = True
                raise
            repaired |= {name for value, _ in answers for name in value}
        if not self.llm.reset_prefix_cache():
            raise EngineError("vLLM could not reset its prefix cache after the reload", value=path)
        self._model, self._repaired = path, sorted(repaired)
        return TaskOutput(data={"path": path, "repaired": self._repaired})

    def _fingerprint(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.vllm.fingerprint import fingerprint

        assert self._started is not None
        workers = [value for value, _ in self.ask_workers("describe")]
        if not self._effective:
            self._note_effective(Job(0, [0], self._params(self._sampling_of(task), 0)))
        document = plain(fingerprint(self._request, self._started, workers, self._effective, self._repaired))
        path = Path(required(task, "output", str))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
        return TaskOutput({"fingerprint": path}, {})

    def _dispatch_trace(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.vllm.tracing import trace_engine

        return trace_engine(self, task, progress)

    def _capture(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.vllm.boundaries.task import capture_engine

        return capture_engine(self, task, progress)

    def _swap(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.vllm.boundaries.task import swap_operator

        return swap_operator(self, task)
