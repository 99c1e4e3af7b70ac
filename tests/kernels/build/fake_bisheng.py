"""A stand-in for bisheng: it writes down its calls, then compiles, fails, waits or hangs as the test has asked.

Started by the script that `fake_cann.install` writes. All that it reads and writes lies in the stand-in CANN's folder:
`compiler-version`, `calls` (one JSON line for each compilation) and `orders/<kernel>`, the test's wish for a source.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(home: Path, argv: list[str]) -> int:
    if argv == ["--version"]:
        print((home / "compiler-version").read_text())
        return 0
    only_check = "-fsyntax-only" in argv
    source = Path(argv[-1] if only_check else argv[argv.index("-shared") + 1])
    with (home / "calls").open("a") as calls:
        calls.write(json.dumps({"argv": argv, "folder": str(Path.cwd()), "pid": os.getpid()}) + "\n")
    wish = home / "orders" / source.stem
    order, _, detail = wish.read_text().partition(" ") if wish.is_file() else ("compile", "", "")
    if order == "fail":
        print(f"{source}:7:1: error: {detail}", file=sys.stderr)
        print("1 error generated.")
        return 1
    if order == "meet":  # compiles only while `detail` compilers are at work at the same time
        meeting = home / "meeting"
        meeting.mkdir(exist_ok=True)
        (meeting / source.stem).write_text("")
        end = time.monotonic() + 30
        while len(list(meeting.iterdir())) < int(detail):
            if time.monotonic() > end:
                print("error: nobody came")
                return 1
            time.sleep(0.01)
    if only_check:
        return 0
    output = Path(argv[argv.index("-o") + 1])
    output.write_bytes(b"half")
    if order == "hang":
        child = os.fork()
        (home / ("child" if child == 0 else "parent")).write_text(str(os.getpid()))
        time.sleep(300)
    if order == "kill-caller":
        os.kill(os.getppid(), signal.SIGKILL)
    flags = [word for word in argv if not word.startswith(("-o", str(output)))]
    output.write_bytes(f"library of {source.stem}: {' '.join(flags[:-1])}".encode())
    print(f"compiled {source.stem}")
    return 0
