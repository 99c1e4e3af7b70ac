"""Rule files: complete against the published rows, and refused with clear words when they are wrong."""

from __future__ import annotations

import pytest
import yaml
from logdiff.audit.checks import matrix
from logdiff.audit.keys import catalogue
from logdiff.audit.rule import Condition, load_rules, parse_rules
from logdiff.audit.versions import parse_version, specifier, within
from logdiff.errors import InputError

RULE = {
    "id": "a-rule", "title": "a title of a rule", "when": {"key": "rollout.top_p", "less": 1}, "severity": "error",
    "consequence": "something that is long enough", "fix": "do something", "evidence": "a source",
}  # fmt: skip


def text(**changes: object) -> str:
    return yaml.safe_dump({"rules": [{**RULE, **changes}]})


def test_a_rule_is_read() -> None:
    assert parse_rules({"x.yaml": text()}).rules[0].id == "a-rule"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"severity": "fatal"}, "severity"),
        ({"sevrity": "error"}, "sevrity"),
        ({"id": "Not An Id"}, "id"),
        ({"when": {"key": "top_p", "less": 1}}, "side"),
        ({"when": {"key": "rollout.top_p"}}, "exactly one test"),
        ({"when": {"key": "rollout.top_p", "less": 1, "equals": 2}}, "exactly one test"),
        ({"when": {"key": "rollout.top_p", "smaller": 1}}, "smaller"),
        ({"when": {"all": [], "any": []}}, "exactly one of"),
        ({"when": {"package": "vllm", "version": "about 3"}}, "about 3"),
        ({"applies": {"versions": {"vllm": "~~1"}}}, "~~1"),
        ({"when": None}, "either"),
        ({"check": "magic", "when": None}, "check"),
        ({"when": {"term": "nowhere"}}, "term"),
        ({"fix": "x"}, "fix"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rules({"mine.yaml": text(**changes)})
    assert words in f"{caught.value.message} {caught.value.value}"
    assert "mine.yaml" in caught.value.message or "a-rule" in caught.value.message


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_rules({"a.yaml": text(), "b.yaml": text()})


def test_yaml_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="YAML"):
        parse_rules({"a.yaml": "rules: ["})


def test_every_published_row_has_a_rule() -> None:
    rows = {row for rule in load_rules().rules for row in rule.rows}
    assert rows == set(range(1, 66))


def conditions(condition: Condition | None) -> list[Condition]:
    if condition is None:
        return []
    parts = [*(condition.all or ()), *(condition.any or ()), *(condition.none or ())]
    return [condition, *(inner for part in parts for inner in conditions(part))]


def test_every_key_of_a_rule_can_be_read_from_somewhere() -> None:
    rules = load_rules()
    known = {key.name for key in catalogue().keys} | {"window_size_covers", "model.is_moe"}
    every = [c for r in rules.rules for c in conditions(r.when)] + [
        c for t in rules.terms.values() for c in conditions(t)
    ]
    for condition in every:
        for key in (condition.key, condition.differs_from):
            name = key.partition(".")[2] if key else "model.is_moe"
            prefix = name.split(".", 1)[0]
            assert name in known or prefix in ("package", "generation_config", "distribution") or name[4:] in (
                catalogue().env_names
            ), f"{key} has no name in keys.yaml"  # fmt: skip


def test_the_matrix_has_ranges_and_sources() -> None:
    states = set()
    for row in matrix():
        states.add(row["state"])
        assert row["source"]
        for wanted in row["packages"].values():
            specifier(wanted)
        if row["state"] == "bad":
            assert row["severity"] in ("error", "warning")
            assert row["consequence"]
            assert row["fix"]
    assert states == {"good", "bad"}


@pytest.mark.parametrize(
    ("version", "wanted", "answer"),
    [
        ("0.18.0", "<0.20.2rc0", True),
        ("0.20.2rc1", ">=0.20.2rc0,<0.27", True),
        ("v0.23.0.post1", ">=0.20.2rc0,<0.27", True),
        ("releases/v0.26.0rc1", "<0.27", True),
        ("main", ">=0.27", True),
        ("0.18.0+empty", "==0.18.*", True),
        ("0.11.1rc2.dev141+g38f225c2a", "<0.12", True),
        ("3bec9aa97", "<0.12", None),
    ],
)
def test_versions_of_every_spelling(version: str, wanted: str, answer: bool | None) -> None:
    assert within(version, wanted) is answer
    assert (parse_version(version) is None) is (answer is None)
