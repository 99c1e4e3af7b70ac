"""Proof that engines are native again: their dispatch tables, and the bits of a case's log-probabilities."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from logdiff.align.plan import read_source
from logdiff.align.state import State
from logdiff.errors import EngineError, EvidenceError, InputError, LogdiffError
from logdiff.live import RunFile, dispatch, resolve_models
from logdiff.live import run as run_live
from logdiff.live.layout import floor_axis, generated, rescored, scored
from logdiff.target import OnProgress

BASE = {"rollout": generated(0), "rescore": rescored(0), "train": scored(0)}
RERUN = {side: floor_axis(side, "rerun", "same") for side in BASE}


def prove(
    state: State, identity: str, *, case: Path | None, bits: bool, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Compare the engines as this shell's environment would start them with what they were before.

    Returns:
        `native`: True when every dispatch table that was recorded before is the same now and no bit moved, False when
        one is not, None where nothing was recorded before. `dispatch`: {side: {"same", "native", "before", "now"}}.
        `bits`: {side: {"same": true, false or null, "detail"}}, empty where they were not asked for. `undetermined`:
        what could not be measured, one sentence each.
    """
    proof: dict[str, Any] = {"native": None, "dispatch": {}, "bits": {}, "undetermined": []}
    try:
        document = state.read_plan(identity)
        run, own_case = read_source(Path(document["source"]))
        models = resolve_models(run, on_progress)
    except LogdiffError as error:
        proof["undetermined"].append(f"nothing is known of the state before: {error.message}")
        return proof
    unmeasured: list[str] = []
    for side in document["sides"]:
        before = (document["facts"].get(side) or {}).get("dispatch")
        if not before:
            unmeasured.append(f"the {side} side's dispatch was not recorded before")
            continue
        try:
            now = dispatch(run.spec(side, models[side]), on_progress)
        except InputError as error:  # such as a LOGDIFF_ALIGN that is still set
            proof["dispatch"][side] = {"same": False, "native": False, "detail": f"{error.message}; {error.hint}"}
            continue
        except EngineError as error:
            unmeasured.append(f"the {side} side's dispatch could not be asked for: {error.message}")
            continue
        same = now["digest"] == before["digest"] and now["native"]
        proof["dispatch"][side] = {
            "same": same,
            "native": now["native"],
            "before": before["digest"],
            "now": now["digest"],
            "foreign": now["foreign"],
        }
    proof["undetermined"] += unmeasured
    stock = case if case is not None else own_case
    if bits and stock is not None:
        try:
            proof["bits"] = _bits(run, stock, state, proof["undetermined"], on_progress)
        except (EngineError, EvidenceError) as error:
            proof["undetermined"].append(f"bits could not be compared: {error.message}")
    judged = [entry["same"] for entry in proof["dispatch"].values()]
    moved = [entry["same"] for entry in proof["bits"].values()]
    if False in judged or False in moved:
        proof["native"] = False
    elif judged and not unmeasured:
        proof["native"] = True
    return proof


def _bits(
    run: RunFile, stock: Path, state: State, undetermined: list[str], on_progress: OnProgress | None
) -> dict[str, Any]:
    """Decode and score the stock case's tokens again, natively, and compare each side's bits with its captures."""
    from logdiff.case import Case

    with Case.open(stock, verify=False) as opened:
        aligned = ((opened.manifest.inputs.get("run") or {}).get("align") or {}).get("ops")
        if aligned or not (opened.path / BASE["rollout"]).is_file():
            undetermined.append("the case holds no native captures to compare bits with")
            return {}
        path = opened.path
    data = {**run.model_dump(), "steps": 1, "align": {"tokens": str(path)}}
    native = RunFile.from_dict(data, source=str(stock))
    folder = state.root / "proof" / f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    with run_live(native, folder, on_progress=on_progress, name="proof") as made:
        return {side: _side_bits(side, path, made.path) for side in BASE if (made.path / BASE[side]).is_file()}


def _side_bits(side: str, stock: Path, again: Path) -> dict[str, Any]:
    """Compare one side with its capture, or with the rerun of the case's floor, which was made in the same way."""
    now = _logprobs(again / BASE[side])
    known = {name: _logprobs(stock / name) for name in (BASE[side], RERUN[side]) if (stock / name).is_file()}
    seen = []
    for name, before in known.items():
        if len(before) != len(now):
            continue
        different = sum(a != b for a, b in zip(before, now, strict=True))
        if different == 0:
            return {"same": True, "detail": f"{len(now)} tokens, every bit as in {name}"}
        seen.append(f"{different} of {len(now)} tokens differ from {name}")
    if len(known) == 2:
        unstable = sum(a != b for a, b in zip(*known.values(), strict=False))
        if unstable:
            seen.append(f"natively {unstable} tokens differ from run to run: the bits decide nothing")
            return {"same": None, "detail": "; ".join(seen)}
        return {"same": False, "detail": "; ".join(seen)}
    if side == "train":
        return {"same": False, "detail": "; ".join(seen)}
    seen.append("the case has no floor, so it is not known whether a rerun gives the same bits natively")
    return {"same": None, "detail": "; ".join(seen)}


def _logprobs(path: Path) -> list[int]:
    """The fp32 bits of a capture's log-probabilities, token by token."""
    import numpy as np

    from logdiff.case.sequences import read_sequences

    bits: list[int] = read_sequences(path).columns["logprobs"].view(np.uint32).tolist()
    return bits
