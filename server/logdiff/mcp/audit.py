"""The audit log: one JSON line per tool call, append-only, below `runs/` of the workspace."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp.server.context import ServerRequestContext

from logdiff import __version__

FILE = ".logdiff-mcp.jsonl"


class AuditLog:
    """Middleware that writes who called which tool with what (as a digest), how it ended and how long it took."""

    def __init__(self, runs: Path) -> None:
        self.file = runs / FILE
        self._lock = threading.Lock()
        self._warned = False

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: Callable[[ServerRequestContext[Any, Any]], Awaitable[Any]]
    ) -> Any:
        """Let the message through; log it when it is a tool call."""
        if ctx.method != "tools/call":
            return await call_next(ctx)
        started = time.time()
        outcome = "cancelled"
        try:
            result = await call_next(ctx)
            outcome = "error" if _is_error(result) else "ok"
            return result
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self._append(self._entry(ctx, started, outcome))

    def _entry(self, ctx: ServerRequestContext[Any, Any], started: float, outcome: str) -> dict[str, Any]:
        params = ctx.params or {}
        arguments = json.dumps(params.get("arguments") or {}, sort_keys=True, default=str)
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "client": _client(ctx),
            "tool": _clean(str(params.get("name"))),
            "arguments_sha256": hashlib.sha256(arguments.encode()).hexdigest(),
            "outcome": outcome,
            "ms": round((time.time() - started) * 1000),
            "logdiff": __version__,
        }

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        try:
            with self._lock:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                try:
                    os.write(descriptor, line)
                finally:
                    os.close(descriptor)
        except OSError as error:
            if not self._warned:
                self._warned = True
                sys.stderr.write(f"logdiff: audit log can't be written: {error}\n")


def _is_error(result: Any) -> bool:
    if isinstance(result, dict):
        return bool(result.get("isError") or result.get("is_error"))
    return bool(getattr(result, "is_error", False))


def _client(ctx: ServerRequestContext[Any, Any]) -> str:
    info = getattr(ctx.session, "client_info", None) or getattr(
        getattr(ctx.session, "client_params", None), "client_info", None
    )
    return _clean(f"{info.name} {info.version}") if info is not None else "unknown"


def _clean(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:100]
