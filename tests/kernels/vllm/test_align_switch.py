"""Aligned vLLM is on only where an overlay says so, and restore puts back exactly what stood there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.align import OPERATORS, AlignSpec  # noqa: E402
from logdiff_kernels.engines.vllm import align  # noqa: E402
from logdiff_kernels.engines.vllm.align.patches import Patches  # noqa: E402
from logdiff_kernels.engines.vllm.plugin import register  # noqa: E402
from logdiff_kernels.errors import EngineError, InputError  # noqa: E402

from tests.kernels.vllm.aligned_sides import overlay  # noqa: E402


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    align.restore()
    yield
    align.restore()


def owners() -> list[Any]:
    """Every class and module that any operator replaces something of."""
    align.apply(AlignSpec())
    found = align._active.patches._saved  # type: ignore[union-attr]
    owned = list({id(owner): owner for owner, _, _ in found}.values())
    align.restore()
    return owned


class Base:
    def inherited(self) -> str:
        return "base"


class Child(Base):
    @staticmethod
    def fixed() -> str:
        return "fixed"


def test_restore_puts_back_inherited_attributes_descriptors_and_the_first_of_several() -> None:
    before = dict(vars(Child))
    patches = Patches()
    patches.wrap(Child, "inherited", lambda stock: lambda self: stock(self) + "!")
    patches.wrap(Child, "inherited", lambda stock: lambda self: stock(self) + "?")
    patches.set(Child, "fixed", staticmethod(lambda: "other"))
    assert (Child().inherited(), Child.fixed()) == ("base!?", "other")
    assert patches.targets() == [f"{__name__}.Child.fixed", f"{__name__}.Child.inherited"]
    patches.restore()
    patches.restore()
    assert dict(vars(Child)) == before


def test_apply_replaces_and_restore_leaves_every_attribute_the_same_object() -> None:
    touched = owners()
    assert len(touched) > 15
    before = [dict(vars(owner)) for owner in touched]
    align.apply(AlignSpec())
    assert all(dict(vars(owner)) != old for owner, old in zip(touched, before, strict=True))
    align.apply(AlignSpec())  # the same plan again changes nothing
    align.restore()
    assert [dict(vars(owner)) for owner in touched] == before
    assert align.describe() is None


@pytest.mark.parametrize("op", [op for op in OPERATORS if op != "add_rms_norm"])
def test_one_operator_replaces_its_own_classes_only(op: str) -> None:
    touched = owners()
    stock = {id(owner): dict(vars(owner)) for owner in touched}
    align.apply(AlignSpec(frozenset({op})))
    names = set(align.describe()["replaced"])  # type: ignore[index]
    always = {n for n in names if n.endswith((".load_model", ".aot_compile_hash_factors"))}
    assert names - always
    changed = {owner.__name__.rpartition(".")[-1] for owner in touched if dict(vars(owner)) != stock[id(owner)]}
    assert changed == {name.split(".")[-2] for name in names}
    assert not names & {f"vllm.v1.sample.sampler.Sampler.{n}" for n in ("forward", "sample")}


def test_another_plan_needs_a_restore_first() -> None:
    align.apply(AlignSpec(frozenset({"linear"})))
    with pytest.raises(EngineError, match="another plan"):
        align.apply(AlignSpec())


def test_the_plugin_follows_the_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGDIFF_ALIGN", raising=False)
    register()
    assert align.active() is None
    monkeypatch.setenv("LOGDIFF_ALIGN", str(overlay(tmp_path / "train.json", sides=("train",))))
    register()
    assert align.active() is None
    monkeypatch.setenv("LOGDIFF_ALIGN", str(overlay(tmp_path / "both.json", ["rope", "linear"])))
    register()
    register()
    assert align.active() is not None
    assert align.active().ops == {"rope", "linear"}  # type: ignore[union-attr]
    monkeypatch.setenv("LOGDIFF_ALIGN", str(tmp_path / "absent.json"))
    with pytest.raises(InputError):
        register()


def test_without_an_overlay_the_plugin_loads_no_aligned_code() -> None:
    code = (
        "import sys; from logdiff_kernels.engines.vllm.plugin import register; register(); "
        "print([m for m in sys.modules if m.startswith(('logdiff_kernels.ops', 'logdiff_kernels.cpu', 'torch', 'vllm'))"
        " or '.vllm.align' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert done.stdout.strip() == "[]"


def test_a_compiled_model_of_another_alignment_is_another_cache_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.compilation import caching

    monkeypatch.setattr(caching, "aot_compile_hash_factors", lambda config: ["stock"])
    keys = [caching.aot_compile_hash_factors(None)]
    for ops in (frozenset(OPERATORS), frozenset({"linear"})):
        align.apply(AlignSpec(ops))
        keys.append(caching.aot_compile_hash_factors(None))
        align.restore()
    assert len({tuple(key) for key in keys}) == 3
    assert all(key[0] == "stock" for key in keys)
