"""Importing the MCP SDK quickly: a client asks for the tool list within the first second of our life.

Most of the SDK's import time goes into building pydantic validators for every message of every protocol version and
into garbage collection passes over them. Both can wait: with pydantic's own `defer_build` a validator is built when
its message first arrives, and what is imported lives as long as the process. `benchmarks/serve_start.py` prints the
gain.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside the block, pydantic models are defined without being built, and the garbage collector rests."""
    gc.disable()
    from pydantic import BaseModel, ConfigDict

    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict({**before, "defer_build": True})
    try:
        yield
    finally:
        BaseModel.model_config = before
        gc.freeze()
        gc.enable()
