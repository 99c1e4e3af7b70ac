"""The report as one self-contained HTML file, and its figures as PNG."""

from __future__ import annotations

import base64
import hashlib
import threading
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff import __version__
from logdiff.case.files import write_atomic
from logdiff.errors import CaseError, InputError
from logdiff.measure.stream import PAIRS
from logdiff.report.ascend_profile import read_profile_section
from logdiff.report.audit import read_audit
from logdiff.report.axes import RC, Plot
from logdiff.report.before_after import before_after_plot
from logdiff.report.budget import read_budget
from logdiff.report.dispatch import read_dispatch
from logdiff.report.extremes import STRIP_TOKENS, WORST_SAMPLES, WORST_TOKENS
from logdiff.report.files import CaseFiles, read_files
from logdiff.report.floor import read_floor
from logdiff.report.opening import Sections, opening
from logdiff.report.plots import plots
from logdiff.report.probes import read_probes
from logdiff.report.profile import Profile, profile
from logdiff.report.repeat import repeat
from logdiff.report.sides import side_table
from logdiff.report.strips import LEVELS, strip, token_text
from logdiff.report.summary import COLUMNS, PairRow, failed_gates, main_row, pair_rows, sentence, statistics
from logdiff.report.verdict import read_verdict
from logdiff.report.wording import bits, number, percent, visible

if TYPE_CHECKING:
    from logdiff.case import Case

_DRAWING = threading.Lock()  # matplotlib's settings are one set per process
GATE_ROWS = 100
BATCH_TOKENS = 1 << 18


def read_profile(case: Case, files: CaseFiles) -> Profile | None:
    """One pass over the case's tokens; None where it has no token table, or a damaged one (told in `missing`)."""
    if not files.has_tokens:
        return None
    try:
        return profile(case.batches(BATCH_TOKENS))
    except CaseError as error:
        files.missing.append(f"The token table can't be read, so no token is drawn: {error.message}.")
        return None


def render_page(case: Case, output: Path, png_dir: Path | None = None, earlier: Case | None = None) -> dict[str, Any]:
    """Write the report of `case`; see `logdiff.report.render`."""
    if output.is_dir():
        raise InputError("The report's path is a folder.", value=str(output), hint="Name a file, such as report.html.")
    files = read_files(case)
    tokens = read_profile(case, files)
    floor = read_floor(files.floor)
    rows = pair_rows(files.measure, tokens)
    before = _earlier(earlier) if earlier is not None else None
    earlier_pair = before.pop("profile") if before else None
    figures = plots(tokens, rows, floor, earlier_pair)
    if earlier_pair is not None and tokens is not None and tokens.main is not None:
        now = tokens.pairs[tokens.main]
        figures = [*([before_after_plot(earlier_pair, now)] if earlier_pair.finite and now.finite else []), *figures]
    held = Sections(
        read_audit(case.path, files.missing),
        read_dispatch(case.path, files.missing),
        read_probes(case.path, files.missing),
        read_profile_section(case.path, files.missing),
    )
    probes, dispatch = held.probes, held.dispatch
    summary, state = (sentence(files, rows, floor), _state(rows, files)) if files.compares else opening(held)
    verdict = read_verdict(case.path, files.missing)
    verdict_pictures, first = draw(verdict.plots if verdict is not None else [], png_dir)
    budget = read_budget(case.path, files.missing)
    drawn, saved = draw(figures, png_dir)
    picture, more = draw([probes.plot] if probes is not None and probes.plot is not None else [], png_dir)
    table, again = draw([dispatch.plot] if dispatch is not None and dispatch.plot is not None else [], png_dir)
    bars, once_more = draw([budget.plot] if budget is not None and budget.plot is not None else [], png_dir)
    context = {
        "files": files,
        "summary": summary,
        "state": state,
        "statistics": statistics(rows) if files.measure else [],
        "rows": rows,
        "columns": COLUMNS,
        "gates": gate_rows(files.measure),
        "audit": held.audit,
        "ascend_profile": held.ascend_profile,
        "figures": drawn,
        "verdict": verdict,
        "verdict_pictures": verdict_pictures,
        "probes": probes,
        "probe_picture": picture[0] if picture else None,
        "dispatch": dispatch,
        "dispatch_picture": table[0] if table else None,
        "budget": budget,
        "budget_picture": bars[0] if bars else None,
        "floor": floor,
        "before": before,
        "sides": side_table(files.fingerprints),
        "commands": repeat(case.path, output, files, PAIRS[_main_name(rows, tokens)]),
        "version": __version__,
        **_token_context(files, tokens),
    }
    write_atomic(output, _html(context).encode("utf-8"))
    return {"html": output, "png": [*first, *saved, *more, *again, *once_more]}


def _main_name(rows: list[PairRow], tokens: Profile | None) -> str:
    row = main_row(rows)
    return row.name if row is not None else (tokens.main if tokens is not None else None) or "decode_train"


def _state(rows: list[PairRow], files: CaseFiles) -> str:
    row = main_row(rows)
    if row is None or failed_gates(files.measure):
        return "invalid"
    return "differs" if row.mismatched else "equal"


def _earlier(case: Case) -> dict[str, Any]:
    files = read_files(case)
    tokens = read_profile(case, files)
    rows = pair_rows(files.measure, tokens)
    floor = read_floor(files.floor)
    pair = tokens.pairs[tokens.main] if tokens is not None and tokens.main is not None else None
    return {"name": files.name, "rows": rows, "summary": sentence(files, rows, floor), "profile": pair}


def _token_context(files: CaseFiles, tokens: Profile | None) -> dict[str, Any]:
    if tokens is None or tokens.main is None:
        return {"tokens": tokens, "worst": [], "strips": [], "levels": LEVELS, "limits": {}, "pair": None}
    pair = tokens.pairs[tokens.main]
    worst = [
        {
            "token": w,
            "text": token_text(w.token_id, files.token_text),
            "bits": (bits(w.first_bits), bits(w.second_bits)),
        }
        for w in tokens.worst
        if w.d != 0 or w.first_bits != w.second_bits
    ]
    return {
        "tokens": tokens,
        "pair": pair,
        "pair_name": tokens.main,
        "worst": worst,
        "strips": [strip(s, files.token_text, PAIRS[tokens.main]) for s in tokens.strips],
        "levels": LEVELS,
        "limits": {"samples": WORST_SAMPLES, "tokens": STRIP_TOKENS, "worst": WORST_TOKENS},
    }


def gate_rows(measure: dict[str, Any]) -> list[dict[str, str]]:
    """The gates as name, state (ok, failed, not judged) and detail; at most `GATE_ROWS`, failed ones first."""
    gates = measure.get("gates")
    rows = []
    for gate in gates if isinstance(gates, list) else []:
        if isinstance(gate, dict):
            ok = gate.get("ok")
            state = "ok" if ok is True else "failed" if ok is False else "not judged"
            rows.append({"gate": str(gate.get("gate")), "state": state, "detail": _detail(gate.get("detail"))})
    rows.sort(key=lambda row: ("failed", "not judged", "ok").index(row["state"]))
    return rows[:GATE_ROWS]


def _detail(value: Any) -> str:
    from logdiff.jsonio import dumps

    return "" if value is None else value if isinstance(value, str) else dumps(value)


def draw(figures: list[Plot], png_dir: Path | None) -> tuple[list[dict[str, Any]], list[Path]]:
    """Each plot as inline SVG with its title and caption; with `png_dir` also saved there, paths returned."""
    import matplotlib
    from markupsafe import Markup
    from matplotlib.figure import Figure

    from logdiff.report.svg import inline_svg

    drawn, saved = [], []
    if png_dir is not None:
        png_dir.mkdir(parents=True, exist_ok=True)
    settings: Any = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    settings.update(RC)  # not the user's own settings: the same case gives the same picture everywhere
    with _DRAWING, matplotlib.rc_context(settings):
        for plot in figures:
            figure = Figure(figsize=plot.size, layout="constrained")
            plot.draw(figure)
            # The drawing was made by us from numbers and cleaned labels, and ElementTree escaped it.
            svg = Markup(inline_svg(figure, plot.name, plot.alt))
            drawn.append({"plot": plot, "svg": svg, "wide": plot.size[0] > 6})
            if png_dir is not None:
                target = png_dir / f"{plot.name}.png"
                figure.suptitle(plot.title, x=0.02, ha="left", fontsize=10.5, color=RC["text.color"])
                figure.savefig(target, format="png", metadata={"Software": f"logdiff {__version__}"})
                saved.append(target)
    return drawn, saved


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") + "'"


def _finalize(value: Any) -> Any:
    from markupsafe import Markup

    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, 2000)
    return value


def _html(context: dict[str, Any]) -> str:
    from jinja2 import FunctionLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    folder = package_files("logdiff.report") / "templates"
    style = (folder / "style.css").read_text(encoding="utf-8")
    script = (folder / "strips.js.j2").read_text(encoding="utf-8")
    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number)
    environment.globals.update(percent=percent)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("report.html.j2").render(
        **context,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
    )
