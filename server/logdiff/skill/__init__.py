"""The Skill's files, as they travel with the package."""

from __future__ import annotations

from importlib.resources import files


def skill_text() -> str:
    """SKILL.md, the page that tells an agent when and how to use logdiff."""
    return files(__name__).joinpath("SKILL.md").read_text(encoding="utf-8")
