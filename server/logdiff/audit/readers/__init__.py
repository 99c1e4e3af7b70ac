"""Readers of launch scripts, configurations, logs and package lists; a file's form is told by its content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from logdiff.audit.readers import facts, logs, yaml_files
from logdiff.audit.readers.collect import Collector
from logdiff.audit.readers.script import read_script
from logdiff.audit.readers.text import head, lines, read_text, refused
from logdiff.audit.settings import Evidence
from logdiff.errors import InputError

MAX_FILES = 500
_SKIPPED = re.compile(r"\.(py|pyc|safetensors|bin|pt|pth|model|parquet|png|jpg|gz|zip|tar|whl|so|jinja|md|lock)$")
_MODEL_FILES = re.compile(
    r"(tokenizer.*|vocab|added_tokens|special_tokens_map|preprocessor_config|.*\.index)\.json$|merges\.txt$|"
    r".*\.(safetensors|bin|pt|pth|model|jinja)$"
)
"""Files of a model folder that hold weights or the tokenizer."""
_SHELL = re.compile(
    r"^\s*(export\s+\w+=|#!.*\b(ba|z|k|da)?sh\b|set -[a-z]+|source\s|\w+=\(|(python3?|torchrun|vllm|ray|nohup)\s)", re.M
)
_SIDED = re.compile(r"^(rollout|train)=(.+)$", re.S)


def read_paths(paths: Sequence[str | Path]) -> Evidence:
    """Read files and folders. `rollout=PATH` and `train=PATH` say which side a file belongs to.

    Raises:
        InputError: a path that is absent, or none of them could be read.
    """
    evidence = Evidence()
    given: list[tuple[Path, str, str]] = []
    for item in paths:
        match = _SIDED.match(str(item))
        side, name = (match[1], match[2]) if match and not Path(str(item)).exists() else ("", str(item))
        path = Path(name)
        if not path.exists():
            hint = "give launch scripts, configurations, logs, model folders, package lists or case folders"
            raise InputError("no such file or folder", value=name, hint=hint)
        given.append((path, name, side))
    wanted = {p.resolve() for p, _, _ in given}
    for path, name, side in given:
        collector = Collector(evidence, side)
        if path.is_dir():
            _folder(path, name, collector)
        else:
            _file(path, name, collector, wanted)
    if not evidence.settings and not evidence.launches:
        why = evidence.unread[0].why if evidence.unread else "it holds no setting"
        raise InputError(f"nothing to audit in what was given: {why}", value=", ".join(str(p) for p in paths))
    return evidence


def _folder(folder: Path, shown: str, collector: Collector) -> None:
    shown = shown.rstrip("/")
    if (folder / "manifest.json").is_file():
        facts.case_folder(folder, shown, collector)
        collector.evidence.read.append({"path": shown, "form": "case"})
        return
    names = sorted(p for p in folder.iterdir() if not p.name.startswith(".") or p.name == ".hydra")
    if (folder / ".hydra" / "config.yaml").is_file():
        _file(folder / ".hydra" / "config.yaml", f"{shown}/.hydra/config.yaml", collector, set())
    inside = {p.resolve() for p in names[:MAX_FILES] if p.is_file()}
    passed = 0
    for path in names[:MAX_FILES]:
        name = f"{shown}/{path.name}"
        if _MODEL_FILES.match(path.name) or path.name == ".hydra":
            continue
        if path.is_dir() or _SKIPPED.search(path.name):
            passed += 1
        else:
            _file(path, name, collector, inside)
    if len(names) > MAX_FILES:
        collector.unread(shown, f"{len(names)} entries; {MAX_FILES} are read")
    if passed:
        collector.unread(shown, f"{passed} folders, programs and data files in it are not read; name them to read them")


def _file(path: Path, shown: str, collector: Collector, given: set[Path]) -> None:
    if refused(path, collector, shown):
        return
    try:
        form = _read(path, shown, collector, given)
    except OSError as error:
        collector.unread(shown, f"can't be read: {error.strerror or error}")
        return
    if form:
        collector.evidence.read.append({"path": shown, "form": form})


def _read(path: Path, shown: str, collector: Collector, given: set[Path]) -> str | None:
    """The form that a file was read as; None, with the reason told, where it could not be."""
    start = head(path)
    if not start.strip():
        collector.unread(shown, "empty")
        return None
    if b"\0" in start:
        collector.unread(shown, "binary")
        return None
    first = start.decode("utf-8", "replace")
    kind = sniff(path.name, first)
    if kind == "log" or (kind is None and path.suffix in (".log", ".out", ".err")):
        if logs.read_log(lines(path, collector, shown), shown, collector):
            return "log"
        collector.unread(shown, "a log without a line of configuration that is known")
        return None
    text = read_text(path, collector, shown)
    if text is None:
        return None
    if kind == "script":
        read_script(text, path, shown, collector, given)
        return "script"
    readers = {
        "json": yaml_files.read_json, "yaml": yaml_files.read_yaml, "packages": facts.packages,
        "dockerfile": facts.dockerfile,
    }  # fmt: skip
    before = len(collector.evidence.unread)
    if kind is not None and readers[kind](text.replace("\r\n", "\n"), shown, collector):
        return kind
    if kind is None and logs.SIGN.search(text) and logs.read_log(lines(path, collector, shown), shown, collector):
        return "log"
    if len(collector.evidence.unread) == before:
        collector.unread(
            shown, "of no form that is known here" if kind is None else f"{kind}, but of no kind known here"
        )
    return None


def sniff(name: str, text: str) -> str | None:
    """The form of a file by its first bytes, its name as the tie-breaker: script, json, yaml, log, packages, ..."""
    lower = name.lower()
    if text.startswith("#!") and re.match(r"#!.*\b\w*sh\b", text):
        return "script"
    if text.lstrip()[:1] == "{" and not lower.endswith((".log", ".sh")) and text.lstrip()[1:2] != "'":
        return "json"
    if lower.startswith("dockerfile") or re.match(r"\s*(?:#.*\n|ARG .*\n)*\s*FROM \S+", text):
        return "dockerfile"
    if lower.endswith((".sh", ".bash")):
        return "script"
    if logs.SIGN.search(text):
        return "log"
    if lower.endswith((".yaml", ".yml")):
        return "yaml"
    if lower.endswith((".log", ".out", ".err")):
        return "log"
    pins = len(re.findall(r"^[A-Za-z0-9][\w.\[\],-]*\s*(?:==|@ )\s*\S+", text, re.M))
    if pins and pins * 2 >= sum(bool(line.strip()) and not line.startswith("#") for line in text.splitlines()):
        return "packages"
    if _SHELL.search(text):
        return "script"
    if re.match(r"\s*(?:#.*\n|---\n)*\s*[\w.-]+:(\s|$)", text):
        return "yaml"
    return None
