"""Modules that have every public name, by a finder that comes before all others."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

from standin.record import names_of

VERSIONS = {"torchvision": "0.28.0"}
"""What a module says of its version where an importer asks."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = set(packages)

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if not any(name == package or name.startswith(f"{package}.") for package in self.packages):
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=__file__, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__doc__ = f"A stand-in for `{name}`."
        module.__file__ = __file__
        module.__getattr__ = names_of(name)  # type: ignore[method-assign]
        if name in VERSIONS:
            module.__version__ = VERSIONS[name]  # type: ignore[attr-defined]


def provide(*packages: str) -> None:
    """Make these packages, and any module below them, importable as stand-ins."""
    sys.meta_path.insert(0, _Finder(packages))
