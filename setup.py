"""Wheel build: the CPU kernels are compiled for every instruction set of this architecture and travel in the wheel.

Without a C++ compiler the wheel is a pure one and the kernels are built on first use. `LOGDIFF_WHEEL_ISAS` limits what
is built: names separated by commas, or `none`. Everything else stands in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "kernels"))

from logdiff_kernels.cpu import build as kernels

WANTED = os.environ.get("LOGDIFF_WHEEL_ISAS", "")
COMPILER = None if WANTED == "none" else kernels.find_compiler()


class BuildWithKernels(build_py):
    """build_py, then the compiled kernels beside their sources."""

    def run(self) -> None:
        """Copy the modules, then compile."""
        super().run()
        if self.editable_mode:
            return
        if COMPILER is None:
            print("logdiff: no C++ compiler, so this wheel is pure; the CPU kernels are compiled on first use")
            return
        folder = Path(self.build_lib) / "logdiff_kernels" / "cpu" / kernels.PREBUILT.name
        built = kernels.build_prebuilt(folder, COMPILER, only=WANTED.split(",") if WANTED else None)
        print(f"logdiff: CPU kernels compiled for {', '.join(built)} by {COMPILER.version}")


class WheelWithKernels(bdist_wheel):
    """A wheel for any Python 3 of this platform: the libraries have a plain C interface."""

    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3; the platform if there are libraries."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


class PlatformDistribution(Distribution):
    """A distribution that is bound to a platform exactly when it carries libraries."""

    def has_ext_modules(self) -> bool:
        """Whether there is something compiled."""
        return COMPILER is not None


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelWithKernels})
