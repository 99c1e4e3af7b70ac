"""A folder with the model of the fake engines."""

from tests.server.live.conftest import here

__all__ = ["here"]
