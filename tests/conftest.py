"""Sharding of the slow suite: whole modules, so that tests which share an engine stay together."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

# A shell starts background jobs with SIGINT ignored, and children inherit that; tests of Ctrl-C need it back.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def launchers_of_this_module_alone() -> Iterator[None]:
    """A process remembers on which kernels its operators ran; the next module's fingerprint must not show them."""
    yield
    devices = sys.modules.get("logdiff_kernels.ops.devices")
    if devices is not None:
        devices._used.clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", help="i/n: run the i-th of n parts of the selected tests")


def _shard(config: pytest.Config) -> tuple[int, int]:
    text = str(config.getoption("--shard"))
    try:
        index, count = (int(part) for part in text.split("/"))
    except ValueError:
        raise pytest.UsageError(f"--shard {text!r} is not of the form i/n, for example 2/8") from None
    if not 1 <= index <= count:
        raise pytest.UsageError(f"--shard {text!r}: i must lie between 1 and n")
    return index, count


def _group(item: pytest.Item) -> str:
    """Tests of one module stay together, unless their mark says `slow(alone=True)`."""
    mark = item.get_closest_marker("slow")
    alone = mark is not None and mark.kwargs.get("alone", False)
    return item.nodeid if alone else item.nodeid.split("::")[0]


def _seconds(item: pytest.Item) -> float:
    mark = item.get_closest_marker("slow")
    return float(mark.kwargs.get("seconds", 60)) if mark is not None else 1.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    index, count = _shard(config)
    if count == 1:
        return
    # `-m` is applied after this hook, so the tests that it will drop must not weigh here.
    if config.getoption("-m") == "slow":
        items[:] = [item for item in items if item.get_closest_marker("slow")]
    weight: dict[str, float] = {}
    for item in items:
        weight[_group(item)] = weight.get(_group(item), 0.0) + _seconds(item)
    load = [0.0] * count
    home: dict[str, int] = {}
    for name in sorted(weight, key=lambda n: (-weight[n], n)):  # longest first, to the emptiest shard
        home[name] = load.index(min(load))
        load[home[name]] += weight[name]
    kept = [item for item in items if home[_group(item)] == index - 1]
    config.hook.pytest_deselected(items=[item for item in items if home[_group(item)] != index - 1])
    items[:] = kept


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A shard may be empty when there are fewer groups than shards; that is not a failure."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and str(session.config.getoption("--shard")) != "1/1":
        session.exitstatus = pytest.ExitCode.OK
