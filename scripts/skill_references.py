"""Write skill/references/*.md from the playbooks, as they stand without a case; `--check` names the outdated ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from logdiff.playbook import PAGES, Known
from logdiff.playbook.render import render_causes, render_page

FOLDER = Path(__file__).resolve().parents[1] / "skill" / "references"


def main() -> int:
    """0 where every file is as it should be (or was written), 1 where `--check` finds one that is not."""
    wanted = {f"{name}.md": render_page(Known(), name)[1] for name in PAGES} | {"causes.md": render_causes()}
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    changed = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if "--check" in sys.argv[1:]:
        if changed:
            print(f"not current: {', '.join(changed)}; run `python scripts/skill_references.py`")
        return 1 if changed else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
