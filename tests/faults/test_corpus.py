"""The corpus is what it says: enough of every kind, halved fairly, made by its seed, readable by logdiff itself."""

from __future__ import annotations

import ast
import inspect
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from logdiff.live import load_run_file

from tests.faults import split
from tests.faults.__main__ import LIVE, chosen
from tests.faults.corpus import faults
from tests.faults.draw import Draw
from tests.faults.fault import CLASSES, Fault
from tests.faults.patches import (
    transformers_attention,
    transformers_layers,
    vllm_attention,
    vllm_layers,
    vllm_sampling,
    vllm_weights,
)

ROOT = Path(__file__).resolve().parents[2]
PATCHES = (
    transformers_attention, transformers_layers, vllm_attention, vllm_layers, vllm_sampling, vllm_weights,
)  # fmt: skip
ALL = faults()
FAULTS = [fault for fault in ALL if not fault.control]
CONTROLS = [fault for fault in ALL if fault.control]
LIVE_CASES = [fault for fault in ALL if fault.kind == "live"]


def _written(fault: Fault, seed: int, folder: Path) -> dict[str, str]:
    """Relative path -> text of what a live fault writes, with an empty folder for the model."""

    def model(name: str, weights: int, overrides: dict[str, object]) -> str:
        path = folder / f"{name}-{weights}-{json.dumps(overrides, sort_keys=True)!r}".replace("/", "_")
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    fault.build(seed, folder / "made", models=model)  # type: ignore[call-arg]
    made = folder / "made"
    files = (path for path in made.rglob("*") if path.is_file())
    return {str(p.relative_to(made)): p.read_text().replace(str(folder), "") for p in files}


def test_there_are_enough_faults_of_every_class_and_kind() -> None:
    assert len(FAULTS) >= 60
    assert sum(fault.kind == "live" for fault in FAULTS) >= 30
    assert len(CONTROLS) >= 15
    per_class = Counter(fault.label for fault in FAULTS)
    assert set(per_class) == set(CLASSES)
    assert min(per_class.values()) >= 3


def test_every_class_has_faults_on_both_sides_and_several_components() -> None:
    for label in CLASSES:
        of_class = [fault for fault in FAULTS if fault.label == label and fault.kind == "live"]
        assert {side for fault in of_class for side in fault.sides} >= {"rollout", "train"}, label
        assert len({cause for fault in of_class for cause in fault.causes[:1]}) >= 3, label


def test_names_are_unique() -> None:
    assert not [name for name, count in Counter(fault.name for fault in ALL).items() if count > 1]


def test_every_cause_is_in_the_catalogue() -> None:
    catalogue = yaml.safe_load((ROOT / "playbooks" / "causes.yaml").read_text(encoding="utf-8"))
    entries = catalogue["causes"] if isinstance(catalogue, dict) else catalogue
    known = {entry["id"] for entry in entries}
    assert {cause for fault in ALL for cause in fault.causes} <= known


def test_the_halves_are_balanced_in_every_class_and_kind() -> None:
    half = split.halves(ALL)
    assert set(half.values()) == set(split.HALVES)
    groups: dict[tuple[str, str], Counter[str]] = {}
    for fault in ALL:
        group = ("control" if fault.control else fault.label, fault.kind)
        groups.setdefault(group, Counter())[half[fault.name]] += 1
    for group, counts in groups.items():
        assert abs(counts["tuning"] - counts["scoring"]) <= 1, group


def test_a_half_does_not_depend_on_the_order_of_the_corpus() -> None:
    assert split.halves(ALL) == split.halves(reversed(ALL))


def test_a_set_draws_its_live_cases_over_all_classes_by_the_seed() -> None:
    first, second = chosen("scoring", 5, LIVE, ["*"]), chosen("scoring", 6, LIVE, ["*"])
    engines = [fault for fault in first if fault.kind == "live"]
    assert len(engines) == LIVE
    assert {fault.label for fault in engines if not fault.control} == set(CLASSES)
    assert any(fault.control for fault in engines)
    assert {fault.name for fault in first} != {fault.name for fault in second}
    assert [f.name for f in first if f.kind == "pairs"] == [f.name for f in second if f.kind == "pairs"]


@pytest.fixture
def no_older_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other checkpoints are empty folders, as the models are."""
    from tests.faults.live import weights

    monkeypatch.setattr(weights, "_older", lambda relative, seed, source, target: target.mkdir(parents=True))


@pytest.mark.usefixtures("no_older_checkpoint")
@pytest.mark.parametrize("fault", LIVE_CASES, ids=lambda fault: fault.name)
def test_a_live_fault_is_made_by_its_seed_and_read_by_logdiff(fault: Fault, tmp_path: Path) -> None:
    first, again = (_written(fault, 11, tmp_path / name) for name in ("a", "b"))
    assert first == again
    assert any(_written(fault, seed, tmp_path / str(seed)) != first for seed in (12, 13))
    assert first["run.yaml"] != first["stock.yaml"] or fault.control
    for name in ("run.yaml", "stock.yaml"):
        load_run_file(tmp_path / "a" / "made" / name)


@pytest.mark.usefixtures("no_older_checkpoint")
@pytest.mark.parametrize("fault", LIVE_CASES, ids=lambda fault: fault.name)
def test_modules_stand_alone_and_do_not_name_their_fault(fault: Fault, tmp_path: Path) -> None:
    for path, text in _written(fault, 3, tmp_path).items():
        if not path.endswith(".py"):
            continue
        assert fault.name not in path + text
        tree = ast.parse(text)
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        imported |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert {name.split(".")[0] for name in imported} <= {"torch", "numpy", "re", "vllm", "transformers"}
        compile(text, path, "exec")


def test_every_patch_is_used() -> None:
    sources = "".join(
        path.read_text() for path in (*ROOT.glob("tests/faults/live/*.py"), ROOT / "tests/faults/controls.py")
    )
    for module in PATCHES:
        stem = module.__name__.rsplit(".", 1)[1]
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                assert f"{stem}.{name}" in sources, name


def _differences(path: Path) -> tuple[dict[str, object], np.ndarray]:
    header, *rows = map(json.loads, path.read_text().splitlines())
    parts = [np.subtract(row["train_logprobs"], row["rollout_logprobs"]) for row in rows]
    return header["meta"], np.concatenate(parts)


def _pair(name: str) -> Fault:
    return next(fault for fault in ALL if fault.name == name)


@pytest.fixture
def one_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair file from the default build of its model, so that none is built for a test."""
    monkeypatch.setattr(Draw, "weights_seed", lambda draw, model: 0)


@pytest.mark.usefixtures("one_checkpoint")
def test_pair_files_are_made_by_their_seed(tmp_path: Path) -> None:
    fault = _pair("pair-lost-id")
    texts = [fault.build(seed, tmp_path / str(n)).paths[0].read_text() for n, seed in enumerate((1, 1, 2, 3))]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.usefixtures("one_checkpoint")
def test_truncation_is_one_signed_and_bounded_by_the_kept_mass(tmp_path: Path) -> None:
    meta, d = _differences(_pair("pair-truncation").build(1, tmp_path).paths[0])
    noise = 0.3  # of bf16, on a single token
    assert d.mean() < -0.05
    assert d.max() <= noise
    if float(str(meta.get("top_p", 1))) < 1:
        assert d.min() >= math.log(float(str(meta["top_p"]))) - noise


@pytest.mark.usefixtures("one_checkpoint")
def test_the_best_tokens_value_is_never_below_the_sampled_ones(tmp_path: Path) -> None:
    _, d = _differences(_pair("pair-first-entry").build(1, tmp_path).paths[0])
    assert d.max() < 0.3
    assert (d < -0.5).mean() > 0.2


@pytest.mark.usefixtures("one_checkpoint")
def test_clean_evidence_is_at_the_noise_of_bf16_and_keeps_the_law(tmp_path: Path) -> None:
    _, d = _differences(_pair("control-pair-rounding").build(1, tmp_path).paths[0])
    assert 0 < np.abs(d).mean() < 0.1
    assert abs(d.mean()) < 5 * d.std() / math.sqrt(len(d))
    assert np.exp(d).mean() == pytest.approx(1.0, abs=5 * np.exp(d).std() / math.sqrt(len(d)))


@pytest.mark.usefixtures("one_checkpoint")
def test_stale_weights_are_at_the_noise_at_first_and_grow(tmp_path: Path) -> None:
    path = _pair("pair-nothing-synced").build(1, tmp_path).paths[0]
    _, *rows = map(json.loads, path.read_text().splitlines())
    means: dict[int, list[float]] = {}
    for row in rows:
        d = np.subtract(row["train_logprobs"], row["rollout_logprobs"])
        means.setdefault(row["step"], []).append(float(np.abs(d).mean()))
    growth = [np.mean(means[step]) for step in sorted(means)]
    assert growth[0] < 0.1
    assert growth[1] > 3 * growth[0]
    assert growth == sorted(growth)


@pytest.mark.usefixtures("one_checkpoint")
def test_logdiff_reads_every_pair_file_that_is_cheap_to_make(tmp_path: Path) -> None:
    from logdiff.case.readers.pairs import read_pairs

    for name in ("pair-padded-id", "pair-nan", "pair-pack-leak", "pair-left-padding", "control-pair-masked-zeros"):
        path = _pair(name).build(1, tmp_path / name).paths[0]
        meta, batches = read_pairs([path])
        assert meta.facts["vocab_size"] >= 1024
        assert sum(len(batch.sample_id) for batch in batches) == len(path.read_text().splitlines()) - 1
