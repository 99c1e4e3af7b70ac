"""What every build of native code here shares: a cache keyed by content, one builder at a time, outputs that are whole
or absent, and compilers whose words are kept.

Only the standard library is needed, so that a wheel build can use this module before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from logdiff_kernels.errors import UnsupportedError

T = TypeVar("T")
R = TypeVar("R")

_INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
_GOOD = "exit status 0"


def cache_folder(part: str) -> Path:
    """Where what is built is kept: `part` under `$LOGDIFF_CACHE`, else under the user's cache folder."""
    root = os.environ.get("LOGDIFF_CACHE")
    if root:
        return Path(root) / part
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logdiff" / part


def reached(source: Path, includes: Sequence[Path] = ()) -> list[Path]:
    """The source and every header that it reaches, each once: beside the including file, then in `includes`.

    Conditional includes count as taken; headers found in neither place (the system's, a toolkit's) are left out.
    """
    found = [source]
    for path in found:
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            places = (folder / name for folder in (path.parent, *includes))
            header = next((place.resolve() for place in places if place.is_file()), None)
            if header is not None and header not in found:
                found.append(header)
    return found


def content_hash(words: Iterable[str], files: Iterable[Path] = ()) -> str:
    """SHA-256 over words (flags, versions) and the names and contents of files."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in files:
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def content_key(words: Iterable[str], files: Iterable[Path] = ()) -> str:
    """The first 24 digits of `content_hash`: a name in the cache."""
    return content_hash(words, files)[:24]


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, made with its folder; it is free again when its holder ends, in whatever way.

    Raises:
        UnsupportedError: the folder can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise UnsupportedError(
            f"kernels can't be built: {error}", value=str(path.parent), hint="set LOGDIFF_CACHE to a writable folder"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` for what is half made; `Path.replace` then moves what is whole to its place.

    Folders of this target that a killed build left are removed: where others may build it, hold its lock.
    """
    prefix = f".{target.name}.part-"
    for left in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as folder:
        yield Path(folder)


class Compilers:
    """Compilers side by side. Leaving the block by an exception (an interrupt, a bug) ends those that still run.

    Args:
        jobs: how many at a time; None: as many as there are processors.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs or processors()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with self._lock:
                self._ended = True
                for process in self._running:
                    _kill(process)

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R | UnsupportedError]:
        """`work` of every item, in the order of the items; one that can't be compiled gives its error."""

        def one(item: T) -> R | UnsupportedError:
            try:
                return work(item)
            except UnsupportedError as error:
                return error

        pool = ThreadPoolExecutor(max_workers=max(1, min(len(items), self._jobs)))
        try:
            futures = [pool.submit(one, item) for item in items]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()  # raises what was no compile error, while others may still run
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def run(
        self,
        argv: Sequence[str],
        what: str,
        *,
        log: Path | None = None,
        folder: Path | None = None,
        timeout: float | None = None,
    ) -> None:
        """Run one compiler to its end.

        Args:
            argv: command.
            what: what is compiled, for the error's sentence.
            log: file that gets the command and everything that the compiler said, also when it succeeds.
            folder: working folder.
            timeout: seconds; the compiler and its children are killed when they have passed.

        Raises:
            UnsupportedError: it can't be started, failed, or took too long. `value` is the log, or the command's end;
                `hint` has the compiler's words.
        """
        command = shlex.join(argv) if folder is None else f"cd {shlex.quote(str(folder))} && {shlex.join(argv)}"
        said, ending = self._finish(self._start(argv, what, command, folder), timeout)
        if log is not None:
            log.write_text(f"$ {command}\n{said}\n[{ending}]\n", encoding="utf-8")
        if ending == _GOOD:
            return
        lines = said.splitlines()
        cause = next((line for line in lines if "error" in line), lines[-1] if lines else ending)
        raise UnsupportedError(
            f"{what} could not be compiled: {(ending if ending.startswith('killed') else cause)[:400]}",
            value=str(log) if log is not None else list(argv[-3:]),
            hint=said[-4000:] if log is None else f"{command}\n{said[-4000:]}",
        )

    def _start(self, argv: Sequence[str], what: str, command: str, folder: Path | None) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise UnsupportedError(f"{what} was not compiled: the build was given up", hint=command)
            try:
                # A group of its own: a compiler driver starts children, and a timeout has to end those too.
                process = subprocess.Popen(
                    argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise UnsupportedError(f"{what} could not be compiled: {error}", value=argv[0], hint=command) from error
            self._running.add(process)
        return process

    def _finish(self, process: subprocess.Popen[bytes], timeout: float | None) -> tuple[str, str]:
        """What it said, and how it ended."""
        late = False
        try:
            try:
                said, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                late = True
                _kill(process)
                said, _ = process.communicate()
        except BaseException:
            _kill(process)
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        ending = f"killed after {timeout:g} s" if late else f"exit status {process.returncode}"
        return said.decode(errors="replace").strip(), ending


def all_made(results: Sequence[R | UnsupportedError]) -> list[R]:
    """What `Compilers.each` made, or the first of its errors, raised."""
    made: list[R] = []
    for result in results:
        if isinstance(result, UnsupportedError):
            raise result
        made.append(result)
    return made


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
