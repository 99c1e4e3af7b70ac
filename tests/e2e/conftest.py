"""What an engine in the test process must not leave behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def torchs_own_threads() -> Iterator[None]:
    """vLLM's CPU worker replaces `torch.set_num_threads` by a function that does nothing, for good."""
    torch = sys.modules.get("torch")
    before = getattr(torch, "set_num_threads", None)
    yield
    if before is not None:
        sys.modules["torch"].set_num_threads = before
