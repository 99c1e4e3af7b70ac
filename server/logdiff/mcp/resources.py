"""Resources: the Skill, and the small files of a case, read through the same confinement as every path argument."""

from __future__ import annotations

import re
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from logdiff.errors import LogdiffError
from logdiff.mcp.workspace import Workspace
from logdiff.skill import reference_text, skill_text

MAX_BYTES = 900_000
"""Largest file sent; older HTTP clients refuse events above 1 MiB. The report's size decides that it is a path too."""

_SERVED = re.compile(
    r"manifest\.json|meta\.json|journal\.jsonl|report\.(html|md)|results/[^/]+\.json"
    r"|sides/[^/]+/(fingerprint|weights-step\d+)\.json"
)


def add_resources(server: MCPServer, workspace: Workspace) -> None:
    """Register `skill://logdiff/SKILL.md`, its references, and the template `case://{+path}`."""

    @server.resource(
        "skill://logdiff/SKILL.md",
        name="SKILL.md",
        description="When and how to use these tools, what results mean, and what to watch for.",
        mime_type="text/markdown",
    )
    def skill() -> str:
        return skill_text()

    @server.resource(
        "skill://logdiff/skill/references/{name}",
        name="reference",
        description="A page that SKILL.md points to: a playbook as it stands without a case, or the list of causes.",
        mime_type="text/markdown",
    )
    def reference(name: str) -> str:
        text = reference_text(name)
        if text is None:
            raise ResourceNotFoundError("no such reference; SKILL.md names them")
        return text

    @server.resource(
        "case://{+path}",
        name="case file",
        description="A file of a case: <case>/manifest.json, meta.json, journal.jsonl, results/*.json, "
        "sides/<side>/fingerprint.json, report.html. <case> is relative to the workspace root.",
        mime_type="text/plain",
    )
    def case_file(path: str) -> str:
        return read(workspace, path)


def uris(workspace: Workspace, case: Path) -> list[str]:
    """URIs of the result files that exist in a case."""
    files = [case / "manifest.json", *sorted((case / "results").glob("*.json")), case / "report.html"]
    return [f"case://{workspace.relative(f)}" for f in files if f.is_file() and f.is_relative_to(workspace.root)]


def read(workspace: Workspace, path: str) -> str:
    """Text of one served file.

    Raises:
        ResourceNotFoundError: not below the root, not part of a case, or not one of the served names.
        ResourceError: too large to send; the text says where it lies.
    """
    try:
        file = workspace.path(path, "uri")
    except LogdiffError as error:
        raise ResourceNotFoundError(f"{error.message}; {error.hint}") from None
    case = next((p for p in file.parents if p != workspace.root and (p / "manifest.json").is_file()), None)
    if case is None or not file.is_file() or not _SERVED.fullmatch(file.relative_to(case).as_posix()):
        raise ResourceNotFoundError("not a served file of a case; see the description of case://{+path}")
    if file.stat().st_size > MAX_BYTES:
        raise ResourceError(f"{file.stat().st_size} bytes are too many to send; open the file {file}")
    return file.read_text(encoding="utf-8", errors="replace")
