"""The folder that the tools may touch: every path argument ends inside it or is refused."""

from __future__ import annotations

import re
import time
from pathlib import Path

from logdiff.errors import InputError

STATE = ".logdiff-mcp"
"""Folder below `runs/` for job records, job logs and the audit log."""

_INTERPRETER = re.compile(r"^python[0-9.]*$")


class Workspace:
    """One root folder, and the places below it.

    Args:
        root: an existing folder; symbolic links in it are followed once, here.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError("no such folder", value=str(root), hint="give an existing folder with --root DIR")
        self.root = root.resolve()

    @property
    def state(self) -> Path:
        """The server's own folder."""
        return self.root / "runs" / STATE

    def path(self, value: str, what: str, *, exists: bool = True) -> Path:
        """Resolve `value` (absolute or relative to the root), symbolic links included.

        Args:
            value: the argument as the client sent it.
            what: name of the argument, for messages.
            exists: require that something is there.

        Raises:
            InputError: it is empty, starts with "-", holds a NUL, lies outside the root, or does not exist.
        """
        if not value or "\0" in value or value.startswith("-"):
            raise InputError(f"`{what}` is not a path", value=value, hint=f"give a path below {self.root}")
        try:
            found = (self.root / value).resolve()
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"`{what}` can't be resolved: {error}", value=value, hint=f"give a path below {self.root}"
            ) from None
        if not found.is_relative_to(self.root):
            raise InputError(
                f"`{what}` lies outside the workspace",
                value=value,
                hint=f"paths must stay below {self.root}, links included; `logdiff serve --root DIR` sets another root",
            )
        if found.is_relative_to(self.state):
            raise InputError(f"`{what}` is the server's own folder", value=value, hint="give another path")
        if exists and not found.exists():
            raise InputError(f"`{what}` does not exist", value=value, hint=f"paths are relative to {self.root}")
        return found

    def case(self, value: str) -> Path:
        """An existing case folder."""
        found = self.path(value, "case")
        if not (found / "manifest.json").is_file():
            raise InputError(
                "not a case folder: it has no manifest.json",
                value=value,
                hint="give the `case` that logdiff_run, logdiff_measure or case_import returned",
            )
        return found

    def new_case(self, value: str, name: str) -> Path:
        """The folder for new evidence: `value` where given, else `runs/<time>-<name>`."""
        if value:
            found = self.path(value, "case", exists=False)
            if found == self.root:
                raise InputError("`case` is the workspace itself", value=value, hint="give a folder below it")
            return found
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "case"
        base = self.root / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}"
        folder, number = base, 2
        while folder.exists():
            folder, number = base.with_name(f"{base.name}-{number}"), number + 1
        return self.path(str(folder), "case", exists=False)

    def interpreter(self, value: str) -> str:
        """A Python interpreter that lies below the root.

        A virtual environment's `bin/python` is a link that leads out by design, so the folder that holds it is
        resolved, not the link itself.
        """
        if not value or "\0" in value or value.startswith("-"):
            raise InputError("`python` is not a path", value=value, hint="such as .venv/bin/python")
        lexical = self.root / value
        folder = lexical.parent.resolve()
        if not _INTERPRETER.match(lexical.name) or not folder.is_relative_to(self.root):
            raise InputError(
                "`python` must be an interpreter inside the workspace",
                value=value,
                hint=f"such as .venv/bin/python below {self.root}; `logdiff env --python PATH` takes any",
            )
        if not lexical.is_file():
            raise InputError("`python` does not exist", value=value, hint=f"paths are relative to {self.root}")
        return str(folder / lexical.name)

    def relative(self, path: Path | str) -> str:
        """A path as the tools show it: relative to the root where it lies below it."""
        found = Path(path)
        return str(found.relative_to(self.root)) if found.is_relative_to(self.root) else str(found)
