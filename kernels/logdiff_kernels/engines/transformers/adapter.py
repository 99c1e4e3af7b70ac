"""The adapter of the engines `transformers` and `transformers-generate`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff_kernels import sequences as files
from logdiff_kernels.align import AlignSpec, from_environment, parse_switch
from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.engines.settings import Sampling, order_of
from logdiff_kernels.engines.transformers.settings import DEFAULT_BATCH, Score
from logdiff_kernels.errors import EngineError, InputError
from logdiff_kernels.protocol import Request, plain, required

if TYPE_CHECKING:
    from logdiff_kernels.engines.transformers.layout import Expect
    from logdiff_kernels.engines.transformers.scorer import Scorer

_TRAIN = frozenset(
    {"tokenize", "decode_text", "score", "weights", "fingerprint", "update", "realign", "dispatch_trace", "capture"}
)
_ROLLOUT = frozenset(
    {
        *("tokenize", "decode_text", "generate", "force", "rescore", "score"),
        *("weights", "fingerprint", "reload", "realign", "dispatch_trace", "capture"),
    }
)


def create(request: Request) -> TransformersAdapter:
    """Load the model of a request. Raises `InputError` or `EngineError`."""
    return TransformersAdapter(request)


class TransformersAdapter:
    """One loaded model.

    As `transformers` on the rollout side, tokens are sampled by KV-cache decoding and their log-probabilities come
    from one teacher-forced scoring forward in the layout of the request's `score`; as `transformers-generate` they are
    those of the decode steps themselves.
    """

    def __init__(self, request: Request) -> None:
        from logdiff_kernels.engines.transformers.loading import load
        from logdiff_kernels.engines.transformers.text import Text

        assert request.model is not None
        self._request = request
        self._score = Score.parse(request.score)
        self._sampling = Sampling.parse(request.sampling)
        self._decodes = request.engine == "transformers-generate"
        self.tasks = _ROLLOUT if request.side == "rollout" else _TRAIN
        if request.side == "train" and self._decodes:
            raise InputError("transformers-generate is a rollout engine", value=request.side, hint="transformers")
        spec = from_environment(request.side)
        self._loaded = load(request.model, request.dtype, request.args)
        self._model = self._loaded.model
        self._handle = _aligned(self._model, spec) if spec is not None else None
        self._aligned_logprob = spec is not None and "logprob" in spec
        self._filler, self._ends = _special_ids(self._model)
        self._scorer = self._new_scorer()
        self._text = Text(self._loaded.folder, trust_remote_code=bool(request.args.get("trust_remote_code")))

    def run(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Do one task of docs/architecture.md."""
        actions = {
            "tokenize": self._tokenize,
            "decode_text": self._decode_text,
            "generate": self._generate,
            "force": self._force,
            "rescore": self._rescore,
            "score": self._rescore,
            "weights": self._weights,
            "fingerprint": self._fingerprint,
            "update": self._update,
            "reload": self._reload,
            "realign": self._realign,
            "capture": self._capture,
            "dispatch_trace": self._dispatch_trace,
        }
        return actions[task["task"]](task, progress)

    def close(self) -> None:
        """Let go of the model."""
        if self._handle is not None:
            self._handle.restore()
        self._model = None
        self._loaded.model = None

    def _tokenize(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        texts = required(task, "texts", list)
        ids = self._text.encode(texts, chat=bool(task.get("chat", False)))
        names = task.get("sample_ids") or [str(i) for i in range(len(ids))]
        found = files.build(names, ids, metadata={"task": "tokenize"})
        path = files.write(required(task, "output", str), found)
        return TaskOutput({"sequences": path}, {"samples": len(ids), "tokens": sum(map(len, ids))})

    def _decode_text(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        path = Path(required(task, "output", str))
        strings = self._text.decode(required(task, "ids", list))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(strings, ensure_ascii=False), encoding="utf-8")
        return TaskOutput({"text": path}, {"samples": len(strings)})

    def _generate(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.transformers import decoder
        from logdiff_kernels.engines.transformers.scorer import check_ids

        given = files.read(required(task, "input", str))
        sampling = self._sampling_of(task)
        _no_empty(given)
        check_ids(self._model, given.prompts)
        batch = self._batch(task)
        ends = frozenset() if sampling.ignore_eos else self._ends
        rules = self._rules(ends, sampling)
        counter = _Counter(progress, len(given) * sampling.max_tokens)
        begin = time.monotonic()
        decoded = decoder.sample(self._model, given.sample_ids, given.prompts, sampling, rules, batch, counter.add)
        finish = [result.finish for result in decoded]
        data: dict[str, Any] = {
            "batch": batch,
            "finish": {kind: finish.count(kind) for kind in sorted(set(finish))},
            "seconds": round(time.monotonic() - begin, 3),
            "logprobs_mode": self._logprobs_mode(sampling),
        }
        responses = [result.tokens for result in decoded]
        if self._decodes:
            columns = decoder.columns_of(decoded)
        else:
            columns, data["scoring"] = self._scores(given.prompts, responses, task, sampling, progress)
        return self._written(task, given, responses, columns, sampling, data)

    def _force(self, task: dict[str, Any], progress: Progress, expect: Expect | None = None) -> TaskOutput:
        if not self._decodes:
            return self._rescore(task, progress, expect)
        from logdiff_kernels.engines.transformers import decoder
        from logdiff_kernels.engines.transformers.scorer import check_ids

        given = files.read(required(task, "input", str))
        sampling = self._sampling_of(task)
        _no_empty(given)
        check_ids(self._model, given.prompts, given.responses)
        batch = self._batch(task)
        rules = self._rules(frozenset(), sampling)
        counter = _Counter(progress, given.tokens)
        order = order_of(len(given), str(task.get("order") or "given"))
        decoded = decoder.follow(self._model, given.prompts, given.responses, order, rules, batch, counter.add, expect)
        data = {"batch": batch, "logprobs_mode": self._logprobs_mode(sampling)}
        return self._written(task, given, given.responses, decoder.columns_of(decoded), sampling, data)

    def _rescore(self, task: dict[str, Any], progress: Progress, expect: Expect | None = None) -> TaskOutput:
        given = files.read(required(task, "input", str))
        sampling = self._sampling_of(task)
        columns, facts = self._scores(given.prompts, given.responses, task, sampling, progress, expect)
        return self._written(task, given, given.responses, columns, sampling, facts)

    def _scores(
        self,
        prompts: list[list[int]],
        responses: list[list[int]],
        task: dict[str, Any],
        sampling: Sampling,
        progress: Progress,
        expect: Expect | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        settings = {**self._request.score, **(task.get("score") or {})}
        if task.get("batch") is not None:
            settings["micro_batch_size"] = task["batch"]
        scores = self._scorer.score(
            prompts,
            responses,
            Score.parse(settings),
            temperature=sampling.scored_temperature,
            progress=progress,
            order=order_of(len(prompts), str(task.get("order") or "given")),
            topk=sampling.topk,
            expect=expect,
        )
        return scores.columns, scores.facts

    def _capture(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.transformers.boundaries.capture import capture

        def run(inner: dict[str, Any], expect: Expect) -> TaskOutput:
            decode = task["phase"] == "decode" and self._request.side == "rollout"
            kind = "force" if decode else "score" if task["phase"] == "score" else "rescore"
            action = self._force if decode else self._rescore
            return action({**inner, "task": kind}, progress, expect)

        facts = {"engine": str(self._request.engine), "side": self._request.side, "model": str(self._loaded.folder)}
        return capture(task, self._model, run, {**facts, "dtype": self._loaded.dtype})

    def _realign(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Run exactly the operators of `ops` aligned from here on; the model is stock after an error."""
        from logdiff_kernels.engines.transformers.align.switching import switch

        begin = time.monotonic()
        wanted = parse_switch(task.get("ops", "all"))
        previous, self._handle, self._aligned_logprob = self._handle, None, False
        try:
            self._handle, data = switch(self._model, previous, wanted)
            self._aligned_logprob = "logprob" in wanted
        finally:
            self._scorer = self._new_scorer()
        return TaskOutput({}, {**data, "seconds": round(time.monotonic() - begin, 3)})

    def _weights(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.transformers.tensors import weights_report

        report = weights_report(self._model, progress)
        path = report.write(required(task, "output", str))
        return TaskOutput({"weights": path}, {"tensors": len(report.tensors), "not_covered": len(report.not_covered)})

    def _fingerprint(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.transformers import dispatch as home
        from logdiff_kernels.engines.transformers.facts import engine_facts
        from logdiff_kernels.observe.dispatch import brief
        from logdiff_kernels.observe.fingerprint import fingerprint

        sampling = self._sampling_of(task)
        facts = engine_facts(self._loaded, self._request, self._score, sampling)
        facts["effective"]["logprobs_mode"] = self._logprobs_mode(sampling)
        facts["eos_token_ids"] = sorted(self._ends)
        if self._handle is not None:
            facts["aligned"] = self._handle.report()
            facts["patched"] = [{"target": name, "why": "aligned operators"} for name in self._handle.patched()]
        facts |= self._text.facts()
        parts = [*home.MODULES, *home.model_modules(str(self._loaded.folder))]
        facts["dispatch"] = {"ranks": [brief(home.PACKAGE, parts, home.registries())]}
        path = Path(required(task, "output", str))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plain(fingerprint(facts)), indent=1), encoding="utf-8")
        return TaskOutput({"fingerprint": path}, {})

    def _update(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.engines.transformers.update import policy_gradient_step, save_checkpoint

        given = files.read(required(task, "input", str))
        target = Path(required(task, "output", str))
        facts = policy_gradient_step(
            self._model,
            given.prompts,
            given.responses,
            lr=float(task.get("lr", 1e-4)),
            seed=int(task.get("seed", 0)),
            micro_batch_size=self._score.micro_batch_size,
            filler=self._filler,
            progress=progress,
        )
        save_checkpoint(self._model, self._loaded.folder, target)
        return TaskOutput({"model": target}, facts)

    def _reload(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        """Load a checkpoint through `from_pretrained` and put its values into the living model, patches kept."""
        from logdiff_kernels.engines.transformers.loading import load

        folder = required(task, "path", str)
        fresh = load(folder, self._request.dtype, self._request.args)
        try:
            self._model.load_state_dict(fresh.model.state_dict())
        except RuntimeError as error:
            raise EngineError(f"the checkpoint does not fit the running model: {error}", value=folder) from error
        self._loaded.notes = fresh.notes
        return TaskOutput({}, {"path": folder})

    def _dispatch_trace(self, task: dict[str, Any], progress: Progress) -> TaskOutput:
        from logdiff_kernels.coverage import dispatch
        from logdiff_kernels.engines.dispatching import sequences
        from logdiff_kernels.engines.transformers import decoder, tracing

        prompts = sequences(self._model.config.get_text_config(decoder=True).vocab_size)
        rows, sampling = len(prompts), self._sampling_of({})

        def quiet(done: int, total: int | None = None, unit: str = "", message: str = "") -> None:
            """The passes of a trace are reported, not their tokens."""

        def responses(tokens: int) -> list[list[int]]:
            return [ids[:tokens] for ids in prompts]

        def generate(tokens: int) -> None:
            names, wanted = [str(i) for i in range(rows)], replace(sampling, max_tokens=tokens, ignore_eos=True)
            decoder.sample(self._model, names, prompts, wanted, self._rules(frozenset(), wanted), rows, quiet)

        def score(tokens: int) -> None:
            self._scores(prompts, responses(tokens), {"batch": rows}, sampling, quiet)

        def gradients(tokens: int) -> None:
            tracing.backward(self._model, prompts, responses(tokens), rows, self._filler)

        runs = {"score": score}
        runs |= {"generate": generate} if "generate" in self.tasks else {"backward": gradients}
        request, folder = self._request, str(self._loaded.folder)

        def table() -> dict[str, Any]:
            return dispatch(str(request.engine), request.side, folder)

        return tracing.trace_model(self._model, task, runs, self._handle is not None, table, progress)

    def _new_scorer(self) -> Scorer:
        from logdiff_kernels.engines.transformers.scorer import Scorer

        return Scorer(self._model, self._filler, aligned=self._aligned_logprob)

    def _sampling_of(self, task: dict[str, Any]) -> Sampling:
        given = task.get("sampling")
        if not given:
            return self._sampling
        merged = {**self._request.sampling, **given}
        if merged.get("seed") is None:
            merged["seed"] = self._sampling.seed
        return Sampling.parse(merged)

    def _batch(self, task: dict[str, Any]) -> int:
        batch = task.get("batch")
        if batch is None:
            batch = self._request.score.get("micro_batch_size", DEFAULT_BATCH)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise InputError("batch must be a whole number of 1 or more", value=batch)
        return batch

    def _logprobs_mode(self, sampling: Sampling) -> str:
        """Temperature is in the log-probabilities, a top-k or top-p cut is not."""
        return "temperature_scaled_logprobs" if sampling.truncates else "processed_logprobs"

    def _rules(self, ends: frozenset[int], sampling: Sampling) -> Any:
        from logdiff_kernels.engines.transformers.decoder import DecodeRules

        return DecodeRules(self._filler, ends, sampling.topk, sampling.scored_temperature, self._aligned_logprob)

    def _written(
        self,
        task: dict[str, Any],
        given: files.Sequences,
        responses: list[list[int]],
        columns: dict[str, Any],
        sampling: Sampling,
        data: dict[str, Any],
    ) -> TaskOutput:
        metadata = {  # what the input file says of itself is not true of this one
            "task": task["task"],
            "step": given.metadata.get("step", 0),
            "sampling": sampling.as_dict(),
            "logprobs_mode": self._logprobs_mode(sampling),
        }
        found = files.build(given.sample_ids, given.prompts, responses, columns=columns, metadata=metadata)
        path = files.write(required(task, "output", str), found)
        return TaskOutput({"sequences": path}, {"samples": len(given), "tokens": found.tokens, **data})


def _aligned(model: Any, spec: AlignSpec) -> Any:
    from logdiff_kernels.engines.transformers.align import apply

    return apply(model, spec)


class _Counter:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total, "token")


def _no_empty(given: files.Sequences) -> None:
    for name, prompt in zip(given.sample_ids, given.prompts, strict=True):
        if not prompt:
            raise InputError(f"the prompt of sample {name} is empty", value=name, hint="one token id at least")


def _special_ids(model: Any) -> tuple[int, frozenset[int]]:
    """(filler for padding, ids that end a response) as the generation and model configuration say."""
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]

    def first(name: str) -> Any:
        return next((v for c in configs if c is not None and (v := getattr(c, name, None)) is not None), None)

    ends = first("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, (list, tuple)) else [ends]
    pad = first("pad_token_id")
    return int(pad if pad is not None and pad >= 0 else ends[0] if ends else 0), frozenset(int(e) for e in ends)
