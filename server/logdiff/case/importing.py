"""From files of a foreign format to a sealed case."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from logdiff.case.case import Case
from logdiff.case.manifest import MANIFEST
from logdiff.errors import CaseError, LogdiffError


def import_case(
    format: str,
    paths: Iterable[str | os.PathLike[str]],
    case_dir: str | os.PathLike[str] | None,
    mapping: Mapping[str, str] | None = None,
    *,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Case:
    """Read files into a new case, in bounded memory, and seal it.

    An import that was cut off in the same folder, from the same files, is started again there.

    Args:
        format: a name of `logdiff.case.readers.FORMATS`.
        paths: the files.
        case_dir: where the case goes; None takes `runs/<time>-<name>`.
        mapping: field -> where it stands in the files (format `jsonl`).
        on_tokens: called with the number of response tokens read so far.

    Raises:
        InputError: unknown format, or a file that can't be read; the case then stays open and holds no table.
        CaseError: the folder holds another case.
    """
    from logdiff.case.readers import read

    files = [os.fspath(path) for path in paths]
    meta, batches = read(format, files, mapping)
    inputs: dict[str, object] = {
        "format": format,
        "paths": [str(Path(f).resolve()) for f in files],
        "mapping": dict(mapping or {}),
    }
    case = _open_or_create(case_dir, Path(files[0]).name.split(".")[0], inputs)
    try:
        case.write_meta(meta)
        tokens = samples = 0
        with case.open_writer() as writer:
            for batch in batches:
                writer.append(batch)
                tokens += batch.tokens
                samples += batch.samples
                on_tokens(tokens)
        case.journal.append("imported", samples=samples, tokens=tokens)
        case.seal()
    except LogdiffError as error:
        case.journal.append("failed", error=error.as_dict()["error"])
        raise
    finally:
        case.close()
    return case


def _open_or_create(case_dir: str | os.PathLike[str] | None, name: str, inputs: dict[str, object]) -> Case:
    if case_dir is None or not (Path(case_dir) / MANIFEST).is_file():
        return Case.create(case_dir, name, "import", inputs)
    case = Case.open(case_dir)
    if case.is_complete or case.manifest.kind != "import" or case.manifest.inputs != inputs:
        state = "complete" if case.is_complete else "open"
        raise CaseError(
            f"the folder holds another case ({case.manifest.kind}, {state})",
            value=str(case_dir),
            hint="give a new folder with --case",
        )
    return case
