"""Results as text and rich tables for a terminal. Everything shown comes from the JSON result."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from logdiff.report.wording import as_float, number, percent, visible

PAIRS = {
    "decode_train": "decode → train",
    "decode_rescore": "decode → rescore",
    "rescore_train": "rescore → train",
}
ROWS_OF_CHANGES = 60
COLUMNS_ABREAST = 12
"""A result with more columns than this is unreadable as one table."""


def measure_table(data: dict[str, Any]) -> list[Any]:
    """What the gates found, the triangle with the floor beneath it, and where the evidence is."""
    parts: list[Any] = [*_gates(data["gates"]), triangle([("", data)]), *_absent(data), *_floor(data)]
    if not data["measure"]["tokens"]:
        parts.append("Nothing comparable: no token has mask 1 and both log-probabilities.")
    exceeded = (data.get("fail_above") or {}).get("exceeded")
    if exceeded:
        limits = data["fail_above"]["limits"]
        found = ", ".join(f"{k} {_whole(v)} > {_whole(limits[k])}" for k, v in exceeded.items())
        parts.append(f"above the limit: {found}")
    parts.append(f"case: {data['case']}")
    return parts


def demo_table(data: dict[str, Any]) -> list[Any]:
    """The demo's table, and what to look at next."""
    named = [(name, data[name]) for name in ("stock", "aligned") if data.get(name)]
    several = len(named) > 1
    found = [(name if several else "", part) for name, result in named for part in _gates(result["gates"])]
    title = f"{data['model']}: {data['rollout']} against transformers, same tokens, same weights"
    table = triangle(named if several else [("", named[0][1])], title)
    gates = [f"{name} {part}".strip() for name, part in found]
    return [
        *gates,
        table,
        *_absent(named[0][1]),
        *_floor(named[0][1]),
        *(_proof(data["aligned"]) if data.get("aligned") else []),
        *(f"case:   {result['case']}" + (f" ({name})" if several else "") for name, result in named),
        f"report: {data['report']}",
    ]


def _proof(aligned: dict[str, Any]) -> list[str]:
    block = aligned["measure"]
    tokens, different = int(block["tokens"]), int(block["mismatched_tokens"])
    return [f"aligned: {different:,} of {tokens:,} tokens differ in any bit between rollout and train"]


def triangle(results: list[tuple[str, dict[str, Any]]], title: str | None = None) -> Table:
    """One row per pair of sides: tokens, bit-different, max |d|, mean |d|, mean d, KL; the floor below."""
    caption = "d = second - first, nats; KL is k3"
    table = Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("pair", no_wrap=True)
    for heading in ("tokens", "bit-different", "max |d|", "mean |d|", "mean d", "KL"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results:
        for pair, heading in PAIRS.items():
            block = (result.get("pairs") or {}).get(pair)
            label = f"{name} {heading}".strip()
            if block is not None:
                table.add_row(label, *_cells(block))
        floor = result.get("floor") or {}
        for side, block in (floor.get("by_side") or {}).items():
            cells = (number(block.get("max_abs"), 3), number(block.get("mean_abs"), 3))
            different = number(block.get("mismatched_tokens"))
            table.add_row(Text(f"{name} floor of {side}".strip(), style="dim"), "", different, *cells, "", "")
    return table


def _absent(data: dict[str, Any]) -> list[str]:
    unavailable = data.get("unavailable") or {}
    return [f"no {PAIRS[pair]}: {visible(str(reason))}" for pair, reason in unavailable.items() if pair in PAIRS]


def _floor(data: dict[str, Any]) -> list[str]:
    """How the signal stands to the floor, where there are both."""
    from logdiff.measure import within_floor

    floor = data.get("floor") or {}
    if not data["measure"]["tokens"] or as_float(floor.get("mean_abs")) is None:
        return []
    if within_floor(data["measure"], floor):
        return ["within the floor: a side differs from itself as much when only shapes change"]
    return ["above the floor: more than a side differs from itself when only shapes change"]


def _cells(block: dict[str, Any]) -> list[str]:
    tokens, different = int(block["tokens"]), int(block["mismatched_tokens"])
    share = f"{different:,} ({percent(different, tokens)})"
    return [f"{tokens:,}", share, *(number(block.get(k), 3) for k in ("max_abs", "mean_abs", "mean", "k3_kl"))]


def _whole(value: Any) -> str:
    return number(int(value)) if isinstance(value, float) and value.is_integer() else number(value)


def _gates(gates: list[dict[str, Any]]) -> list[str]:
    failed = [f"gate {g['gate']} FAILS: {visible(str(g['detail']))}" for g in gates if g["ok"] is False]
    unknown = [str(g["gate"]) for g in gates if g["ok"] is None]
    counts = [f"{sum(g['ok'] is True for g in gates)} hold", *([f"{len(failed)} fail"] if failed else [])]
    if unknown:
        counts.append(f"not judged: {', '.join(unknown)}")
    return [*failed, f"gates: {'; '.join(counts)}"]


def compare_table(data: dict[str, Any]) -> list[Any]:
    """What changed, one row each."""
    changed = data["changed"]
    if not changed:
        return ["Nothing changed."]
    table = Table(caption_justify="left")
    for heading in ("what", "before", "after", "change"):
        table.add_column(heading, overflow="fold")
    for entry in changed[:ROWS_OF_CHANGES]:
        relative = as_float(entry.get("relative"))
        change = "" if relative is None else f"{100 * relative:+.3g} %"
        show = _gate if str(entry["what"]).startswith("gate.") else _value
        cells = (visible(str(entry["what"])), show(entry["before"]), show(entry["after"]), change)
        table.add_row(*(Text(cell) for cell in cells))
    if len(changed) > ROWS_OF_CHANGES:
        table.caption = f"{len(changed) - ROWS_OF_CHANGES} more; --json has all"
    return [table]


def query_table(data: dict[str, Any]) -> list[Any]:
    """The rows of a query; many columns are set below one another, one block per row."""
    columns = [visible(str(column), 80) for column in data["columns"]]
    table = Table(show_header=len(columns) <= COLUMNS_ABREAST, show_lines=False)
    if len(columns) <= COLUMNS_ABREAST:
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in data["rows"]:
            table.add_row(*(Text(_value(v)) for v in row))
    else:
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in data["rows"]:
            for column, value in zip(columns, row, strict=True):
                table.add_row(Text(column), Text(_value(value)))
            table.add_section()
    return [table, *(["more rows exist; --limit takes more"] if data["truncated"] else [])]


def models_table(data: dict[str, Any]) -> Table:
    """The catalogue of local models."""
    rows = [{**row, "cached": row.get("cached") is not None} for row in data["models"]]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_value(row.get(column)) for column in columns))
    return table


def env_table(data: dict[str, Any]) -> list[Any]:
    """Facts of an environment, one row each, nested names joined by dots."""
    return [_facts([data])]


def _facts(blocks: list[dict[str, Any]]) -> Table:
    table = Table(show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for block in blocks:
        for key, value in _flat(block, ""):
            # sentences about a provider are shown whole
            shown = visible(value, 4000) if key in ("missing", "limits") else _value(value)
            table.add_row(Text(key), Text(shown))
        table.add_section()
    return table


def _flat(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in _flat(inner, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, value)] if value is not None and prefix != "format" else []


def _gate(ok: Any) -> str:
    return "not judged" if ok is None else "holds" if ok is True else "FAILS"


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 6)
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(v) for v in value)
    return visible(str(value))


def plan_table(data: dict[str, Any]) -> list[Any]:
    """The operators of a plan by side, what isn't covered, and how to go on."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("operator", *(f"cost of {side}" for side in data["sides"]), "why"):
        table.add_column(heading, overflow="fold")
    rows: dict[str, dict[str, Any]] = {}
    for row in data["operators"]:
        rows.setdefault(row["op"], {"why": row["why"]})[row["side"]] = row["cost"]
    for op, row in rows.items():
        table.add_row(op, *(_cost(row.get(side)) for side in data["sides"]), row["why"])
    lines = [f"{item['side']}: {item['module']} can't be aligned: {item['why']}" for item in data["not_covered"]]
    lines += [f"{item['side']}: not checked yet: {item['why']}" for item in data["unchecked"]]
    measured = data["cost"]["measured_on"]
    note = f"cost: {data['cost']['unit']}, measured on {measured}" if measured else "cost: not measured, so unknown"
    lines += [note, f"overlay: {data['overlay']}"]
    if not data["not_covered"]:
        lines.append(f"next: logdiff align apply {data['id']}")
    return [table, *(visible(line, 600) for line in lines)]


def _cost(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def align_table(data: dict[str, Any]) -> list[Any]:
    """What is on, whether the engines are native, and how that is known."""
    words = {True: "native", False: "aligned" if data["overlay"] else "NOT native", None: "native is not proven"}
    parts = [f"engines: {words[data['native']]}"]
    for side in ("rollout", "train"):
        ops = [row["op"] for row in data["active"] if row["side"] == side]
        if ops:
            parts.append(f"{side}: {', '.join(ops)}")
    if data["overlay"]:
        parts += [f"overlay: {data['overlay']}", f"switch a shell on: . {data['overlay']}/env.sh"]
    proof = data.get("proof") or {}
    for side, entry in (proof.get("dispatch") or {}).items():
        parts.append(f"{side}: dispatch {'as before' if entry['same'] else 'CHANGED ' + str(entry.get('detail', ''))}")
    for side, entry in (proof.get("bits") or {}).items():
        parts.append(f"{side}: bits {_gate(entry['same'])}: {entry['detail']}")
    parts += [str(words) for words in proof.get("undetermined") or []]
    parts += [f"problem: {problem}" for problem in data["problems"]]
    return [visible(part, 600) for part in parts]


def kernels_table(data: dict[str, Any]) -> list[Any]:
    """Providers, one fact a row, or what a build made: its facts, and one row per library."""
    if "providers" in data:
        return [_facts([_provider(row) for row in data["providers"]])]
    facts = _facts([{key: value for key, value in data.items() if key != "kernels"}])
    return [facts, _libraries(data["kernels"])] if "kernels" in data else [facts]


def _provider(row: dict[str, Any]) -> dict[str, Any]:
    """Sentences may hold commas; kernels without a hash are said to be not built."""
    shown = {key: "; ".join(value) if key in ("missing", "limits") else value for key, value in row.items()}
    if "binary_hash" in shown and shown["binary_hash"] is None:
        shown["binary_hash"] = "not built"
    return shown


def _libraries(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("compiled in (s)", justify="right", no_wrap=True)
    table.add_column("library", overflow="fold")
    for row in rows:
        took = "cached" if row["cached"] else number(row["seconds"], 3)
        table.add_row(row["kernel"], took, str(row["path"]))
    return table


def selftest_table(data: dict[str, Any]) -> list[Any]:
    """Laws that fail, how many hold, of NPU kernels the parts and notes, and what differs from another host."""
    laws = data["laws"]
    broken = [f"{law['kernel']}: {law['law']} FAILS: {law['detail']}" for law in laws if not law["ok"]]
    kernels = len({law["kernel"] for law in laws})
    words = [
        f"{data['provider']} ({data['arch']}): {len(laws) - len(broken)} of {len(laws)} laws hold, {kernels} kernels"
    ]
    for part in data.get("sections", []):
        held = f"{part['checks'] - part['failed']} of {part['checks']} hold"
        words.append(f"{part['name']}: {held}, fingerprint {part['fingerprint'][:12]}")
    words += [f"note: {note}" for note in data.get("notes", [])]
    compared = data.get("compared")
    if compared is not None:
        words += [f"differs: {sentence}" for sentence in compared["differences"]]
        words += [f"remark: {sentence}" for sentence in compared["remarks"]]
        agree = "the two reports agree in all that both tried" if compared["remarks"] else "the two reports agree"
        words.append(agree if compared["same"] else "the two reports differ")
    return [visible(line, 600) for line in (*broken, *words)]


def bench_table(data: dict[str, Any]) -> list[Any]:
    """One row per case and peer."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    left = ("case", "shape", "peer")
    for heading in ("case", "shape", "ours (ms)", "peer", "peer (ms)", "ratio", "spread"):
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    for row in data["results"]:
        figures = (number(row["ours_ms"], 3), row["peer"], number(row["peer_ms"], 3))
        table.add_row(row["case"], row.get("shape", ""), *figures, f"{row['ratio']:.2f}", f"{row['spread']:.2f}")
    skipped = [visible(f"{row['case']} skipped: {row['reason']}", 400) for row in data.get("skipped", [])]
    if "model" in data:
        return [_model_table(data["model"]), *skipped, data["note"]]
    return [table, *skipped, "ratio: peer's time / ours"]


def _model_table(rows: list[dict[str, Any]]) -> Table:
    """Figures of the cost model, one row per case."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("case", "shape", "cycles", "over bound", "balance", "busiest"):
        table.add_column(heading, justify="left" if heading in ("case", "shape") else "right", no_wrap=True)
    for row in rows:
        name, share = max(row["busy"].items(), key=lambda item: item[1], default=("", 0.0))
        figures = (f"{row['over_bound']:.3f}", f"{row['balance']:.1%}", f"{name} {share:.0%}")
        table.add_row(row["case"], row["shape"], str(row["cycles"]), *figures)
    return table
