"""The self-test where tensors live on a device of their own: nothing is left on the host, nothing else comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from logdiff_kernels.build.selftest import matrix, reductions
from logdiff_kernels.build.selftest.section import Scope
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.twin.build import sanitizer_environment


def test_every_check_runs_on_an_npus_tensors_and_finds_what_it_finds_on_the_hosts() -> None:
    script = Path(__file__).parent / "npu_selftest.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["failed"] == []
    assert set(said["fingerprints"]) == {"elementwise", "reductions", "mmad", "operators", "phases"}
    for part in (reductions, matrix):
        section = part.section(TwinLauncher(), Scope.QUICK)
        for check in section.checks:
            check.run()
        assert said["fingerprints"][section.name] == section.fingerprint


SANITIZED = """
from logdiff_kernels.build.selftest import elementwise, matrix, reductions
from logdiff_kernels.build.selftest.section import Scope
from logdiff_kernels.build.twin import TwinLauncher
for part in (elementwise, reductions, matrix):
    for check in part.section(TwinLauncher({arch}), Scope.QUICK).checks:
        said = check.run()
        if said:
            print(check.kernel, check.law, said)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", [2201, 3510])
def test_probes_are_clean_under_sanitizers(arch: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED.format(arch=arch)],
        env=sanitizer_environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "ERROR" not in done.stderr
    assert "runtime error" not in done.stderr
