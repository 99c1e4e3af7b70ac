"""One launch script: its text through the shell reader, its commands to settings."""

from __future__ import annotations

from pathlib import Path

from logdiff.audit.readers.collect import Collector
from logdiff.audit.readers.commands import Launcher
from logdiff.audit.readers.expansion import UNKNOWN
from logdiff.audit.readers.shell import Script
from logdiff.audit.readers.text import MAX_BYTES
from logdiff.audit.settings import Setting


def read_script(text: str, path: Path, shown: str, collector: Collector, given: set[Path]) -> None:
    """Read a script; `given` are the files that are read anyway, so that starting one of them needs no word."""
    if "\r\n" in text:
        collector.unread(shown, "lines end in CR LF; bash would keep the CR, here it is taken off")
        text = text.replace("\r\n", "\n")
    text = UNKNOWN.sub("?", text)
    launchers: list[Launcher] = []
    sourced: list[str] = []

    def source(name: str, line: int) -> bytes | None:
        found = sibling(path, name)
        if found is None or found.stat().st_size > MAX_BYTES:
            collector.unread(f"{shown}:{line}", f"sources {UNKNOWN.sub('…', name)}, which is not there")
            return None
        sourced.append(str(found))
        return found.read_bytes().replace(b"\r\n", b"\n")

    script = Script(
        lambda command: launchers[0].command(command),
        lambda line, why: collector.unread(f"{shown}:{line}", why),
        source,
    )
    launchers.append(Launcher(shown, collector, script.variables, script.files))
    try:
        script.run(text.encode("utf-8"))
    except (ValueError, RecursionError) as error:
        collector.unread(shown, f"not followed to its end: {type(error).__name__}: {error}")
    launchers[0].finish(script.visible(), script.conditions)
    for name, old, was, value, line in script.repeated:
        first = Setting("both", f"env.{name}", old, name, f"{shown}:{was}", "env")
        second = Setting("both", f"env.{name}", value, name, f"{shown}:{line}", "env")
        collector.evidence.repeated.append((first, second))
    for name, line in launchers[0].scripts:
        found = sibling(path, name)
        if found is None or found.resolve() not in given:
            collector.unread(f"{shown}:{line}", f"starts {UNKNOWN.sub('…', name)}: give that file as well")
    for name in sorted(set(script.functions) - script.called):
        collector.unread(shown, f"function {name} is not called here")


def sibling(script: Path, name: str) -> Path | None:
    """The file that a script names: by its own path, or by the known end of a path whose start is unknown."""
    tail = UNKNOWN.split(name)[-1].lstrip("/") if UNKNOWN.search(name) else name
    if not tail:
        return None
    folder = script.parent
    candidates = [folder / tail, *(parent / tail for parent in list(folder.resolve().parents)[:2])]
    return next((c for c in candidates if c.is_file()), None)
