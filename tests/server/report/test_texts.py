from __future__ import annotations

import json

import pytest
from logdiff.case import Case
from logdiff.report.texts import FILE, read_texts
from report_cases import MakeCase, Sample


def _case(make_case: MakeCase, content: str) -> Case:
    samples = [Sample([7, 8, 7], {"rollout": [-1.0] * 3}), Sample([9], {"rollout": [-1.0]})]
    case = make_case(samples)
    (case.path / FILE).parent.mkdir(parents=True)
    (case.path / FILE).write_text(content, encoding="utf-8")
    return case


def test_each_id_gets_the_text_that_stands_at_its_place(make_case: MakeCase) -> None:
    problems: list[str] = []
    content = json.dumps([["a", " b", "a"], ["c"]])
    assert read_texts(_case(make_case, content), problems) == {7: "a", 8: " b", 9: "c"}
    assert problems == []


def test_texts_of_the_first_samples_alone_are_enough(make_case: MakeCase) -> None:
    assert read_texts(_case(make_case, json.dumps([["a", "b", "a"]])), []) == {7: "a", 8: "b"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('[["a", "b", "x"], ["c"]]', "more than one text"),
        ('[["a", "b"], ["c"]]', "doesn't fit"),
        ('[["a", 3, "a"]]', "more than one text"),
        ('["abc"]', "doesn't fit"),
        ("3", "not a list"),
        ('{"7": "a"}', "not a list"),
        ("[[", "can't be read"),
        ("[" * 100_000, "can't be read"),
    ],
)
def test_what_contradicts_the_tokens_is_told_and_not_shown(make_case: MakeCase, content: str, told: str) -> None:
    problems: list[str] = []
    assert read_texts(_case(make_case, content), problems) == {}
    assert told in problems[0]


def test_no_file_is_no_problem(make_case: MakeCase) -> None:
    problems: list[str] = []
    assert read_texts(make_case(None), problems) == {}
    assert problems == []
