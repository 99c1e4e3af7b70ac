"""Pages: templates of `playbooks/`, in a sandbox, filled with what is known. A template decides nothing."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from logdiff.errors import InputError
from logdiff.playbook.calls import all_calls, page_for, the_next
from logdiff.playbook.foreign import Foreign, quoted
from logdiff.playbook.situation import Known, situation
from logdiff.playbook.tables import PAGES
from logdiff.verdict.causes import Cause, cause, causes

LONGEST = 5200
"""Most characters of a page: a tool's answer has room for it and its next steps."""

CATALOGUE = "causes"
"""Name of the page that lists the catalogue."""


def render_page(known: Known, name: str = "") -> tuple[str, str]:
    """Name and Markdown of a page; without a name, of the one that the situation calls for.

    Raises:
        InputError: no such page.
    """
    name = name or page_for(known)
    if name not in PAGES:
        raise InputError("no such playbook", value=name, hint=f"one of {', '.join(PAGES)}, {CATALOGUE}")
    calls = all_calls(known, name)
    call = the_next(calls)
    text = _environment().get_template(f"{name}.md.j2").render(
        page=PAGES[name],
        name=name,
        state=known.state,
        workspace=known.workspace,
        situation=situation(known),
        call=call,
        others=[other for other in calls if other is not call and (other.ready or not known.state)],
        suspects=_suspects(known),
        ids_of=_ids_of,
    )  # fmt: skip
    return name, bounded(text)


def render_causes(name: str = "") -> str:
    """The catalogue's ids by class, or one entry.

    Raises:
        InputError: no such cause.
    """
    if not name:
        return _environment().get_template("_causes.md.j2").render(classes=_classes())
    return bounded(_environment().get_template("_cause.md.j2").render(entry=cause(name)))


def bounded(text: str) -> str:
    """At most `LONGEST` characters, cut at the end of a line, and said so."""
    if len(text) <= LONGEST:
        return text
    kept = text[: LONGEST - 80]
    return kept[: kept.rindex("\n")] + "\n\n(cut here: the case's files and its report have all of it)\n"


def _suspects(known: Known) -> list[Cause]:
    """Entries of the catalogue that the verdict and its first candidates name."""
    state = known.state
    if state is None or state.verdict is None:
        return []
    named = [state.verdict.cause, *(c for c, _, _ in state.candidates)]
    catalogue = causes()
    return [catalogue[c] for c in dict.fromkeys(named) if c in catalogue][:3]


def _ids_of(class_: str) -> list[str]:
    return [entry.id for entry in causes().values() if entry.class_ == class_]


def _classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in causes().values():
        found.setdefault(entry.class_, []).append(entry.id)
    return found


def _load(name: str) -> str | None:
    """A template of the package; no other file can be named."""
    if "/" in name or "\\" in name or not name.endswith(".md.j2"):
        return None
    return files("logdiff.playbook").joinpath("pages", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    made = SandboxedEnvironment(
        loader=FunctionLoader(_load),
        undefined=StrictUndefined,
        autoescape=False,  # pages are Markdown; what is foreign is quoted by `finalize`
        finalize=lambda value: quoted(value) if isinstance(value, Foreign) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["num"] = _number
    made.filters["code"] = quoted
    made.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    made.filters["line"] = lambda value: json.dumps(value, ensure_ascii=True)
    return made


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value != int(value) or abs(value) >= 1e6 else f"{int(value)}"
    return quoted(value) if isinstance(value, Foreign) else str(value)
