"""Pair files: every form keeps the evidence, and what can't be read is named with its place and the way out."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logdiff.case.batch import PairMeta
from logdiff.case.readers import read_pairs, write_pairs
from logdiff.errors import InputError

from tests.server.case.conftest import make_rich_batch
from tests.server.case.strategies import pair_batches, samples_of

# The peak of this program alone: ru_maxrss would count the test process that it was forked from.
PEAK = "print(next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM')) // 1024)"
HEADER = {"format": "logdiff-pair/1", "meta": {"model": "m", "temperature": 1.0}}
SAMPLE = {
    "sample_id": "s0",
    "prompt_token_ids": [1, 2],
    "response_token_ids": [3, 4, 5],
    "rollout_logprobs": [-0.5, -1, None],
    "train_logprobs": [-0.5, -1.5, -2.0],
}


def lines(*objects):
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


def write(path: Path, *objects) -> Path:
    path.write_bytes(lines(*objects))
    return path


def read(*paths, **options):
    meta, batches = read_pairs(paths, **options)
    return meta, list(batches)


def refused(*paths) -> InputError:
    with pytest.raises(InputError) as caught:
        read(*paths)
    assert caught.value.hint, "an error must say the way out"
    return caught.value


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=st.lists(pair_batches(), max_size=3), limit=st.integers(1, 10))
def test_a_written_file_reads_back_the_same(suffix, batches, limit):
    text = suffix != ".parquet"
    with tempfile.TemporaryDirectory() as folder:
        path = write_pairs(Path(folder) / f"x{suffix}", PairMeta({"model": "m", "list": [1, None]}), batches)
        meta, out = read(path, max_tokens=limit)
    assert meta.facts == {"model": "m", "list": [1, None]}
    assert samples_of(out, any_nan=text) == samples_of(batches, any_nan=text)
    assert all(b.tokens <= limit or b.samples == 1 for b in out)


def test_fields_are_read_as_the_contract_says(tmp_path):
    full = SAMPLE | {
        "sample_id": "s1",
        "response_mask": [1, 0, True],
        "train_token_ids": [1, 2, 3, 4, 9],
        "rescore_logprobs": [-0.25, -0.5, -1],
        "step": 3,
        "policy_version": 7,
        "rank": 2,
        "pack": 4,
        "left_pad": 5,
        "rollout_topk": [[[3, -0.5], [8, -2]], [], None],
        "train_experts": [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[0, 7], [1, 2]]],
        "something_else": {"kept": False},
    }
    meta, (batch,) = read(write(tmp_path / "a.jsonl", HEADER, SAMPLE, full))
    assert meta.facts == HEADER["meta"]
    assert batch.sample_id == ["s0", "s1"]
    assert batch.token_ids.tolist() == [3, 4, 5] * 2
    assert batch.mask.tolist() == [True] * 3 + [True, False, True]
    assert batch.lengths.tolist() == [[3, -1, 3, 3, -1], [3, 3, 3, 3, 3]]
    assert batch.logprob["rollout"][:2].tolist() == [-0.5, -1.0]
    assert batch.null["rollout"].tolist() == [False, False, True] * 2
    assert batch.null["rescore"].tolist() == [True] * 3 + [False] * 3
    assert batch.train_ids[0] is None
    assert batch.train_ids[1].tolist() == [1, 2, 3, 4, 9]
    where = [batch.step, batch.policy_version, batch.rank, batch.pack, batch.left_pad]
    assert [w.tolist() for w in where] == [[0, 3], [-1, 7], [0, 2], [-1, 4], [-1, 5]]
    assert batch.topk["rollout"].ids.tolist() == [[-1, -1]] * 3 + [[3, 8], [-1, -1], [-1, -1]]
    assert batch.topk["rollout"].logprobs[3].tolist() == [-0.5, -2.0]
    assert batch.experts["train"].shape == (6, 2, 2)
    assert batch.experts["train"][4].tolist() == [[4, 5], [6, 7]]
    assert (batch.experts["train"][:3] == -1).all()
    assert batch.extra_lengths["rollout_topk"].tolist() == [-1, 3]


def test_python_writes_non_finite_numbers_and_they_stay_what_they_are(tmp_path):
    nan, inf = float("nan"), float("inf")
    odd = SAMPLE | {"rollout_logprobs": [nan, inf, -inf], "train_logprobs": [None, 1e300, -0.0]}
    _, (batch,) = read(write(tmp_path / "a.jsonl", HEADER, odd))
    assert np.isnan(batch.logprob["rollout"][0])
    assert batch.logprob["rollout"][1:].tolist() == [inf, -inf]
    assert batch.null["rollout"].tolist() == [False] * 3
    assert batch.null["train"].tolist() == [True, False, False]
    assert batch.logprob["train"][1] == inf  # beyond fp32
    assert np.signbit(batch.logprob["train"][2])


def test_unequal_lengths_are_cut_or_filled_and_remembered(tmp_path):
    odd = SAMPLE | {"rollout_logprobs": [-1, -2, -3, -4], "train_logprobs": [-1], "response_mask": [1, 1]}
    _, (batch,) = read(write(tmp_path / "a.jsonl", HEADER, odd, SAMPLE))
    assert batch.lengths[0].tolist() == [3, 2, 4, 1, -1]
    assert batch.logprob["rollout"][:3].tolist() == [-1.0, -2.0, -3.0]
    assert batch.null["train"].tolist() == [False, True, True, False, False, False]
    assert batch.logprob["train"][3:].tolist() == [-0.5, -1.5, -2.0]


def test_repeated_keys_and_empty_responses_can_be_represented(tmp_path):
    empty = SAMPLE | {"response_token_ids": [], "rollout_logprobs": [], "train_logprobs": []}
    _, (batch,) = read(write(tmp_path / "a.jsonl", HEADER, SAMPLE, SAMPLE, empty))
    assert batch.sample_id == ["s0"] * 3
    assert np.diff(batch.offsets).tolist() == [3, 3, 0]


def test_a_missing_side_is_absent_not_an_error(tmp_path):
    one = {k: v for k, v in SAMPLE.items() if k != "train_logprobs"}
    _, (batch,) = read(write(tmp_path / "a.jsonl", HEADER, one))
    assert batch.lengths[0].tolist() == [3, -1, 3, -1, -1]
    assert batch.null["train"].all()


def test_several_files_are_one_stream_with_merged_facts(tmp_path):
    a = write(tmp_path / "a.jsonl", HEADER, SAMPLE)
    b = write(tmp_path / "b.jsonl", {"format": "logdiff-pair/1", "meta": {"model": "m", "dtype": "bf16"}}, SAMPLE)
    meta, batches = read(a, b)
    assert meta.facts == {"model": "m", "temperature": 1.0, "dtype": "bf16"}
    assert sum(x.samples for x in batches) == 2


def test_files_that_contradict_each_other_are_refused_with_key_and_both_values(tmp_path):
    a = write(tmp_path / "a.jsonl", HEADER, SAMPLE)
    b = write(tmp_path / "b.jsonl", {"format": "logdiff-pair/1", "meta": {"temperature": 0.7}}, SAMPLE)
    error = refused(a, b)
    for part in ("temperature", "1.0", "0.7", "a.jsonl", "b.jsonl"):
        assert part in error.message


def test_batches_stay_small_and_a_long_sample_comes_alone(tmp_path):
    def sample(name, n):
        values = [-1.0] * n
        return SAMPLE | {
            "sample_id": name,
            "response_token_ids": [1] * n,
            "rollout_logprobs": values,
            "train_logprobs": values,
        }

    path = write(tmp_path / "a.jsonl", HEADER, *(sample(str(i), n) for i, n in enumerate([4, 4, 4, 50, 3, 3])))
    _, batches = read(path, max_tokens=10)
    assert [b.tokens for b in batches] == [8, 4, 50, 6]
    parquet = write_pairs(tmp_path / "a.parquet", PairMeta(), batches)
    assert samples_of(read(parquet, max_tokens=10)[1]) == samples_of(batches)


def test_a_blank_line_a_byte_order_mark_and_a_missing_last_newline_do_no_harm(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines(HEADER) + b"\n  \r\n" + lines(SAMPLE).replace(b"\n", b"\r\n") * 2)
    path.write_bytes(path.read_bytes().rstrip())
    assert read(path)[1][0].samples == 2


def test_compression_is_told_by_content_not_by_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(lines(HEADER)) + gzip.compress(lines(SAMPLE)))
    assert read(path)[1][0].samples == 1


def test_a_pipe_is_read_once(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    source = write(tmp_path / "a.jsonl", HEADER, SAMPLE, SAMPLE)
    with subprocess.Popen(["cp", str(source), str(fifo)]):
        assert read(fifo)[1][0].samples == 2


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_truncated_archive_is_named(tmp_path, pack, keep):
    rng = np.random.default_rng(0)
    many = [SAMPLE | {"sample_id": str(i), "rollout_logprobs": rng.normal(size=3).tolist()} for i in range(500)]
    data = pack(lines(HEADER, *many))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data[: int(len(data) * keep)])
    error = refused(path)
    assert "cut off or damaged" in error.message
    assert "a.jsonl.gz" in error.message


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"rollout_logprobs": [-0.5, "-1", None]}, ["line 3", "s0", "rollout_logprobs[1]", "number or null"]),
        ({"rollout_logprobs": [-0.5, True, None]}, ["rollout_logprobs[1]"]),
        ({"rollout_logprobs": [-0.5, -1, [1]]}, ["rollout_logprobs[2]"]),
        ({"train_logprobs": "abc"}, ["train_logprobs must be a list"]),
        ({"train_logprobs": [10**400, 1, 1]}, ["train_logprobs[0]", "too large"]),
        ({"response_token_ids": [3, 4.0, 5]}, ["response_token_ids[1]", "whole number"]),
        ({"response_token_ids": [3, 4, None]}, ["response_token_ids[2]"]),
        ({"response_token_ids": [3, 2**63, 5]}, ["response_token_ids[1]", "int64"]),
        ({"response_token_ids": None}, ["response_token_ids must be a list"]),
        ({"prompt_token_ids": [False]}, ["prompt_token_ids[0]"]),
        ({"response_mask": [1, 2, 1]}, ["response_mask[1]", "0 or 1"]),
        ({"response_mask": [1, None, 1]}, ["response_mask[1]", "0 or 1"]),
        ({"response_mask": [1, [], 1]}, ["response_mask[1]", "0 or 1"]),
        ({"sample_id": 5}, ["sample_id must be a string"]),
        ({"sample_id": None}, ["sample_id must be a string"]),
        ({"sample_id": "\ud800"}, ["Unicode"]),
        ({"step": 1.5}, ["step must be a whole number"]),
        ({"step": 2**31}, ["step must be a whole number"]),
        ({"rank": True}, ["rank must be a whole number"]),
        ({"rollout_topk": [[[1, -1]], [[2]], []]}, ["rollout_topk[1]", "pair"]),
        ({"rollout_topk": [[], [], [[1, "x"]]]}, ["rollout_topk[2]", "number"]),
        ({"rollout_topk": [1, 2, 3]}, ["rollout_topk[0]"]),
        ({"train_experts": [[[1]], [[2.5]], [[3]]]}, ["train_experts[1]", "whole number"]),
        ({"train_experts": [[[1]], [[2]], [[2**31]]]}, ["train_experts[2]", "int32"]),
        ({"train_experts": [[[1]], [2], [[3]]]}, ["train_experts[1]", "list"]),
    ],
)
def test_a_wrong_type_names_line_sample_and_field(tmp_path, change, parts):
    error = refused(write(tmp_path / "a.jsonl", HEADER, SAMPLE | {"sample_id": "ok"}, SAMPLE | change))
    for part in ["a.jsonl", "line 3", *parts]:
        assert part in error.message
    assert "write" in error.hint


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (lines(SAMPLE), "header is missing"),
        (lines({"format": "logdiff-pair/2", "meta": {}}, SAMPLE), "format is not logdiff-pair/1"),
        (lines({"format": "logdiff-pair/1", "meta": 3}, SAMPLE), "meta must be an object"),
        (lines({"a": 1}, SAMPLE), "header is missing"),
        (lines([1, 2]), "one JSON object"),
        (lines(HEADER, SAMPLE)[:-20], "line 2: half a JSON object"),
        (lines(HEADER) + b'{"sample_id": "a\n' + lines(SAMPLE), "line 2: half a JSON object"),
        (lines(HEADER) + b"{'sample_id': 1}\n", "line 2: no JSON"),
        (lines(HEADER) + b"[" * 200_000 + b"\n", "nested too deeply"),
        (lines(HEADER) + b'{"sample_id": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n", "nested too deeply"),
        (lines(HEADER) + b'{"sample_id": ' + b"9" * 10_000 + b"}\n", "line 2"),
        (lines(HEADER, HEADER, SAMPLE), "second header"),
        (lines(HEADER, {k: v for k, v in SAMPLE.items() if k != "prompt_token_ids"}), "prompt_token_ids is missing"),
        (bytes(range(256)) * 20, "no JSON"),
        (b'{"format": "\xff"}', "UTF-8"),
        (b"PAR1" + bytes(100), "cut off"),
        (b"PAR1" + bytes(100) + b"PAR1", "damaged"),
    ],
)
def test_what_is_no_pair_file_is_named(tmp_path, content, part):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    error = refused(path)
    assert part in error.message
    assert "a.jsonl" in f"{error.message} {error.value}"


def test_a_directory_a_missing_file_and_no_file_are_refused(tmp_path):
    assert "directory" in refused(tmp_path).message
    assert "no such file" in refused(tmp_path / "none.jsonl").message
    assert "no pair file" in refused().message


def test_a_line_over_the_limit_is_refused_with_its_start(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGDIFF_MAX_LINE_BYTES", "1000")
    long = SAMPLE | {"sample_id": "x" * 2000}
    error = refused(write(tmp_path / "a.jsonl", HEADER, SAMPLE, long))
    assert "line 3 is longer than 1000 bytes" in error.message
    assert "LOGDIFF_MAX_LINE_BYTES" in error.hint
    exact = lines(SAMPLE)
    monkeypatch.setenv("LOGDIFF_MAX_LINE_BYTES", str(len(exact) - 1))
    path = tmp_path / "b.jsonl"
    path.write_bytes(lines(HEADER) + exact)
    assert read(path)[1][0].samples == 1
    monkeypatch.setenv("LOGDIFF_MAX_LINE_BYTES", "many")
    assert "LOGDIFF_MAX_LINE_BYTES" in refused(path).message


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_a_bomb_of_one_line_ends_at_the_limit(tmp_path, pack):
    path = tmp_path / "a.jsonl"
    path.write_bytes(pack(lines(HEADER) + b'{"sample_id": "' + b" " * (200 << 20)))
    assert path.stat().st_size < 1 << 20
    code = (
        "import sys\nfrom logdiff.case.readers import read_pairs\n"
        "try:\n    list(read_pairs([sys.argv[1]])[1])\n"
        "except Exception as e:\n    print(e.message)\n"
        f"{PEAK}"
    )
    env = {**os.environ, "LOGDIFF_MAX_LINE_BYTES": str(8 << 20)}
    out = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True, check=True)
    message, peak = out.stdout.strip().rsplit("\n", 1)
    assert "line 2 is longer than 8388608 bytes" in message
    assert int(peak) < 200


def parquet(path: Path, **change) -> Path:
    columns = {k: [v, v] for k, v in SAMPLE.items()} | change
    table = pa.table({k: v for k, v in columns.items() if v is not None})
    pq.write_table(table.replace_schema_metadata({"logdiff-pair": json.dumps(HEADER)}), path)
    return path


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("rollout_logprob", "rollout_logprobs"),
        ("train_log_probs", "train_logprobs"),
        ("response_masks", "response_mask"),
        ("train_tokens_ids", "train_token_ids"),
    ],
)
def test_a_misspelled_field_is_refused_with_the_right_one(tmp_path, wrong, right):
    """Left alone, a lost mask would count every token, and a lost side none."""
    misspelled = {k: v for k, v in SAMPLE.items() if k != right} | {wrong: [1, 1, 1]}
    error = refused(write(tmp_path / "a.jsonl", HEADER, SAMPLE, misspelled))
    assert "line 3" in error.message
    assert (error.value, right in error.hint) == (wrong, True)
    columns = {k: [v] for k, v in misspelled.items()}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    error = refused(tmp_path / "a.parquet")
    assert (error.value, right in error.hint) == (wrong, True)


def test_fields_of_ones_own_are_left_alone(tmp_path):
    own = {"steps": 3, "reward": 1.0, "ref_logprobs": [0.0], "train_logprob": 1, "x" * 5000: 1, "prompt": "a"}
    path = write(tmp_path / "a.jsonl", HEADER, SAMPLE | {"train_logprobs": SAMPLE["rollout_logprobs"]} | own)
    assert read(path)[1][0].samples == 1


def test_parquet_takes_other_widths_and_kinds_of_lists(tmp_path):
    path = parquet(
        tmp_path / "a.parquet",
        sample_id=pa.array(["a", "b"]).dictionary_encode(),
        prompt_token_ids=pa.array([[1, 2], []], pa.large_list(pa.uint32())),
        response_token_ids=pa.array([[3, 4, 5]] * 2, pa.list_(pa.int32(), 3)),
        rollout_logprobs=pa.array([[-0.5, -1.0, None]] * 2, pa.list_(pa.float64())),
        train_logprobs=pa.array([[-1, -2, -3], None], pa.list_(pa.int8())),
        response_mask=pa.array([[True, False, True], None]),
        rollout_topk=pa.array([[[[3.0, -0.5], [4.0, -1.0]], [], []], None]),
        step=pa.array([1, None], pa.int16()),
        extra=pa.array(["x", "y"]),
    )
    meta, (batch,) = read(path)
    assert meta.facts == HEADER["meta"]
    assert batch.sample_id == ["a", "b"]
    assert batch.prompt_ids.tolist() == [1, 2]
    assert batch.mask.tolist() == [True, False, True, True, True, True]
    assert batch.lengths.tolist() == [[3, 3, 3, 3, -1], [3, -1, 3, -1, -1]]
    assert batch.logprob["train"][:3].tolist() == [-1, -2, -3]
    assert batch.null["train"].tolist() == [False] * 3 + [True] * 3
    assert batch.topk["rollout"].ids.tolist() == [[3, 4]] + [[-1, -1]] * 5
    assert batch.step.tolist() == [1, 0]


def test_parquet_without_a_header_has_no_facts(tmp_path):
    path = parquet(tmp_path / "a.parquet")
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    meta, batches = read(path)
    assert meta.facts == {}
    assert batches[0].tokens == 6


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"response_token_ids": None}, ["response_token_ids is missing"]),
        ({"sample_id": None}, ["sample_id is missing"]),
        ({"sample_id": [1, 2]}, ["sample_id", "string"]),
        ({"sample_id": ["a", None]}, ["sample_id", "null"]),
        ({"response_token_ids": [[1, 2], None]}, ["response_token_ids", "null"]),
        ({"response_token_ids": [[1.5], [2.0]]}, ["response_token_ids", "whole numbers"]),
        ({"response_token_ids": [[1, None], [2]]}, ["response_token_ids", "null"]),
        ({"response_token_ids": pa.array([[2**64 - 1], [1]], pa.list_(pa.uint64()))}, ["does not fit int64"]),
        ({"rollout_logprobs": [["a"], ["b"]]}, ["rollout_logprobs", "numbers"]),
        ({"rollout_logprobs": [1.0, 2.0]}, ["rollout_logprobs", "list"]),
        ({"rollout_logprobs": [[True], [False]]}, ["rollout_logprobs", "numbers"]),
        ({"response_mask": [[1, 2], [1]]}, ["response_mask", "0 or 1"]),
        ({"rollout_topk": [[[[1.0]]], [[[2.0]]]]}, ["rollout_topk", "pairs"]),
    ],
)
def test_a_wrong_parquet_column_is_named(tmp_path, change, parts):
    error = refused(parquet(tmp_path / "a.parquet", **change))
    for part in ["a.parquet", *parts]:
        assert part in error.message


def test_a_parquet_header_of_another_version_is_refused(tmp_path):
    path = parquet(tmp_path / "a.parquet")
    table = pq.read_table(path).replace_schema_metadata({"logdiff-pair": '{"format": "logdiff-pair/9"}'})
    pq.write_table(table, path)
    assert "logdiff-pair/1" in refused(path).message


def test_a_damaged_page_of_a_parquet_file_is_an_input_error(tmp_path):
    path = parquet(tmp_path / "a.parquet")
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    assert "a.parquet" in refused(path).message


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_file_damaged_anywhere_is_an_input_error_or_still_readable(suffix, data):
    with tempfile.TemporaryDirectory() as folder:
        path = write_pairs(Path(folder) / f"x{suffix}", PairMeta({"model": "m"}), [make_rich_batch()] * 2)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with suppress(InputError):
            read(path)


def test_an_unknown_suffix_is_not_written(tmp_path):
    with pytest.raises(InputError, match="suffix"):
        write_pairs(tmp_path / "a.txt", PairMeta(), [])


def test_a_failed_write_leaves_no_file(tmp_path):
    def broken():
        raise RuntimeError
        yield

    with pytest.raises(RuntimeError):
        write_pairs(tmp_path / "a.jsonl", PairMeta(), broken())
    assert list(tmp_path.iterdir()) == []


def test_a_header_that_is_nested_without_end_is_refused(tmp_path):
    meta = {}
    for _ in range(80):
        meta = {"a": [meta]}
    error = refused(write(tmp_path / "p.jsonl", {**HEADER, "meta": meta}, SAMPLE))
    assert "nested" in error.message


def test_a_fact_that_is_nan_in_two_files_is_no_contradiction(tmp_path):
    header = {"format": "logdiff-pair/1", "meta": {"x": float("nan")}}
    paths = [write(tmp_path / f"{name}.jsonl", header, {**SAMPLE, "sample_id": name}) for name in ("a", "b")]
    meta, _ = read(*paths)
    assert np.isnan(meta.get("x"))


def test_a_zstd_file_may_begin_with_a_skippable_frame(tmp_path):
    path = tmp_path / "p.zst"
    frame = b"\x5a\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    path.write_bytes(frame + zstandard.compress(lines(HEADER, SAMPLE)))
    assert [s for b in read(path)[1] for s in b.sample_id] == ["s0"]


def test_a_parquet_column_that_comes_twice_is_refused(tmp_path):
    path = parquet(tmp_path / "p.parquet")
    table = pq.read_table(path)
    columns = [*table.columns, table["sample_id"]]
    pq.write_table(pa.Table.from_arrays(columns, names=[*table.column_names, "sample_id"]), path)
    assert "sample_id comes twice" in refused(path).message


def test_parquet_takes_a_mask_column_without_a_type_and_sample_ids_as_string_views(tmp_path):
    views = pa.array(["s0", "s1"], pa.string_view())
    path = parquet(tmp_path / "p.parquet", response_mask=pa.nulls(2), sample_id=views)
    (batch,) = read(path)[1]
    assert (batch.sample_id, batch.mask.all()) == (["s0", "s1"], True)


def test_a_top_k_id_with_a_fraction_is_named(tmp_path):
    path = parquet(tmp_path / "p.parquet", rollout_topk=pa.array([[[[1.5, -0.1]]] * 3] * 2))
    assert "rollout_topk must hold whole numbers" in refused(path).message


def test_batches_of_long_top_k_lists_stay_small(tmp_path):
    top = [[[i, -1.0] for i in range(50)] for _ in range(3)]
    rows = [{**SAMPLE, "sample_id": f"s{i}", "rollout_topk": top} for i in range(40)]
    path = write(tmp_path / "p.jsonl", HEADER, *rows)
    batches = read(path, max_tokens=100)[1]
    assert sum(b.samples for b in batches) == 40
    assert max(b.topk["rollout"].ids.size for b in batches) <= 8 * 100 + 150  # at most one sample over


def test_one_huge_top_k_list_beside_many_tokens_is_refused_not_allocated(tmp_path):
    count = 2000
    row = {
        **SAMPLE,
        "response_token_ids": [1] * count,
        "rollout_logprobs": [-1.0] * count,
        "train_logprobs": [-1.0] * count,
        "rollout_topk": [[[1, -1.0]] * 40_000, *([[1, -1.0]] for _ in range(count - 1))],
    }
    assert "rollout_topk" in refused(write(tmp_path / "p.jsonl", HEADER, row)).message


def test_a_damaged_footer_does_not_end_the_process(tmp_path):
    path = parquet(tmp_path / "p[1]*.parquet")
    assert read(path)[1][0].samples == 2  # a name with wildcards is one file
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    program = (
        "import sys; from logdiff.case.readers import read_pairs; from logdiff.errors import InputError\n"
        "whole, footer = open(sys.argv[1], 'rb').read(), int(sys.argv[2])\n"
        "for at in range(footer, len(whole) - 8, 3):\n"
        "    open(sys.argv[3], 'wb').write(whole[:at] + bytes([whole[at] ^ 3]) + whole[at + 1 :])\n"
        "    try: list(read_pairs([sys.argv[3]])[1])\n"
        "    except InputError: pass\n"
    )
    command = [sys.executable, "-c", program, str(path), str(footer), str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
