"""A case as a page, as plots, as a short text: what a person sees of the evidence.

Nothing heavy is imported until something is drawn.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logdiff.case import Case

__all__ = ["markdown", "render", "table"]


def render(
    case: Case,
    output: str | PathLike[str],
    png_dir: str | PathLike[str] | None = None,
    earlier: Case | None = None,
) -> dict[str, Any]:
    """Write the report of a case as one self-contained HTML file.

    Args:
        case: the case; what it lacks is named on the page.
        output: the HTML file; its folder is made, an existing file is replaced at once.
        png_dir: where to save each plot as `<name>.png` as well; made if needed.
        earlier: a second case to set beside this one (before and after).

    Returns:
        `{"html": Path, "png": [Path, ...]}`.

    Raises:
        InputError: `output` is a folder.
    """
    from logdiff.report.page import render_page

    return render_page(case, Path(output), None if png_dir is None else Path(png_dir), earlier)


def markdown(case: Case) -> str:
    """The one-sentence summary and the table of pairs and floor as Markdown, without drawing anything."""
    from logdiff.report import summary
    from logdiff.report.files import read_files
    from logdiff.report.floor import read_floor

    files = read_files(case)
    return summary.markdown(files, summary.pair_rows(files.measure, _pass(case, files)), read_floor(files.floor))


def table(case: Case) -> list[dict[str, Any]]:
    """One row per pair of sides: `pair, title, tokens, mismatched_tokens, max_abs, mean_abs, mean, k3_kl, reason`.

    Numbers are in nats, None where there are none; `reason` then says why.
    """
    from logdiff.report import summary
    from logdiff.report.files import read_files

    files = read_files(case)
    return summary.table(files, _pass(case, files))


def _pass(case: Case, files: Any) -> Any:
    """A pass over the tokens, needed only where `logdiff measure` left no result."""
    if files.measure:
        return None
    from logdiff.report.page import read_profile

    return read_profile(case, files)
