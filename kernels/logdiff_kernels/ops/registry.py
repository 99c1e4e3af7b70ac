"""The providers of aligned operators, as frozen records, and what a fingerprint says about them."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from logdiff_kernels.contract import CONTRACT, OPERATORS
from logdiff_kernels.cpu import library
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops import devices

if TYPE_CHECKING:
    from logdiff_kernels.build.launcher import Launcher

CPU, ASCENDC, TWIN = "aligned-cpu", "aligned-ascendc", "aligned-twin"

_LIMITS = (
    "row-parallel products: the tensor-parallel size divides the leaves of K (8, 4, 2 or 1)",
    "logprob: the tensor-parallel size divides 8",
    "no quantised weights, no LoRA, no FP8 KV cache, no LayerNorm, no gated norms",
)
_ASCENDC_LIMITS = (
    *_LIMITS,
    "attention and its gradients: bfloat16 or float16, head sizes that are multiples of 16",
    "attention's gradients, unless causal: no sequence with more queries than keys",
)
_TWIN_LIMITS = (*_ASCENDC_LIMITS, "a model of an NPU: its time says nothing about one")
_NPU_LIMITS = (
    *_ASCENDC_LIMITS,
    "not run on hardware by its authors: run `logdiff kernels selftest --provider ascendc` first",
    "equal bits on one kind of chip with one binary; the order inside a matrix instruction is the chip's",
)
_DTYPES = tuple(str(dtype).removeprefix("torch.") for dtype in library.DTYPE_CODES)
_PARTS = {
    "linear": "linear",
    "linear_row": "linear",
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "rope": "rope",
    "swiglu": "activation",
    "attention": "attention",
    "router": "router",
    "moe": "moe",
    "embedding": "embedding",
    "lm_head": "linear",
    "logprob": "logprob",
    "all_reduce": "linear",
    "reduce_scatter": "linear",
}
"""The driver module of each operator; the collectives are the tree over ranks' partial results."""


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
        isa: instruction set of the CPU that runs; empty on an NPU.
        refused: better instruction sets that this CPU has but that were passed over, each with the reason.
        binary_hash: SHA-256 of the CPU library's file, over the NPU kernels' libraries, or of what the twin compiles.
        arch: NPU architecture, `dav-2201` or `dav-3510`; empty on a CPU.
        chip: of the NPU, as its maker calls it; empty on a CPU.
        exact_exp: whether exp and ln have the bits of the contract's exp1 and ln1.
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
    arch: str = ""
    chip: str = ""
    exact_exp: bool = True


def providers() -> tuple[Provider, ...]:
    """The CPU library, which is built on first use, and whatever else operators of this process have run on.

    Raises:
        UnsupportedError: the library can't be built or loaded.
    """
    return tuple(dict.fromkeys([_cpu(), *map(of_launcher, devices.used())]))


def provider(name: str) -> Provider:
    """The provider of that name; its kernels are built on first use.

    Raises:
        UnsupportedError: there is none here; for an NPU's, with what is missing.
    """
    if name == CPU:
        return _cpu()
    if name == ASCENDC:
        from logdiff_kernels.build import npu

        return of_launcher(npu.launcher(None, devices.exact_exp()))
    if name == TWIN:
        from logdiff_kernels.build.twin import TwinLauncher

        return of_launcher(TwinLauncher())
    raise UnsupportedError(f"no provider {name!r}", value=name, hint=f"one of {[CPU, ASCENDC, TWIN]}")


def of_launcher(launcher: Launcher) -> Provider:
    """The record of the kernels that a launcher starts."""
    from logdiff_kernels.build.arch import arch_name

    facts = npu_facts()
    return Provider(
        name=launcher.provider,
        device=launcher.device.type,
        dtypes=facts["dtypes"],
        operators=facts["operators"],
        limits=facts["limits"] if launcher.provider == ASCENDC else _TWIN_LIMITS,
        contract=facts["contract"],
        isa="",
        refused=(),
        binary_hash=launcher.binary_hash,
        arch=arch_name(launcher.arch),
        chip=launcher.chip,
        exact_exp=launcher.exact_exp,
    )


def npu_facts() -> dict[str, Any]:
    """What is true of the Ascend C kernels wherever they run: `dtypes`, `operators`, `limits`, `contract`."""
    home = "logdiff_kernels.ascendc"
    covered = tuple(op for op in OPERATORS if importlib.util.find_spec(f"{home}.{_PARTS[op]}") is not None)
    return {"dtypes": _DTYPES, "operators": covered, "limits": _NPU_LIMITS, "contract": CONTRACT}


def unbuilt_cpu(isa: str) -> dict[str, Any]:
    """The CPU library's record before it is built for `isa`: `binary_hash` is None."""
    return {**asdict(_cpu_record(isa, (), "")), "binary_hash": None}


@cache
def _cpu() -> Provider:
    found = library.loaded()
    return _cpu_record(found.isa, found.refused, found.sha256)


def _cpu_record(isa: str, refused: tuple[tuple[str, str], ...], binary_hash: str) -> Provider:
    return Provider(CPU, "cpu", _DTYPES, OPERATORS, _LIMITS, CONTRACT, isa, refused, binary_hash)


def fingerprint() -> dict[str, Any]:
    """What a side's fingerprint records: contract, source hash, thread pool and every provider's record."""
    return {
        "contract": CONTRACT,
        "source": library.loaded().source,
        "pool": library.pool(),
        "providers": [asdict(known) for known in providers()],
    }
