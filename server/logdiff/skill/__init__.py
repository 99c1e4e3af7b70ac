"""The Skill's files, as they travel with the package."""

from __future__ import annotations

from importlib.resources import files


def skill_text() -> str:
    """SKILL.md, the page that tells an agent when and how to use logdiff."""
    return files(__name__).joinpath("SKILL.md").read_text(encoding="utf-8")


def reference_text(name: str) -> str | None:
    """A file of the Skill's references, such as "triage.md"; None where there is none of that name."""
    found = {entry.name: entry for entry in files(__name__).joinpath("references").iterdir()}.get(name)
    return found.read_text(encoding="utf-8") if found is not None else None
