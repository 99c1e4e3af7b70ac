"""Where an engine failed: the innermost frames of its own code in a traceback, few and short."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

MOST = 3
"""Frames that are told."""

LONGEST = 160
"""Characters of one frame."""

_TOLD = 400
_OURS = str(Path(__file__).resolve().parent)
_STDLIB = str(Path(sysconfig.get_paths()["stdlib"]).resolve())


def places(error: BaseException, most: int = MOST) -> list[str]:
    """["file:line in function"] of an error's traceback, the innermost first.

    Frames of torch, of the standard library and of this package are left out: they pass calls on. Files of installed
    packages are named from their package on.
    """
    return _places(error.__traceback__)[:most]


def _places(start: TracebackType | None) -> list[str]:
    found = []
    for frame, line in traceback.walk_tb(start):
        code = frame.f_code
        shown = _shown(code.co_filename)
        if shown is not None:
            name = getattr(code, "co_qualname", code.co_name)[-LONGEST // 2 :]
            found.append(f"{shown[-LONGEST // 2 :]}:{line} in {name}"[:LONGEST])
    return found[::-1]


def _shown(file: str) -> str | None:
    """A frame's file as it is told; None for one that is left out."""
    if file.startswith("<"):
        return None
    path = str(Path(file).resolve())
    for home in ("/site-packages/", "/dist-packages/"):
        if home in path and not path.startswith(_OURS):
            inner = path.rpartition(home)[2]
            return None if inner.startswith(("torch/", "torch.")) else inner
    return None if path.startswith((_OURS + "/", _STDLIB + "/")) else path


def words(error: BaseException) -> str:
    """The error's type and its own words, bounded."""
    text = f"{type(error).__name__}: {error}" if str(error) else repr(error)
    return text if len(text) <= _TOLD else text[:_TOLD] + "..."


def hint(error: BaseException) -> str:
    """A sentence for an error's hint; "" where no frame is the engine's."""
    found = places(error)
    return f"raised at {', called from '.join(found)}" if found else ""
