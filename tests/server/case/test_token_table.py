"""The token table keeps every bit, in bounded memory, and knows when it is broken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logdiff.case import Case
from logdiff.case.batching import concat_batches, rebatch
from logdiff.errors import CaseError

from tests.server.case.conftest import make_rich_batch
from tests.server.case.strategies import pair_batches, samples_of

_relaxed = settings(max_examples=35, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_relaxed
@given(st.lists(pair_batches(), max_size=4), st.integers(1, 12))
def test_what_is_written_is_read_back_bit_for_bit(batches, target):
    with tempfile.TemporaryDirectory() as folder:
        case = Case.create(Path(folder) / "case", "n", "import", {})
        with case.open_writer() as writer:
            writer._target = target
            for batch in batches:
                writer.append(batch)
        assert samples_of(list(case.batches())) == samples_of(batches)
        assert samples_of(list(case.batches(max_tokens=3))) == samples_of(batches)
        case.close()


@_relaxed
@given(st.lists(pair_batches(), max_size=5), st.integers(1, 9))
def test_rebatching_keeps_samples_and_bounds_tokens(batches, limit):
    out = list(rebatch(batches, limit))
    assert samples_of(out) == samples_of(batches)
    assert all(b.tokens <= limit or b.samples == 1 for b in out)
    if batches:
        assert samples_of([concat_batches(batches)]) == samples_of(batches)


def test_rows_of_a_batch_stand_side_by_side(tmp_path, small_batch):
    case = Case.create(tmp_path / "case", "n", "import", {})
    with case.open_writer() as writer:
        writer.append(small_batch)
    table = pq.read_table(case.path / "tokens.parquet")
    assert table.column_names[:8] == ["sample_id", "step", "rank", "side", "position", "token_id", "logprob", "mask"]
    assert table["side"].to_pylist() == ["rollout"] * 5 + ["train"] * 5
    assert table["position"].to_pylist() == [0, 1, 2, 0, 1] * 2
    assert table["sample_id"].to_pylist() == (["a"] * 3 + ["b"] * 2) * 2
    assert table["token_id"].to_pylist() == [5, 6, 7, 8, 9] * 2
    rollout = table["logprob"].to_pylist()[:5]
    assert rollout[:2] == [np.float32(-0.1), -1.0]
    assert rollout[4] is None


def test_a_table_cut_off_is_named(tmp_path, small_batch):
    case = Case.create(tmp_path / "case", "n", "import", {})
    with case.open_writer() as writer:
        writer.append(small_batch)
    path = case.path / "tokens.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CaseError, match=r"tokens\.parquet.*cut off"):
        list(case.batches())
    assert any("tokens.parquet" in words and "cut off" in words for words in case.missing())


def test_a_writer_that_fails_leaves_the_earlier_table(tmp_path, small_batch):
    case = Case.create(tmp_path / "case", "n", "import", {})
    with case.open_writer() as writer:
        writer.append(small_batch)

    def fails():
        with case.open_writer() as writer:
            writer.append(small_batch)
            writer.append(small_batch)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert samples_of(list(case.batches())) == samples_of([small_batch])
    assert [p.name for p in case.path.iterdir() if p.name.endswith(".tmp")] == []


def test_a_new_table_without_topk_drops_the_old_topk(tmp_path, small_batch, rich_batch):
    case = Case.create(tmp_path / "case", "n", "import", {})
    for batch in (rich_batch, small_batch):
        with case.open_writer() as writer:
            writer.append(batch)
    assert not (case.path / "topk.parquet").exists()
    assert samples_of(list(case.batches())) == samples_of([small_batch])


_KILLED = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from logdiff.case import Case
from logdiff.case.batch import PairMeta
from tests.server.case.conftest import make_small_batch
case = Case.create(sys.argv[1], "n", "import", {})
case.write_meta(PairMeta({"model": "m"}))
writer = case.open_writer()
for _ in range(3):
    writer.append(make_small_batch())
    writer._flush()
case.journal.append("half")
with open(case.path / "journal.jsonl", "a") as journal:
    journal.write('{"time": "2026", "eve')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_while_writing_leaves_a_case_that_says_what_is_missing(tmp_path, small_batch):
    path = tmp_path / "case"
    code = subprocess.run([sys.executable, "-c", _KILLED, str(path)], timeout=60, check=False).returncode
    assert code == -signal.SIGKILL
    case = Case.open(path)
    assert not case.is_complete
    words = " | ".join(case.missing())
    assert "tokens.parquet: writing was cut off" in words
    assert "samples.parquet: writing was cut off" in words
    assert "half a line" in words
    assert [e["event"] for e in case.journal.read()] == ["created", "half"]
    with pytest.raises(CaseError, match="can't be sealed"):
        case.seal()
    # The lock went with the process, and the work can be done again.
    with case.open_writer() as writer:
        writer.append(small_batch)
    case.journal.append("resumed")
    assert [e["event"] for e in case.journal.read()] == ["created", "half", "resumed"]
    assert case.missing() == []
    case.seal()
    assert Case.open(path).is_complete


_FULL = """
import resource, signal, sys
from benchmarks.readers import synthetic_batches
from logdiff.case import Case
from logdiff.errors import CaseError
case = Case.create(sys.argv[1], "n", "import", {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
try:
    with case.open_writer() as writer:
        for batch in synthetic_batches(2_000_000):
            writer.append(batch)
except CaseError as error:
    print(error.message, "|", error.hint)
"""


def test_a_full_disk_is_said_in_words_and_leaves_no_half_table(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    path = tmp_path / "case"
    command = [sys.executable, "-c", _FULL, str(path)]
    out = subprocess.run(command, env=env, timeout=60, capture_output=True, text=True, check=True).stdout
    assert "the token table can't be written" in out
    assert "free space" in out
    assert {p.name for p in path.iterdir()} == {"manifest.json", "journal.jsonl", ".lock"}


@_relaxed
@given(st.sampled_from(["tokens", "samples", "topk", "experts"]), st.data())
def test_a_table_damaged_anywhere_is_a_case_error_or_still_readable(name, data):
    with tempfile.TemporaryDirectory() as folder:
        case = Case.create(Path(folder) / "case", "n", "import", {})
        with case.open_writer() as writer:
            writer.append(make_rich_batch())
        case.close()
        path = case.path / f"{name}.parquet"
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
        with suppress(CaseError):
            list(case.batches())


@pytest.mark.slow(seconds=40)
def test_ten_million_tokens_are_written_and_read_in_seconds_and_bounded_memory(tmp_path):
    script = """
import sys, time
import numpy as np
from logdiff.case import Case
from benchmarks.readers import synthetic_batches
case = Case.create(sys.argv[1], "n", "import", {})
batches = list(synthetic_batches(1_000_000))
start = time.perf_counter()
with case.open_writer() as writer:
    for _ in range(10):
        for batch in batches:
            writer.append(batch)
wrote = time.perf_counter() - start
tokens = sum(b.tokens for b in case.batches())
peak = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
print(tokens, wrote, time.perf_counter() - start - wrote, peak // 1024)
"""
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "c")], env=env, timeout=200, check=True, capture_output=True
    ).stdout.split()
    assert int(out[0]) == 10_000_000
    assert float(out[1]) < 20
    assert float(out[2]) < 10
    assert int(out[3]) < 900
