"""Every rule finds what it is for, wherever it stands, and nothing else."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from logdiff.audit import audit_paths
from logdiff.audit.rule import Condition, Rule, load_rules
from planting import Scene, Writer, oracle, planted, scenes, with_versions
from witness import Solver, UnsatisfiableError, Wanted

RULES = load_rules()
BASES = scenes()
CONDITIONAL = [r for r in RULES.rules if r.when is not None]
ONLY_LIVE = {"temperature-scored-otherwise"}
"""Rules over facts that only a running side knows; tested in test_audit_live.py."""


@lru_cache(maxsize=1024)
def alarms(name: str, versions: tuple[tuple[str, str], ...] = ()) -> frozenset[str]:
    """Rules that speak up on a base before anything is planted."""
    found = oracle(with_versions(BASES[name], dict(versions))).findings
    return frozenset(f.rule for f in found if f.severity != "info")


def draws(rule: Rule, seed: int, tries: int = 60) -> Iterator[tuple[random.Random, Scene, Wanted]]:
    """Plants of a rule that the settings themselves prove, without any file."""
    rng = random.Random(seed)
    names = rng.sample(sorted(BASES), len(BASES))
    for attempt in range(tries):
        base = BASES[names[attempt % len(names)]]
        if rule.applies.framework and not set(base.frameworks) & set(rule.applies.framework):
            continue
        base = with_versions(base, rule.applies.versions)
        if alarms(base.name, tuple(sorted(rule.applies.versions.items()))):
            continue
        solver = Solver(RULES, rng, frozenset(base.frameworks))
        try:
            wanted = solver.hold(rule.when)  # type: ignore[arg-type]
            made = planted(base, wanted)
        except UnsatisfiableError:
            continue
        if any(f.rule == rule.id and f.severity == rule.severity for f in oracle(made).findings):
            yield rng, made, wanted


def mentioned(condition: Condition | None) -> set[str]:
    """Keys that a condition asks for, those of its terms too."""
    if condition is None:
        return set()
    found = {k.partition(".")[2] for k in (condition.key, condition.differs_from) if k}
    found |= {k for k in (condition.differs_across_sides, condition.one_side_only) if k}
    found |= {f"package.{condition.package}"} if condition.package else set()
    if condition.term:
        found |= mentioned(RULES.terms[condition.term])
    for part in (condition.all, condition.any, condition.none):
        for inner in part or ():
            found |= mentioned(inner)
    return found


NO_OPTION = {"model_name"}
"""Keys that no engine takes: derived ones, planted as if they could be given."""

DERIVED = {"padded_vocab_size", "window_size_covers", "model.norm_topk_prob", "model.is_moe"}


def check(made: Scene, expected: list[Rule], keys: set[str], folder: Path, rng: random.Random) -> list[str]:
    """Write the scene, audit the files, and compare with what must be found."""
    writer = Writer(folder, rng)
    paths = writer.write(made)
    found = audit_paths(paths)
    text = "\n".join(f"--- {p}\n{Path(p.partition('=')[2] or p).read_text()[:3000]}" for p in paths)
    shown = [(f.rule, f.severity, f.key, f.value, f.where) for f in found.findings]
    for rule in expected:
        hits = [f for f in found.findings if f.rule == rule.id and f.severity == rule.severity]
        assert hits, f"{rule.id} is not found\n{shown}\n{found.evidence.unread}\n{text}"
        assert all(f.consequence and f.fix and f.where for f in hits)
    audited = found.findings
    if keys & NO_OPTION:
        audited = [f for f in audited if f.rule != "unknown-engine-option"]
    ids = {r.id for r in expected}
    by_id = {r.id: r for r in RULES.rules}
    for f in audited:
        if f.severity == "error" and f.rule not in ids:
            assert mentioned(by_id[f.rule].when) & (keys | DERIVED), f"{f.rule} has nothing to do with {keys}\n{text}"
    direct = {(f.rule, f.severity) for f in oracle(made).findings if f.severity != "info"}
    read = {(f.rule, f.severity) for f in audited if f.severity != "info"}
    assert read == direct, f"read {read - direct}, missed {direct - read}\n{text}\n{found.evidence.unread}"
    return writer.places


@pytest.mark.parametrize("rule", [r for r in CONDITIONAL if r.id not in ONLY_LIVE], ids=lambda r: r.id)
def test_every_rule_fires_on_a_plant_and_is_silent_without_it(rule: Rule, tmp_path: Path) -> None:
    done = 0
    for number, (rng, made, wanted) in enumerate(draws(rule, zlib.crc32(rule.id.encode()))):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            check(made, [rule], {k.partition(".")[2] for k in wanted}, folder, rng)
        except UnsatisfiableError:
            continue
        done += 1
        break
    assert done, f"no launch can say what {rule.id} is about"
    assert not any(rule.id in alarms(name) for name in BASES)


SEEDS = range(48)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plant_of_any_rule_in_any_place_is_found(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed * 7919 + 11)
    while True:
        rule = rng.choice([r for r in CONDITIONAL if r.id not in ONLY_LIVE and r.severity != "info"])
        for own, made, wanted in draws(rule, rng.getrandbits(32)):
            try:
                check(made, [rule], {k.partition(".")[2] for k in wanted}, tmp_path, own)
            except UnsatisfiableError:
                for file in tmp_path.iterdir():
                    file.unlink() if file.is_file() else None
                continue
            return


@pytest.mark.parametrize("seed", range(20))
def test_two_plants_at_once_are_both_found(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed * 104729 + 5)
    pool = [r for r in CONDITIONAL if r.id not in ONLY_LIVE and r.severity != "info" and not r.applies.versions]
    for attempt in range(400):
        first, second = rng.sample(pool, 2)
        base = BASES[rng.choice(sorted(BASES))]
        solver = Solver(RULES, rng, frozenset(base.frameworks))
        try:
            one, two = solver.hold(first.when), solver.hold(second.when)  # type: ignore[arg-type]
            if set(one) & set(two):
                continue
            made = planted(planted(base, one), two)
        except UnsatisfiableError:
            continue
        found = {f.rule for f in oracle(made).findings if f.severity != "info"}
        if not {first.id, second.id} <= found:
            continue
        folder = tmp_path / str(attempt)
        folder.mkdir()
        try:
            check(made, [first, second], {k.partition(".")[2] for k in {**one, **two}}, folder, rng)
        except UnsatisfiableError:
            continue
        return
    raise AssertionError("no two rules fit one launch")
