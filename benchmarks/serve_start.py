"""Time from process start to the answer of tools/list over raw JSON-RPC."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time

MESSAGES = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "serve_start", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
)


def seconds_to_tools_list(command: list[str], cwd: str) -> float:
    """Start the server, speak the handshake, and return the seconds until the tool list arrived."""
    wire = b"".join(json.dumps(m).encode() + b"\n" for m in MESSAGES)
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(wire)
        server.stdin.flush()
        for line in server.stdout:
            answer = json.loads(line)
            if answer.get("id") == 2:
                elapsed = time.perf_counter() - started
                assert answer["result"]["tools"], "no tools"
                server.stdin.close()
                server.wait(30)
                return elapsed
    raise SystemExit("the server ended without an answer to tools/list")


def main() -> None:
    """Print the figures as JSON; the first argument is the number of repeats."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    command = [sys.executable, "-m", "logdiff", "serve"]
    with tempfile.TemporaryDirectory() as folder:
        times = [seconds_to_tools_list(command, folder) for _ in range(repeats)]
    print(
        json.dumps(
            {
                "benchmark": "serve_start",
                "seconds_median": round(statistics.median(times), 3),
                "seconds_min": round(min(times), 3),
                "seconds_max": round(max(times), 3),
                "repeats": repeats,
                "limit": 1.0,
            }
        )
    )


if __name__ == "__main__":
    main()
