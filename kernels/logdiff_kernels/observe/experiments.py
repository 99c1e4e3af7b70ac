"""Does a registered implementation run, and does it compute the operator? Found by calling, not by reading.

Each registration of an operator of torch that torch does not bring is called through every public form of it. Which
operators then run, and whether code outside of torch ran, shows a shadowed overload; the same calls in a clean
interpreter and in fp64 show a function that is no implementation of the operator.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logdiff_kernels.observe import trial
from logdiff_kernels.observe.patched.owners import Owners, installed, normalised
from logdiff_kernels.observe.patched.record import Record
from logdiff_kernels.observe.registrations import Registration, foreign

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.04}
"""Largest error of an implementation against fp64, relative to the largest value: far above rounding."""

TIMEOUT = 300.0
MAX_TRIED = 60
_KEYS = {"CPU": "cpu", "CUDA": "cuda", "PrivateUse1": "npu", "CompositeImplicitAutograd": "cpu",
         "CompositeExplicitAutograd": "cpu", "AutogradCPU": "cpu"}  # fmt: skip


def operator_records(stock: frozenset[str] = frozenset(), found: list[Registration] | None = None) -> list[Record]:
    """A record of every foreign registration: whose it is, whether calls reach it, whether it computes the operator.

    Args:
        stock: normalised names of distributions whose registrations are the engine's own: explained, unless they
            are wrong.
        found: registrations to try; default: all of this process.
    """
    found = foreign() if found is None else found
    records = []
    owners = installed()
    tried = [r for r in found if _device(r) is not None][:MAX_TRIED]
    forms = list(dict.fromkeys(form for r in tried for form in trial.forms(r.op)))
    reference = _reference(forms) if tried else {}
    for one in found:
        base = Record(
            "operator",
            one.op,
            f"key {one.key}: registered at {one.source}" + (f", in front of {one.replaces}" if one.replaces else ""),
            stock=one.replaces,
            live=one.source,
            by=one.by,
        )
        records.append(base)
        if normalised(one.by.partition(" ")[0]) in stock:
            base.explained = f"{one.by} does this itself"
        if one not in tried:
            base.notes.append("not tried: no device of that dispatch key here")
            continue
        _judge(one, base, reference, owners)
    return records


def _judge(one: Registration, record: Record, reference: dict[tuple[str, str], Any], owners: Owners) -> None:
    device = _device(one) or "cpu"
    reached: list[str] = []
    missed: list[str] = []
    wrong: list[str] = []
    codes: list[CodeType] = []
    for name, schema in trial.forms(one.op):
        if len(reached) + len(missed) >= trial.MAX_FORMS:
            break
        trial.call(name, schema, "float32", device)  # what torch imports on a first call is not what is watched
        watch = _Watch(owners)
        with watch:
            result = trial.call(name, schema, "float32", device)
        if "error" in result and not watch.foreign:
            continue
        words = trial.words(name, schema)
        if watch.foreign and one.op in watch.ops:
            reached.append(words)
            codes += watch.foreign
            fault = _fault(name, schema, device, reference)
            if fault is not None:
                wrong.append(f"{words}: {fault}")
        elif _same_base(one.op, watch.ops):
            same = [op for op in watch.ops if _same_base(one.op, [op])]
            missed.append(f"{words} runs {', '.join(same)}")
    if not one.declared:
        record.notes.append(f"there is no operator {one.op}: only overloads of that name")
    if wrong:
        record.explained = ""
        record.detail = f"wrong implementation: {wrong[0]}; {record.detail}"
        record.notes += wrong[1:]
        record.notes += _signature(one, codes)
    elif missed and not reached:
        record.detail = f"shadowed: no call reaches it; {missed[0]}; {record.detail}"
        record.notes += missed[1:]
    elif missed:
        record.detail = f"covers {reached[0]} and not others: {missed[0]}; {record.detail}"
        record.notes += missed[1:]
    elif not reached:
        record.notes.append("no public call could be made to try it")
    else:
        record.notes.append(f"{', '.join(reached)} reach it and agree with fp64")


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which operators run during a call, and which functions from outside of torch do."""

    def __init__(self, owners: Owners) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[str] = []
        self.foreign: list[CodeType] = []
        self._owners = owners
        self._kin = owners.kin("torch")
        self._mine: dict[str, bool] = {}
        self._old: Any = None

    def __enter__(self) -> Any:
        self._old = sys.getprofile()
        found = super().__enter__()  # type: ignore[no-untyped-call]
        sys.setprofile(self._call)
        return found

    def __exit__(self, *arguments: Any) -> None:
        sys.setprofile(self._old)
        super().__exit__(*arguments)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name not in self.ops and not func.is_view:
            self.ops.append(name)
        return func(*args, **(kwargs or {}))

    def _call(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            if file not in self._mine:
                self._mine[file] = self._stock(file)
            if not self._mine[file] and frame.f_code not in self.foreign:
                self.foreign.append(frame.f_code)

    def _stock(self, file: str) -> bool:
        if file.startswith("<") or self._owners.standard(file) or Path(file).parent == Path(__file__).parent:
            return True
        owner = self._owners.of(file)
        return owner is not None and normalised(owner.name) in self._kin


def _fault(name: str, schema: str, device: str, reference: dict[tuple[str, str], Any]) -> str | None:
    """What is wrong with the result of a call, against the same call in a clean interpreter; None if nothing is."""
    clean = reference.get((name, schema))
    if clean is None or "error" in clean["float64"]:
        return None
    exact = clean["float64"]["values"]
    scale = max((abs(v) for v in exact if math.isfinite(v)), default=0.0) or 1.0
    for dtype in trial.DTYPES:
        stock = clean[dtype]
        if "error" in stock:
            continue
        got = trial.call(name, schema, dtype, device)
        if "error" in got:
            return f"it fails in {dtype} ({got['error']}), where torch's own does not"
        if got["dtype"] != stock["dtype"] or got["size"] != stock["size"]:
            return f"it gives {got['dtype']}{got['size']} in {dtype}, torch's own {stock['dtype']}{stock['size']}"
        pairs = list(zip(got["values"], exact, strict=True))
        off = max((abs(a - b) if math.isfinite(a) else math.inf for a, b in pairs if math.isfinite(b)), default=0.0)
        if off > TOLERANCE[dtype] * scale:
            return f"its {dtype} result is off by {off:.3g} from fp64, where the largest value is {scale:.3g}"
    return None


def _signature(one: Registration, codes: list[CodeType]) -> list[str]:
    """Parameters of the function that ran whose names are not the schema's."""
    schemas = list(torch._C._jit_get_schemas_for_operator(one.op.partition(".")[0]))
    wanted = one.op.partition(".")[2]
    schema = next((s for s in schemas if s.overload_name == wanted), None)
    if schema is None:
        return []
    for code in sorted(codes, key=lambda c: c.co_filename != one.source.rpartition(":")[0]):
        names = list(code.co_varnames[: code.co_argcount])
        if len(names) != len(schema.arguments):
            continue
        different = [
            f"its parameter {place} is called {name!r}, where the operator gives {argument.name}: {argument.type}"
            for place, (name, argument) in enumerate(zip(names, schema.arguments, strict=True), 1)
            if name != argument.name and str(argument.type) != "Tensor"
        ]
        return different
    return []


def _same_base(op: str, ran: list[str]) -> bool:
    """Whether an operator of the same base name ran, in any overload."""
    bases = {base for name in trial.public_names(op) for base in (name, f"_{name}")}
    return any(name.partition("::")[2].partition(".")[0] in bases for name in ran)


def _device(one: Registration) -> str | None:
    device = _KEYS.get(one.key)
    if device is None or device == "cpu":
        return device
    module = getattr(torch, device, None)
    return device if module is not None and module.is_available() else None


def _reference(forms: list[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """The calls in a clean interpreter: no environment of Python's, no plug-ins of torch's."""
    if not forms:
        return {}
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LOGDIFF", "VLLM", "TORCH"))}
    env |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(Path(trial.__file__))],
            input=json.dumps(forms),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=env,
            check=True,
        )
        return dict(zip(forms, json.loads(done.stdout), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
