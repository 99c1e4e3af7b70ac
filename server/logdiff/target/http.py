"""Engine `vllm-http`: a running OpenAI-compatible server, token ids in, ids and log-probabilities out."""

from __future__ import annotations

import difflib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from logdiff.case.files import write_atomic
from logdiff.errors import CancelledError, InputError, LogdiffError
from logdiff.jsonio import dumps
from logdiff.target.engine import EngineSpec, OnProgress, Progress, TaskResult, UnsupportedError
from logdiff.target.http_client import HttpClient, HttpPolicy
from logdiff.target.http_facts import fingerprint
from logdiff.target.http_sequences import order_of, read_input, write_output, write_prompts
from logdiff.target.openai_completions import (
    MAX_ID,
    Scored,
    generate_body,
    read_generated,
    read_rescored,
    rescore_body,
)
from logdiff.target.timeouts import Timeouts

T = TypeVar("T")

REASONS = {
    "force": "a server decodes what it samples: it can't be made to decode given tokens again",
    "weights": "a server does not show its weights, so that they are the trainer's is not measured",
    "reload": "the weights of a running server belong to whoever runs it",
    "decode_text": "token texts come from the train side's tokenizer",
}


@dataclass(frozen=True, slots=True)
class HttpArgs:
    """The `args` of engine `vllm-http`.

    Args:
        url: address of the server, with or without /v1.
        model: name that the server knows; None takes the only one that it serves.
        api_key_env: name of the environment variable that holds the key; the key itself is never written anywhere.
        concurrency: requests in flight, the server's batch size.
        timeout: seconds for one request.
        retries: attempts after the first one.
        max_bytes: largest answer to one request.
    """

    url: str
    model: str | None = None
    api_key_env: str | None = None
    concurrency: int = 64
    timeout: float = 600.0
    retries: int = 5
    max_bytes: int = 256 << 20

    @classmethod
    def parse(cls, args: dict[str, Any]) -> HttpArgs:
        """Check `args`. Raises `InputError` naming the key and the nearest one that exists."""
        kinds: dict[str, tuple[type, ...]] = {
            "url": (str,),
            "model": (str, type(None)),
            "api_key_env": (str, type(None)),
            "concurrency": (int,),
            "timeout": (int, float),
            "retries": (int,),
            "max_bytes": (int,),
        }
        names = [f.name for f in fields(cls)]
        for key, value in args.items():
            if key == "api_key":
                raise InputError(
                    "a key does not belong into a run file",
                    value="api_key",
                    hint="set `api_key_env` to the name of the environment variable that holds it",
                )
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
                hint = (f"did you mean `{near[0]}`? " if near else "") + f"known: {', '.join(names)}"
                raise InputError(f"vllm-http: unknown argument `{key}`", value=key, hint=hint)
            if not isinstance(value, kinds[key]) or isinstance(value, bool):
                raise InputError(f"vllm-http: `{key}` has the wrong type", value=value, hint=f"see `{key}`")
        for key in ("concurrency", "timeout", "max_bytes"):
            if key in args and args[key] <= 0:
                raise InputError(f"vllm-http: `{key}` must be above 0", value=args[key], hint="leave it out")
        if args.get("retries", 0) < 0:
            raise InputError("vllm-http: `retries` must be 0 or more", value=args["retries"], hint="leave it out")
        try:
            url = httpx.URL(args.get("url", ""))
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise InputError("vllm-http: `url` is no http address", value=args.get("url"), hint="http://HOST:PORT")
        if url.userinfo:
            raise InputError("vllm-http: `url` holds a password", value=url.host, hint="use `api_key_env`")
        return cls(**{**args, "url": args["url"].rstrip("/").removesuffix("/v1")})

    def headers(self) -> dict[str, str]:
        """The authorization header. Raises `InputError` where the variable is not set."""
        if self.api_key_env is None:
            return {}
        key = os.environ.get(self.api_key_env)
        if not key:
            raise InputError(
                "vllm-http: the environment variable of `api_key_env` is not set",
                value=self.api_key_env,
                hint=f"export {self.api_key_env}=...",
            )
        return {"Authorization": f"Bearer {key}"}


class HttpEngine:
    """A server behind HTTP with the face of every engine. Start it with `HttpEngine.start`."""

    def __init__(self, args: HttpArgs, spec: EngineSpec, timeouts: Timeouts, cancel: threading.Event | None) -> None:
        self._args = args
        self._spec = spec
        self._timeouts = timeouts
        self._cancelled = cancel or threading.Event()
        self._own_cancel = threading.Event()
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self._policy = HttpPolicy(timeout=args.timeout, retries=args.retries, max_bytes=args.max_bytes)
        self._headers = args.headers()
        self._model = args.model or ""
        self._max_model_len: int | None = None
        self._system_fingerprint: str | None = None

    @classmethod
    def start(
        cls, spec: EngineSpec, *, timeouts: Timeouts | None = None, cancel: threading.Event | None = None
    ) -> HttpEngine:
        """Find the server and its model.

        Raises:
            InputError: a bad argument, a key or model name that the server does not take.
            EngineError: no server there.
        """
        args = HttpArgs.parse(spec.args)
        if spec.modules or spec.env:
            raise InputError(
                "vllm-http: `modules` and `env` can't reach a running server",
                value=spec.modules or sorted(spec.env),
                hint="give them to the server when you start it, or use engine vllm",
            )
        args.headers()
        engine = cls(args, spec, timeouts or Timeouts(), cancel)
        try:
            engine._wait(engine._portal.start_task_soon(engine._connect), engine._timeouts.start)
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the tasks that a server can do."""
        return frozenset({"tokenize", "generate", "rescore", "fingerprint"})

    def run(self, task: dict[str, Any], on_progress: OnProgress | None = None) -> TaskResult:
        """Do one task. Raises as `LocalRunner.run`; a server that is gone is an `EngineError`."""
        name = task["task"]
        work: Callable[[dict[str, Any], OnProgress | None], Coroutine[Any, Any, TaskResult]]
        if name == "generate":
            work = self._generate
        elif name == "rescore":
            temperature = task.get("sampling", {}).get("temperature", 1.0)
            if temperature not in (0.0, 1.0):
                raise UnsupportedError(
                    f"a server's prompt log-probabilities ignore temperature {temperature:g}",
                    value=temperature,
                    hint="rescore through engine vllm, which applies it; without it these pairs are null",
                )
            work = self._rescore
        elif name == "fingerprint":
            work = self._fingerprint
        elif name == "tokenize":
            work = self._tokenize
        else:
            reason = REASONS.get(name, "a server behind HTTP can't do it")
            raise UnsupportedError(f"vllm-http can't do {name}: {reason}", value=name, hint="use engine vllm for it")
        news: SimpleQueue[Progress] = SimpleQueue()
        future = self._portal.start_task_soon(work, task, news.put)
        result: TaskResult = self._wait(future, self._timeouts.task, news, on_progress)
        return result

    def cancel(self) -> None:
        """Give up the running task soon, from any thread."""
        self._own_cancel.set()

    def close(self) -> None:
        """Close the connections. The server itself is left alone. May be called twice."""
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    def _wait(
        self,
        future: Future[T],
        seconds: float,
        news: SimpleQueue[Progress] | None = None,
        on_progress: OnProgress | None = None,
    ) -> T:
        """Wait for the event loop's thread; progress is told from the caller's own."""

        def tell() -> None:
            while news is not None and on_progress is not None and not news.empty():
                on_progress(news.get())

        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    result = future.result(0.2)
                    tell()
                    return result
                except FutureTimeout:
                    if future.done():
                        raise
                tell()
                if self._cancelled.is_set() or self._own_cancel.is_set():
                    raise CancelledError("cancelled", value=self._args.url, hint="run again to resume the case")
                if time.monotonic() > deadline:
                    raise CancelledError(
                        f"the server did not finish within {seconds:g} seconds",
                        value=self._args.url,
                        hint="raise the time limit",
                    )
        except FutureCancelled:
            raise CancelledError("cancelled", value=self._args.url, hint="run again to resume the case") from None
        finally:
            future.cancel()

    def _client(self) -> HttpClient:
        return HttpClient(self._args.url, self._headers, self._policy, self._args.concurrency)

    async def _connect(self) -> None:
        async with self._client() as client:
            listing = await client.call("GET", "/v1/models", retries=2)
        entries = listing.get("data") if isinstance(listing, dict) else None
        entries = entries if isinstance(entries, list) else []
        models = [m for m in entries if isinstance(m, dict) and isinstance(m.get("id"), str) and _sendable(m["id"])]
        names = [m["id"] for m in models]
        if not names:
            raise InputError("the server lists no model", value=self._args.url, hint="is this a model server?")
        if not self._model:
            if len(names) > 1:
                raise InputError(
                    "the server serves several models", value=names, hint="set `args.model` to one of them"
                )
            self._model = names[0]
        if self._model not in names:
            raise InputError(
                f"the server does not serve model {self._model!r}", value=names, hint="set `args.model` to one of them"
            )
        length = next(m.get("max_model_len") for m in models if m["id"] == self._model)
        self._max_model_len = length if type(length) is int else None

    async def _generate(self, task: dict[str, Any], on_progress: OnProgress | None) -> TaskResult:
        source = read_input(Path(task["input"]))
        sampling = {**self._spec.sampling, **task.get("sampling", {})}
        topk = sampling.get("topk", 0)

        async def one(client: HttpClient, index: int) -> Scored:
            prompt = source.prompt(index)
            body = generate_body(self._model, prompt, sampling, index)
            answer = await client.call("POST", "/v1/completions", body)
            return read_generated(answer, prompt, topk)

        scored = await self._each(one, len(source), task, on_progress)
        self._system_fingerprint = next((s.system_fingerprint for s in scored if s.system_fingerprint), None)
        data = write_output(Path(task["output"]), source, scored, "generate", topk)
        return TaskResult({"output": Path(task["output"])}, data)

    async def _rescore(self, task: dict[str, Any], on_progress: OnProgress | None) -> TaskResult:
        source = read_input(Path(task["input"]))
        topk = self._spec.sampling.get("topk", 0)

        async def one(client: HttpClient, index: int) -> Scored:
            prompt, response = source.prompt(index), source.response(index)
            if not response:
                return Scored([], [], [])
            ids, kept = prompt + response, len(prompt) + len(response)
            if self._max_model_len is not None:  # room for the one token that a server always generates
                kept = max(len(prompt), min(kept, self._max_model_len - 1))
            missing = len(ids) - kept
            unscored.append(missing)
            if kept == len(prompt):
                return Scored(response, [None] * missing, [[]] * missing)
            answer = await client.call("POST", "/v1/completions", rescore_body(self._model, ids[:kept], topk))
            scored = read_rescored(answer, ids[:kept], len(prompt), topk)
            return Scored(response, scored.logprobs + [None] * missing, scored.top + [[]] * missing)

        unscored: list[int] = []
        scored = await self._each(one, len(source), task, on_progress)
        data = write_output(Path(task["output"]), source, scored, "rescore", topk)
        if any(unscored):
            data["beyond_max_model_len"] = sum(unscored)
        return TaskResult({"output": Path(task["output"])}, data)

    async def _each(
        self,
        one: Callable[[HttpClient, int], Awaitable[Scored]],
        count: int,
        task: dict[str, Any],
        on_progress: OnProgress | None,
    ) -> list[Scored]:
        """`one` for every sample, at most `batch` (default: `concurrency`) at a time, started in `order`."""
        results: dict[int, Scored] = {}
        limit = anyio.CapacityLimiter(min(task.get("batch") or self._args.concurrency, self._args.concurrency))
        name = str(task.get("id") or task["task"])

        failures: list[LogdiffError] = []

        async def guarded(client: HttpClient, index: int) -> None:
            try:
                async with limit:
                    results[index] = await one(client, index)
                if on_progress is not None:
                    on_progress(Progress(name, len(results), count, "samples"))
            except LogdiffError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with self._client() as client, anyio.create_task_group() as group:
            for index in order_of(task.get("order", "given"), count):
                group.start_soon(guarded, client, index)
        if failures:
            raise failures[0]
        return [results[i] for i in range(count)]

    async def _fingerprint(self, task: dict[str, Any], _: OnProgress | None) -> TaskResult:
        async with self._client() as client:
            document = await fingerprint(
                client,
                model=self._model,
                max_model_len=self._max_model_len,
                system_fingerprint=self._system_fingerprint,
                sampling=self._spec.sampling,
            )
        path = Path(task["output"])
        write_atomic(path, dumps(document, indent=1).encode())
        return TaskResult({"output": path}, {})

    async def _tokenize(self, task: dict[str, Any], on_progress: OnProgress | None) -> TaskResult:
        texts, chat = task["texts"], task.get("chat", False)

        async def one(client: HttpClient, index: int) -> Scored:
            body: dict[str, Any] = {"model": self._model}
            if chat:
                body |= {"messages": [{"role": "user", "content": texts[index]}], "add_generation_prompt": True}
            else:
                body |= {"prompt": texts[index]}
            answer = await client.call("POST", "/tokenize", body, optional=True)
            tokens = answer.get("tokens") if isinstance(answer, dict) else None
            if not isinstance(tokens, list) or any(type(t) is not int or not 0 <= t <= MAX_ID for t in tokens):
                raise UnsupportedError(
                    "the server has no /tokenize", value=self._args.url, hint="give the prompts as token_ids"
                )
            return Scored(tokens, [], [])

        scored = await self._each(one, len(texts), task, on_progress)
        write_prompts(Path(task["output"]), [s.ids for s in scored])
        return TaskResult({"output": Path(task["output"])}, {})


def _sendable(name: str) -> bool:
    """Whether a name can be sent back: JSON can hold text that UTF-8 can't (a lone surrogate)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
