"""Calls an operator of torch in every public form, on small inputs that a formula gives; needs torch alone.

Run as a program (`python trial.py`) it does the same in a clean interpreter: names as JSON on standard input, results
as JSON on standard output.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

SHAPES = ((4, 4), (2, 4, 4), (4,))
DTYPES = ("float32", "bfloat16")
MAX_FORMS = 12
_UNTRIED = ("out", "Dimname", "backward", "Generator", "Stream", "Storage", "Dict", "str")


def public_names(operator: str) -> list[str]:
    """Names that may reach an operator: its own, and the one without a leading underscore."""
    base = operator.partition("::")[2].partition(".")[0]
    return list(dict.fromkeys([base.lstrip("_"), base]))


def forms(operator: str) -> Iterator[tuple[str, str]]:
    """(function name, schema) of the public calls that may reach `aten::X.overload`."""
    for name in public_names(operator):
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            text = str(schema)
            if not any(word in text for word in _UNTRIED) and not schema.is_mutable:
                yield name, text


def arguments(schema: str, shape: tuple[int, ...], dtype: str, device: str) -> list[Any] | None:
    """Positional arguments without those that have defaults; None where a kind of argument is not known."""
    parsed = torch._C.parse_schema(schema)
    found: list[Any] = []
    for place, argument in enumerate(parsed.arguments):
        if argument.kwarg_only:
            if not argument.has_default_value():
                return None
            continue
        if argument.has_default_value() and argument.name not in ("dim",):
            break
        value = _value(str(argument.type), argument.name, shape, dtype, device, place)
        if value is _UNKNOWN:
            return None
        found.append(value)
    return found


_UNKNOWN = object()


def _value(kind: str, name: str, shape: tuple[int, ...], dtype: str, device: str, place: int) -> Any:
    if kind == "Tensor":
        return tensor(shape, dtype, device, place)
    if kind == "Optional[Tensor]":
        return None
    if kind == "List[Tensor]":
        return [tensor(shape, dtype, device, place), tensor(shape, dtype, device, place + 1)]
    if kind == "int":
        return -1 if "dim" in name else 1
    if kind in ("List[int]", "Optional[List[int]]"):
        return [-1] if "dim" in name else _UNKNOWN
    if kind == "bool":
        return False
    if kind in ("float", "number", "Scalar"):
        return 0.5
    return None if kind.startswith("Optional[") else _UNKNOWN


def tensor(shape: tuple[int, ...], dtype: str, device: str, seed: int) -> torch.Tensor:
    """Values in (0, 2) that are exact in bfloat16, so that every dtype starts from the same numbers."""
    count = math.prod(shape)
    values = [round(128 * (1 + math.sin(1.7 * i + 0.3 + seed))) / 128 for i in range(count)]
    rounded = torch.tensor(values, dtype=torch.float64).to(torch.bfloat16)
    return rounded.reshape(shape).to(getattr(torch, dtype)).to(device)


def call(name: str, schema: str, dtype: str, device: str = "cpu") -> dict[str, Any]:
    """Do one public call: {"dtype", "values"} or {"error"}, and the `shape` that it took."""
    problem = "no arguments known"
    for shape in SHAPES:
        given = arguments(schema, shape, dtype, device)
        if given is None:
            break
        try:
            with torch.no_grad():
                result = function(name, schema)(*given)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            continue
        first = result[0] if isinstance(result, (list, tuple)) else result
        if not isinstance(first, torch.Tensor):
            return {"error": "no tensor comes back", "shape": list(shape)}
        values = first.detach().to("cpu").to(torch.float64).flatten().tolist()
        kind = str(first.dtype).removeprefix("torch.")
        return {"dtype": kind, "values": values[:256], "size": list(first.shape), "shape": list(shape)}
    return {"error": problem}


def function(name: str, schema: str) -> Callable[..., Any]:
    """The public function of that name, else the operator's packet: its overload is chosen by the arguments."""
    public = getattr(torch, name, None)
    if callable(public) and not name.startswith("_"):
        return public  # type: ignore[no-any-return]
    packet: Callable[..., Any] = getattr(torch.ops.aten, name)
    return packet


def words(name: str, schema: str) -> str:
    """The call as a reader would write it."""
    parsed = torch._C.parse_schema(schema)
    shown = []
    for argument in parsed.arguments:
        if argument.kwarg_only or (argument.has_default_value() and argument.name != "dim"):
            break
        shown.append("x" if str(argument.type) == "Tensor" else argument.name)
    home = "torch" if callable(getattr(torch, name, None)) and not name.startswith("_") else "torch.ops.aten"
    return f"{home}.{name}({', '.join(shown)})"


def main() -> None:
    """Answer a list of [name, schema] with the results of `call` in fp64 and in every dtype of `DTYPES`."""
    wanted = json.load(sys.stdin)
    answers = [{dtype: call(name, schema, dtype) for dtype in ("float64", *DTYPES)} for name, schema in wanted]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
