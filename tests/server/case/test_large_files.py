"""Files far larger than memory stream through, and a kill at any moment loses nothing that was whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from logdiff.case import Case
from logdiff.case.batch import PairMeta
from logdiff.case.importing import import_case
from logdiff.case.readers import read_pairs, write_pairs

from benchmarks.readers import synthetic_batches
from tests.server.case.strategies import samples_of

_READ = """
import sys
from logdiff.case.readers import read_pairs
from logdiff.errors import InputError
tokens, words = 0, ""
try:
    for batch in read_pairs([sys.argv[1]])[1]:
        tokens += batch.tokens
except InputError as error:
    words = error.message
print(tokens)
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024)
print(words)
"""


def read_in_child(path: Path) -> tuple[int, int, str]:
    """Tokens read, peak resident MiB of the child, error."""
    out = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True).stdout
    tokens, peak, words = out.split("\n", 2)
    return int(tokens), int(peak), words.strip()


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for path in tmp_path.iterdir():
        if path.is_file():
            path.unlink()  # pytest keeps folders of its last runs; not these gigabytes


def grow(path: Path, size: int) -> int:
    """Write a pair file of at least `size` bytes by repeating a block of samples; the number of tokens."""
    block = write_pairs(path.with_name("block.jsonl"), PairMeta(), synthetic_batches(200_000)).read_bytes()
    header, samples = block.split(b"\n", 1)
    times = -(-size // len(samples))
    with path.open("wb") as handle:
        handle.write(header + b"\n")
        for _ in range(times):
            handle.write(samples)
    return times * 200_000


def test_memory_does_not_grow_with_the_file(folder):
    small, large = folder / "small.jsonl", folder / "large.jsonl"
    tokens = [grow(small, 10 << 20), grow(large, 80 << 20)]
    (read_small, peak_small, _), (read_large, peak_large, _) = read_in_child(small), read_in_child(large)
    assert [read_small, read_large] == tokens
    assert peak_large < peak_small + 40


def test_a_row_group_larger_than_a_batch_is_read_by_pages(folder):
    import pyarrow.parquet as pq

    path = write_pairs(folder / "a.parquet", PairMeta(), synthetic_batches(2_000_000))
    pq.write_table(pq.read_table(path), folder / "one.parquet", row_group_size=1 << 30)
    assert pq.ParquetFile(folder / "one.parquet").num_row_groups == 1
    _, batches = read_pairs([folder / "one.parquet"])
    sizes = [b.tokens for b in batches]
    assert sum(sizes) == 2_000_000
    assert max(sizes) <= 1 << 18
    assert read_in_child(folder / "one.parquet")[1] < 400


@pytest.mark.slow(seconds=150)
def test_five_gigabytes_stream_in_less_than_one(folder):
    tokens = grow(folder / "big.jsonl", 5_000_000_000)
    read, peak, words = read_in_child(folder / "big.jsonl")
    assert words == ""
    assert read == tokens
    assert peak < 1000


@pytest.mark.slow(seconds=20)
def test_one_line_of_two_gigabytes_ends_in_an_error_that_names_it(folder):
    path = folder / "line.jsonl"
    with path.open("wb") as handle:
        handle.write(b'{"format": "logdiff-pair/1", "meta": {}}\n{"sample_id": "')
        handle.truncate(2_000_000_000)  # the rest is a hole of zero bytes
    tokens, peak, words = read_in_child(path)
    assert tokens == 0
    assert "line 2 is longer than 67108864 bytes" in words
    assert peak < 1000


_IMPORT = """
import sys
from logdiff.case.importing import import_case
import_case("pair", [sys.argv[1]], sys.argv[2])
"""


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_an_import_killed_at_any_moment_is_made_whole_in_place(tmp_path, fraction):
    path = write_pairs(tmp_path / "a.jsonl", PairMeta({"model": "m"}), synthetic_batches(200_000, seed=1))

    def start(case: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _IMPORT, str(path), str(case)])

    # How long it takes from the first sign of the case on, so that kills fall into the writing.
    case = tmp_path / "case"
    reference = tmp_path / "reference"
    with start(reference) as child:
        begin = _wait_for(reference / "manifest.json", child)
        assert child.wait(60) == 0
        seconds = time.monotonic() - begin
    with start(case) as child:
        _wait_for(case / "manifest.json", child)
        time.sleep(seconds * fraction)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    expected = samples_of(list(read_pairs([path])[1]))
    opened = Case.open(case)
    if opened.missing():
        assert not opened.is_complete
    else:  # all is written, sealed or about to be
        assert samples_of(list(opened.batches())) == expected
    if not opened.is_complete:
        assert import_case("pair", [path], case).is_complete
    assert samples_of(list(Case.open(case).batches())) == expected
    assert json.loads((case / "meta.json").read_text()) == {"model": "m"}
    assert list(case.glob(".*.tmp")) == []


def _wait_for(path: Path, child: subprocess.Popen[bytes]) -> float:
    end = time.monotonic() + 60
    while not path.exists():
        assert child.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    return time.monotonic()
