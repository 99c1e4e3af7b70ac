"""People's own JSON Lines become the same evidence as a pair file with the same numbers."""

from __future__ import annotations

import gzip
import json

import pytest
from logdiff.case import Case
from logdiff.case.importing import import_case
from logdiff.case.readers import FORMATS, read, read_jsonl, read_pairs
from logdiff.errors import CaseError, InputError

from tests.server.case.strategies import samples_of

PAIR = {
    "sample_id": "7",
    "prompt_token_ids": [1, 2],
    "response_token_ids": [3, 4, 5],
    "response_mask": [1, 0, 1],
    "rollout_logprobs": [-0.5, -1.0, -2.0],
    "train_logprobs": [-0.25, -1.5, -2.5],
}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def expected(tmp_path):
    path = write(tmp_path / "expected.jsonl", {"format": "logdiff-pair/1", "meta": {}}, PAIR)
    return samples_of(list(read_pairs([path])[1]))


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        (PAIR, {}),
        (
            {
                "uid": 7,
                "prompt_ids": [1, 2],
                "responses": [3, 4, 5],
                "loss_mask": [1, 0, 1],
                "rollout_log_probs": [-0.5, -1, -2],
                "old_log_probs": [-0.25, -1.5, -2.5],
            },
            {},
        ),
        (
            {
                "id": "7",
                "data": {"in": [1, 2], "out.ids": [3, 4, 5], "m": [1, 0, 1]},
                "choices": [{"logprobs": [{"logprob": -0.5}, {"logprob": -1}, {"logprob": -2}]}],
                "lp": {"new": [-0.25, -1.5, -2.5]},
            },
            {
                "prompt_token_ids": "data.in",
                "response_token_ids": "data.out.ids",
                "response_mask": "data.m",
                "rollout_logprobs": "choices.0.logprobs.*.logprob",
                "train_logprobs": "lp.new",
            },
        ),
        # whole sequences: values per input id, and shifted by one
        (
            {
                "id": "7",
                "input_ids": [1, 2, 3, 4, 5],
                "prompt_length": 2,
                "loss_mask": [0, 0, 1, 0, 1],
                "rollout_logprobs": [0, 0, -0.5, -1, -2],
                "train_logprobs": [-9, -0.25, -1.5, -2.5],
            },
            {},
        ),
        (
            {
                "id": "7",
                "tokens": [1, 2, 3, 4, 5],
                "response_length": 3,
                "loss_mask": [1, 0, 1],
                "rollout_logprobs": [-0.5, -1, -2],
                "train_logprobs": [-0.25, -1.5, -2.5],
            },
            {},
        ),
    ],
)
def test_names_and_layouts_of_dumps(tmp_path, expected, row, mapping):
    _, batches = read_jsonl([write(tmp_path / "d.jsonl", row)], mapping)
    assert samples_of(list(batches)) == expected


def test_padding_is_taken_out_and_remembered(tmp_path, expected):
    row = {
        "id": "7",
        "input_ids": [0, 0, 1, 2, 3, 4, 5, 0],
        "prompt_length": 4,
        "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0],
        "response_mask": [1, 0, 1, 0],
        "rollout_logprobs": [-0.5, -1, -2, 0],
        "train_logprobs": [9, 9, 9, 9, -0.25, -1.5, -2.5, 9],
    }
    _, batches = read_jsonl([write(tmp_path / "d.jsonl", row)])
    (batch,) = batches
    assert batch.left_pad.tolist() == [2]
    batch.left_pad[:] = -1
    assert samples_of([batch]) == expected


def test_a_sample_without_a_name_is_called_after_its_line(tmp_path):
    row = {k: v for k, v in PAIR.items() if k != "sample_id"}
    _, batches = read_jsonl([write(tmp_path / "d.jsonl", row, row)])
    assert next(batches).sample_id == ["d.jsonl:1", "d.jsonl:2"]


@pytest.mark.parametrize(
    ("row", "mapping", "words"),
    [
        (PAIR, {"logprobs": "x"}, "unknown field"),
        (PAIR, {"train_logprobs": "a.b"}, "a.b .mapped to train_logprobs. is missing"),
        ({k: v for k, v in PAIR.items() if k != "train_logprobs"}, {}, "no field holds train_logprobs"),
        ({k: v for k, v in PAIR.items() if k != "response_token_ids"}, {}, "no field holds the response"),
        (PAIR | {"response_token_ids": "3 4 5"}, {}, "response_token_ids must be a list"),
        (PAIR | {"train_logprobs": ["x", 1, 2]}, {}, r"train_logprobs\[0\]"),
        ({"input_ids": [1, 2], "rollout_logprobs": [], "train_logprobs": []}, {}, "needs prompt_length"),
        (
            {"input_ids": [1, 2], "prompt_length": 3, "rollout_logprobs": [], "train_logprobs": []},
            {},
            "between 0 and the 2 input_ids",
        ),
        (
            {
                "input_ids": [1, 2, 3],
                "prompt_length": 1,
                "attention_mask": [1, 0, 1],
                "rollout_logprobs": [],
                "train_logprobs": [],
            },
            {},
            "holes",
        ),
    ],
)
def test_what_cannot_be_mapped_is_named_with_its_line(tmp_path, row, mapping, words):
    path = write(tmp_path / "d.jsonl", row)
    with pytest.raises(InputError, match=words) as caught:
        list(read_jsonl([path], mapping)[1])
    assert caught.value.hint
    assert "d.jsonl: line 1" in caught.value.message or words == "unknown field"


def test_an_unknown_format_lists_what_exists(tmp_path):
    with pytest.raises(InputError, match="unknown format") as caught:
        read("verls", [tmp_path / "x"])
    for name in FORMATS:
        assert name in caught.value.hint


def test_a_mapping_is_refused_where_names_are_fixed(tmp_path):
    with pytest.raises(InputError, match="fixed names"):
        read("pair", [tmp_path / "x"], {"train_logprobs": "a"})


def test_import_makes_a_sealed_case(tmp_path, expected):
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(PAIR).encode()))
    seen = []
    case = import_case("jsonl", [path], tmp_path / "case", {}, on_tokens=seen.append)
    again = Case.open(case.path)
    assert again.is_complete
    assert again.manifest.kind == "import"
    assert samples_of(list(again.batches())) == expected
    assert seen == [3]
    assert {"samples": 1, "tokens": 3}.items() <= again.journal.read()[1].items()
    with pytest.raises(CaseError, match="holds another case"):
        import_case("jsonl", [path], tmp_path / "case", {})


def test_a_failed_import_says_why_and_can_be_repeated_in_place(tmp_path, expected):
    path = write(tmp_path / "d.jsonl", {"format": "logdiff-pair/1", "meta": {"model": "m"}}, PAIR)
    good = path.read_text()
    path.write_text(good + '{"sample_id": "half')
    with pytest.raises(InputError, match="line 3"):
        import_case("pair", [path], tmp_path / "case")
    case = Case.open(tmp_path / "case")
    assert not case.is_complete
    assert any(words.startswith("tokens.parquet") for words in case.missing())
    assert case.journal.read()[-1]["event"] == "failed"
    path.write_text(good)
    case = import_case("pair", [path], tmp_path / "case")
    assert case.is_complete
    assert case.meta.facts == {"model": "m"}
    assert samples_of(list(case.batches())) == expected


def test_an_empty_pair_file_imports_as_a_case_without_samples(tmp_path):
    path = write(tmp_path / "d.jsonl", {"format": "logdiff-pair/1", "meta": {}})
    case = import_case("pair", [path], tmp_path / "case")
    assert list(case.batches()) == []
