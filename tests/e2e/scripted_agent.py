"""An agent without a model: it starts from the call that SKILL.md's metadata names, reads tool results, and follows
their `next_steps`.

It knows no tool, no case and no field of a product's results beyond what every result has: `summary`, `verdict`,
`next_steps`. While a result says that work is running its next step is to ask again, as for an agent of flesh.

    python tests/e2e/scripted_agent.py WORKSPACE [--allow-write] [--until verdict|end] [--calls 15]

prints one line per call and the last verdict as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import yaml
from mcp import Client, StdioServerParameters

SKILL = Path(__file__).resolve().parents[2] / "SKILL.md"
VERDICT = "-verdict/1"
"""How the `format` of a result ends that is a verdict: the one thing that the agent was sent out for."""


@dataclass(slots=True)
class Visit:
    """One call: what was asked, and what came."""

    tool: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    error: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The tool's own result, also where a job carries it."""
        inner = self.result.get("result")
        return {**self.result, **inner} if isinstance(inner, dict) else self.result

    @property
    def running(self) -> bool:
        """Whether the work goes on."""
        return self.result.get("verdict") == "running"


@dataclass(slots=True)
class Walk:
    """Everything that an agent did, in order."""

    visits: list[Visit] = field(default_factory=list)

    @property
    def verdict(self) -> dict[str, Any] | None:
        """The last verdict that was seen."""
        for visit in reversed(self.visits):
            if str(visit.facts.get("format", "")).endswith(VERDICT) and isinstance(visit.facts.get("verdict"), dict):
                return dict(visit.facts["verdict"])
        return None

    @property
    def tools(self) -> list[str]:
        """Tools in the order of their calls; a question for a running job is no new one."""
        return [v.tool for i, v in enumerate(self.visits) if i == 0 or not self.visits[i - 1].running]


async def walk(server: StdioServerParameters, *, until: str = "verdict", calls: int = 15, skill: Path = SKILL) -> Walk:
    """Start where the Skill says, and follow the first next step of every result.

    Args:
        server: how the MCP server is started.
        until: "verdict" stops at the first one, "end" when a result has no next step.
        calls: most calls in all, questions for running jobs included.
        skill: SKILL.md with `start` in its metadata.
    """
    start = yaml.safe_load(skill.read_text(encoding="utf-8").split("---\n")[1])["metadata"]["start"]
    done = Walk()
    step: dict[str, Any] | None = {"tool": start, "arguments": {}}
    async with Client(server) as client:
        while step is not None and len(done.visits) < calls:
            answer = await client.call_tool(step["tool"], step["arguments"])
            text = " ".join(getattr(block, "text", "") for block in answer.content)
            result = dict(answer.structured_content or {})
            failed = answer.is_error or bool(result.get("error"))
            done.visits.append(Visit(step["tool"], step["arguments"], result, text if failed else None))
            if failed or (until == "verdict" and done.verdict is not None):
                break
            step = next(iter(result.get("next_steps") or []), None)
    return done


def server(root: Path, *, allow_write: bool = False) -> StdioServerParameters:
    """The real server over a workspace."""
    flags = ["--allow-write"] if allow_write else []
    root = root.resolve()
    return StdioServerParameters(
        command=sys.executable, args=["-m", "logdiff", "serve", "--root", str(root), *flags], cwd=str(root)
    )


def main() -> int:
    """0 with a verdict, 1 without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--allow-write", action="store_true")
    parser.add_argument("--until", choices=["verdict", "end"], default="verdict")
    parser.add_argument("--calls", type=int, default=15)
    given = parser.parse_args()
    starting = server(given.root, allow_write=given.allow_write)

    async def go() -> Walk:
        return await walk(starting, until=given.until, calls=given.calls)

    done = anyio.run(go)
    for visit in done.visits:
        print(f"{visit.tool} {json.dumps(visit.arguments)}: {visit.error or visit.result.get('summary')}")
    print(json.dumps(done.verdict))
    return 0 if done.verdict is not None else 1


if __name__ == "__main__":
    sys.exit(main())
