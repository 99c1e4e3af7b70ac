"""The catalogue of causes: complete, checked, and found wherever the package lies."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from logdiff.errors import InputError
from logdiff.verdict.causes import cause, causes, parse_causes
from logdiff.verdict.records import CLASSES

ROOT = Path(__file__).parents[3]
ENTRY = """
- id: one
  class: operator
  path: operator
  components: [norm]
  does: a
  signature: b
  experiment: {what: c, command: logdiff env}
  fix: [{engine: any, versions: any, do: d}]
  evidence: [e]
"""


def test_the_file_of_the_repository_is_the_one_that_is_read():
    assert list(causes()) == re.findall(r"^- id: (.+)$", (ROOT / "playbooks/causes.yaml").read_text(), re.M)


def test_every_class_of_a_fault_has_causes():
    by_class = Counter(c.class_ for c in causes().values())
    wanted = set(CLASSES) - {"none", "undetermined", "invalid-evidence"}
    assert set(by_class) == wanted
    assert min(by_class.values()) >= 5
    assert sum(by_class.values()) >= 60


def test_commands_of_experiments_exist():
    from logdiff.cli.app import build

    known = {c.name for c in build().registered_commands} | {g.name for g in build().registered_groups}
    asked = {c.experiment.command.split()[1] for c in causes().values()}
    assert asked - known <= {"diagnose", "localize"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("id: one", "id: One_Two"),
        ("class: operator", "class: none"),
        ("path: operator", "path: framework"),
        ("command: logdiff env", "command: rm -rf"),
        ("evidence: [e]", "evidence: []"),
        ("does: a", "did: a"),
    ],
)
def test_a_broken_entry_is_refused(before, after):
    assert list(parse_causes(ENTRY)) == ["one"]
    with pytest.raises(InputError):
        parse_causes(ENTRY.replace(before, after))


def test_an_id_that_comes_twice_is_refused():
    with pytest.raises(InputError, match="twice"):
        parse_causes(ENTRY + ENTRY)


def test_an_unknown_id_is_an_error_with_a_way_out():
    with pytest.raises(InputError, match="no such cause"):
        cause("no-such-thing")
