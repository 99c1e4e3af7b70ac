"""What the registry says about the provider is what is loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys

import pytest
from logdiff_kernels import ops
from logdiff_kernels.contract import CONTRACT, OPERATORS
from logdiff_kernels.cpu import library
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops import registry


def test_provider_names_the_library_that_runs() -> None:
    known = registry.provider("aligned-cpu")
    found = library.loaded()
    assert (known.contract, known.isa) == (CONTRACT, found.isa)
    assert known.binary_hash == hashlib.sha256(found.path.read_bytes()).hexdigest()
    assert known.operators == OPERATORS
    with pytest.raises(dataclasses.FrozenInstanceError):
        known.isa = "other"  # type: ignore[misc]
    with pytest.raises(UnsupportedError, match="no provider 'torch'"):
        registry.provider("torch")


def test_every_operator_of_the_contract_has_a_public_function() -> None:
    """The two collectives are the tree over ranks' partial results."""
    functions = set(ops.__all__)
    assert set(OPERATORS) - functions == {"all_reduce", "reduce_scatter"}
    assert "tree_combine" in functions
    assert all(callable(getattr(ops, name)) for name in functions)


def test_fingerprint_is_json_and_the_same_in_another_process() -> None:
    here = json.loads(json.dumps(registry.fingerprint()))
    code = "import json; from logdiff_kernels.ops import registry; print(json.dumps(registry.fingerprint()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == here
