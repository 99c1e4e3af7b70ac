"""A stand-in CANN folder with a stand-in bisheng, and a small package of Ascend C sources for it to compile."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class FakeCann:
    home: Path

    @property
    def bisheng(self) -> Path:
        return self.home / "bin" / "bisheng"

    def calls(self) -> list[dict[str, Any]]:
        log = self.home / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []

    def compiled(self) -> list[str]:
        """Names of the sources that were compiled, in alphabetical order."""
        return sorted(Path(call["argv"][call["argv"].index("-shared") + 1]).stem for call in self.calls())

    def forget(self) -> None:
        (self.home / "calls").unlink(missing_ok=True)

    def order(self, kernel: str, wish: str) -> None:
        (self.home / "orders" / kernel).write_text(wish)


def install(home: Path, version: str = "8.5.0", compiler: str = "bisheng 15.0.5 (stand-in)") -> FakeCann:
    """A CANN as its installer lays it out, as far as a build looks at it."""
    (home / "orders").mkdir(parents=True)
    (home / "version.info").write_text(f"Version={version}\n")
    (home / "compiler-version").write_text(compiler)
    headers = home / "compiler" / "tikcpp" / "include"
    headers.mkdir(parents=True)
    (headers / "kernel_operator.h").write_text("// stand-in\n")
    script = home / "bin" / "bisheng"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable} -S\nimport sys\nfrom pathlib import Path\nsys.path.insert(0, {str(HERE)!r})\n"
        f"import fake_bisheng\nsys.exit(fake_bisheng.main(Path({str(home)!r}), sys.argv[1:]))\n"
    )
    script.chmod(0o755)
    return FakeCann(home)


def write_sources(package: Path) -> None:
    """Two kernels: `alpha` reaches shared.h and the plan, `beta` the plan alone."""
    csrc, plan = package / "ascendc" / "csrc", package / "plan" / "csrc"
    (csrc / "common").mkdir(parents=True)
    plan.mkdir(parents=True)
    (plan / "arch.h").write_text("#pragma once\n")
    (plan / "rows.h").write_text('#pragma once\n#include "arch.h"\n')
    (csrc / "common" / "shared.h").write_text("#pragma once\n")
    (csrc / "alpha.h").write_text('#include "kernel_operator.h"\n#include "common/shared.h"\n')
    (csrc / "alpha.asc").write_text('#include "alpha.h"\n#include "plan/csrc/rows.h"\n')
    (csrc / "beta.asc").write_text("#include <plan/csrc/rows.h>\n")
