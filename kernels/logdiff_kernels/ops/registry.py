"""The providers of aligned operators, as frozen records, and what a fingerprint says about them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from logdiff_kernels.contract import CONTRACT, OPERATORS
from logdiff_kernels.cpu import library
from logdiff_kernels.errors import UnsupportedError

_CPU_LIMITS = (
    "row-parallel products: the tensor-parallel size divides the leaves of K (8, 4, 2 or 1)",
    "logprob: the tensor-parallel size divides 8",
    "no quantised weights, no LoRA, no FP8 KV cache, no LayerNorm, no gated norms",
)


@dataclass(frozen=True, slots=True)
class Provider:
    """One implementation of the contract.

    Attributes:
        name: what plans, overlays and fingerprints call it.
        device: torch device type.
        dtypes: storage dtypes, as torch names them without the prefix.
        operators: contract operators that it implements.
        limits: what it refuses, in words.
        contract: version of the numeric contract.
        isa: instruction set that runs.
        refused: better instruction sets that this CPU has but that were passed over, each with the reason.
        binary_hash: SHA-256 of the library file.
    """

    name: str
    device: str
    dtypes: tuple[str, ...]
    operators: tuple[str, ...]
    limits: tuple[str, ...]
    contract: str
    isa: str
    refused: tuple[tuple[str, str], ...]
    binary_hash: str


@cache
def providers() -> tuple[Provider, ...]:
    """Every provider that works in this process; the CPU library is built on first use.

    Raises:
        UnsupportedError: the library can't be built or loaded.
    """
    found = library.loaded()
    dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in library.DTYPE_CODES)
    return (
        Provider(
            "aligned-cpu", "cpu", dtypes, OPERATORS, _CPU_LIMITS, CONTRACT, found.isa, found.refused, found.sha256
        ),
    )


def provider(name: str) -> Provider:
    """The provider of that name.

    Raises:
        UnsupportedError: there is none here.
    """
    for known in providers():
        if known.name == name:
            return known
    raise UnsupportedError(f"no provider {name!r}", value=name, hint=f"one of {[p.name for p in providers()]}")


def fingerprint() -> dict[str, Any]:
    """What a side's fingerprint records: contract, source hash, thread pool and every provider's record."""
    return {
        "contract": CONTRACT,
        "source": library.loaded().source,
        "pool": library.pool(),
        "providers": [asdict(known) for known in providers()],
    }
