"""The stand-in's `torch.npu`: one device that is there and does nothing."""

from __future__ import annotations

from typing import Any

from standin.record import names_of


class Stream:
    """A type for annotations."""


class Event:
    """A type for annotations."""


def is_available() -> bool:
    """One device is said to be there, so that the platform plug-in is chosen."""
    return True


def device_count() -> int:
    """One."""
    return 1


def current_device() -> int:
    """The first."""
    return 0


def get_device_name(device: Any = None) -> str:
    """A name that no real device has."""
    return "stand-in (no NPU)"


__getattr__ = names_of("torch.npu")
