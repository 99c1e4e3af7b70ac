"""Stands in for `logdiff.mcp.worker` in tests: same wire, behaviour chosen by the action's arguments or this script.

`sleep` seconds may be given in the environment variable FAKE_SLEEP; FAKE_REPLY names a file with the last event;
FAKE_GRANDCHILD=1 starts a sleeping child first (an "engine") that ends only when killed; FAKE_STUBBORN=1 ignores
SIGTERM; FAKE_NOISE=1 writes garbage on the wire.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    request = json.loads(sys.stdin.readline())
    environment = os.environ
    message = ""
    if environment.get("FAKE_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if environment.get("FAKE_GRANDCHILD"):
        engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        message = f"pid {engine.pid}"
    if environment.get("FAKE_NOISE"):
        print("not json", flush=True)
        say(no="event")
    seconds = float(environment.get("FAKE_SLEEP", "0"))
    started = time.monotonic()
    step = 0
    while time.monotonic() - started < seconds:
        step += 1
        say(event="progress", task="work", done=step, total=10, unit="steps", message=message)
        time.sleep(0.05)
    if environment.get("FAKE_REPLY"):
        print(Path(environment["FAKE_REPLY"]).read_text(), flush=True)
    else:
        say(event="result", data={"format": "echo", "request": request}, exit_code=0)


main()
