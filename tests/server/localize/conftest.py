"""A folder with the model of the fake engines, and a count of what they did."""

from tests.server.live.conftest import here

__all__ = ["here"]
