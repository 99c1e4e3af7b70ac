"""From what is known to the next call: fills the slots of the steps that the tables name."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from logdiff.errors import InputError
from logdiff.playbook.situation import Known, situation
from logdiff.playbook.tables import BROKEN_TOKENS, NEXT, PAGE_OF, PAGES, STEPS, WORST_TOKENS, Outcome

PLACEHOLDERS: dict[str, str | list[str]] = {
    "case": "CASE", "newest_case": "CASE", "run_file": "RUN.yaml", "same_run_file": "RUN.yaml",
    "new_run_file": "RUN.yaml", "pairs": ["PAIRS.jsonl"], "new_pairs": "NEW.jsonl", "plan_source": "RUN.yaml",
}  # fmt: skip
_RECORDED = "-recorded"

ATTENTION = ("attn", "attention", "rope", "position", "kv_cache", "kv-cache", "pack", "mask", "window", "state")
"""Words of a component or cause that belong on the page about attention and positions."""


@dataclass(frozen=True, slots=True)
class Call:
    """A step with its slots filled.

    Args:
        tool: MCP tool, empty where a person is to be asked for something.
        arguments: ready to send where `ready`.
        command: the same as a command line.
        ready: whether every slot is known.
        why, outcomes, ask: as in the step.
    """

    tool: str
    arguments: dict[str, Any]
    command: str
    ready: bool
    why: str
    outcomes: tuple[Outcome, ...]
    ask: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The call as results of commands and tools name it."""
        return {
            "tool": self.tool,
            "arguments": self.arguments,
            "command": self.command,
            "why": f"{self.why}. First: {self.ask}" if self.ask else self.why,
            "outcomes": [f"{o.seen}: {o.means}" + (f" (page {o.page})" if o.page else "") for o in self.outcomes],
        }


def page_for(known: Known) -> str:
    """The page that explains where a reader stands."""
    found = situation(known).removesuffix(_RECORDED)
    if found == "framework-implementation" and _about_attention(known):
        return "attention-and-positions"
    return PAGE_OF[found]


def calls_for(known: Known, page: str = "") -> list[Call]:
    """Calls that can be sent as they are, the next one first; none where only a person can help."""
    return [call for call in all_calls(known, page) if call.ready and call.tool]


def all_calls(known: Known, page: str = "") -> list[Call]:
    """Every step that the situation calls for on this page, those with unknown arguments too.

    Raises:
        InputError: no such page.
    """
    if page and page not in PAGES:
        raise InputError("no such playbook", value=page, hint=f"one of {', '.join(PAGES)}, causes")
    found = situation(known)
    own = PAGES[page].own if page else {}
    names = own.get(found) or NEXT[found]
    slots = _slots(known)
    skipped = known.state is not None and bool(known.state.skipped)
    return [_filled(name, slots) for name in names if name != "diagnose-more" or skipped]


def the_next(calls: list[Call]) -> Call | None:
    """The call that a page puts first: the first that can be sent, or that a person can help to send."""
    return next((call for call in calls if call.ready or call.ask), calls[0] if calls else None)


def _filled(name: str, slots: dict[str, Any]) -> Call:
    step = STEPS[name]
    missing: set[str] = set()

    def fill(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("{") and value.endswith("}"):
            slot = value[1:-1]
            if slot not in slots:
                missing.add(slot)
            return slots.get(slot, PLACEHOLDERS[slot])
        return [fill(entry) for entry in value] if isinstance(value, list) else value

    arguments = {key: fill(value) for key, value in step.arguments.items()}
    words = {slot: _shell(slots.get(slot, placeholder)) for slot, placeholder in PLACEHOLDERS.items()}
    command = step.command.format(
        **words, worst_tokens=shlex.quote(WORST_TOKENS), broken_tokens=shlex.quote(BROKEN_TOKENS)
    )
    return Call(step.tool, arguments, command, not missing and bool(step.tool), step.why, step.outcomes, step.ask)


def _shell(value: str | list[str]) -> str:
    return " ".join(shlex.quote(entry) for entry in value) if isinstance(value, list) else shlex.quote(value)


def _slots(known: Known) -> dict[str, Any]:
    """Slots that are known; a path that can't be shown on one line is not."""
    slots: dict[str, Any] = {}
    state, found = known.state, known.workspace
    run_file = known.run_file or (found.run_files[0] if state is None and found.run_files else None)
    pairs = known.pairs or (found.pairs[:1] if state is None else ())
    if run_file:
        slots["run_file"] = run_file
        if known.same_run:
            slots["same_run_file"] = run_file
    if pairs:
        slots["pairs"] = list(pairs)
    if state is not None:
        slots["case"] = state.case
        stock = state.tokens_of if state.aligned else None
        source = run_file if state.named_env or not stock else str(stock)
        if source:
            slots["plan_source"] = source
    if found.cases:
        slots["newest_case"] = found.cases[0]
    return {name: value for name, value in slots.items() if "".join(_texts(value)).isprintable()}


def _texts(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def _about_attention(known: Known) -> bool:
    verdict = known.state.verdict if known.state is not None else None
    words = f"{verdict.component or ''} {verdict.cause or ''}" if verdict is not None else ""
    return any(word in words for word in ATTENTION)
