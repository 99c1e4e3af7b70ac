"""JSON over HTTP with retries, a size limit and errors that say what to do."""

from __future__ import annotations

import ipaddress
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import anyio
import httpx

from logdiff.errors import EngineError, InputError, LogdiffError

RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class HttpPolicy:
    """Limits of a client. Every request of this project can be repeated safely, so all are retried.

    Args:
        timeout: seconds for one attempt without a byte from the server.
        connect_timeout: seconds to connect.
        retries: attempts after the first one.
        backoff: first pause in seconds, doubled each time, with full jitter; at most `max_pause`.
        max_bytes: largest answer.
    """

    timeout: float = 600.0
    connect_timeout: float = 10.0
    retries: int = 5
    backoff: float = 0.5
    max_pause: float = 30.0
    max_bytes: int = 256 << 20


class HttpClient:
    """An `httpx.AsyncClient` for one server; use it as an async context manager."""

    def __init__(self, url: str, headers: dict[str, str], policy: HttpPolicy, connections: int) -> None:
        self.url = url
        self._policy = policy
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Accept": "application/json", **headers},
            timeout=httpx.Timeout(policy.timeout, connect=policy.connect_timeout, pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=not _is_loopback(url),  # a proxy never stands between this machine and itself
        )

    async def __aenter__(self) -> HttpClient:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def call(
        self, method: str, path: str, body: Any = None, *, retries: int | None = None, optional: bool = False
    ) -> Any:
        """The decoded JSON answer; None for a missing path when `optional`.

        Raises:
            InputError: 401, 403, 404: key, address or model name are wrong.
            EngineError: no server, another refusal, an answer that is too large or no JSON; after all retries.
        """
        tries = (self._policy.retries if retries is None else retries) + 1
        problem: LogdiffError | None = None
        for attempt in range(tries):
            wait: float | None = None
            try:
                status, headers, data = await self._once(method, path, body)
            except httpx.TimeoutException as error:
                problem = self._dead(f"no answer in time ({type(error).__name__})", path)
            except httpx.TransportError as error:
                problem = self._dead(str(error) or type(error).__name__, path)
            except httpx.DecodingError as error:
                raise EngineError(
                    f"the answer can't be decompressed: {error}",
                    value=f"{self.url}{path}",
                    hint="see the server's log, or the proxy in between",
                ) from None
            except httpx.InvalidURL as error:
                raise InputError(f"bad url: {error}", value=self.url, hint="like http://127.0.0.1:8000") from None
            else:
                if 200 <= status < 300:
                    return self._decode(data, path)
                if status == 404 and optional:
                    return None
                problem = self._refused(status, data, path)
                if status not in RETRY_STATUS:
                    raise problem
                wait = _retry_after(headers)
            if attempt + 1 < tries:
                if wait is None:
                    wait = random.uniform(0.1, 1.0) * self._policy.backoff * 2**attempt
                await anyio.sleep(min(wait, self._policy.max_pause))
        assert problem is not None
        raise problem

    async def _once(self, method: str, path: str, body: Any) -> tuple[int, httpx.Headers, bytes]:
        async with self._client.stream(method, path, json=body) as response:
            data = bytearray()
            async for block in response.aiter_bytes():
                data += block
                if len(data) > self._policy.max_bytes:
                    raise EngineError(
                        f"{self.url}{path} answered with more than {self._policy.max_bytes} bytes",
                        value=len(data),
                        hint="ask for fewer tokens or fewer top log-probabilities",
                    )
            return response.status_code, response.headers, bytes(data)

    def _decode(self, data: bytes, path: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise EngineError(
                f"{self.url}{path} answered with something that is no JSON: {error}",
                value=data[:200].decode("utf-8", "replace"),
                hint="is this an OpenAI-compatible server?",
            ) from None

    def _dead(self, words: str, path: str) -> EngineError:
        return EngineError(
            f"no answer from the server: {words}", value=f"{self.url}{path}", hint="start it, or correct `args.url`"
        )

    def _refused(self, status: int, data: bytes, path: str) -> LogdiffError:
        words = _words(data)
        where = f"{self.url}{path}"
        if status in (401, 403):
            return InputError(
                f"the server wants another key (HTTP {status}): {words}",
                value=where,
                hint="set `args.api_key_env` to the name of the environment variable that holds the key",
            )
        if status == 404:
            return InputError(
                f"the server does not know this path or model (HTTP 404): {words}",
                value=where,
                hint="see `args.url` and `args.model`; GET /v1/models lists the names",
            )
        return EngineError(f"the server refused (HTTP {status}): {words}", value=where, hint="see the server's log")


def _words(data: bytes) -> str:
    """The message of an OpenAI error object, else the beginning of the body."""
    try:
        found = json.loads(data)
        error = found.get("error", found)
        message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        if message:
            return str(message)[:1000]
    except (ValueError, AttributeError, RecursionError):
        pass
    return data[:300].decode("utf-8", "replace") or "no words"


def _retry_after(headers: httpx.Headers, now: Callable[[], float] = time) -> float | None:
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now())
        except (ValueError, OverflowError):
            return None


def _is_loopback(url: str) -> bool:
    try:
        host = httpx.URL(url).host
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except (ValueError, httpx.InvalidURL):
        return False
