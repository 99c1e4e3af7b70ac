"""What readers hand over: options under canonical names, environment variables, packages, launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logdiff.audit.keys import canonical
from logdiff.audit.settings import Evidence, Launch, Setting, Unknown, Unread
from logdiff.audit.values import flatten, json_or_hydra

NESTED = (
    "additional_config", "compilation_config", "hf_overrides", "override_generation_config", "speculative_config",
    "kv_transfer_config", "parallel_config", "attention_config", "json_model_override_args",
)  # fmt: skip
"""Options of vLLM whose text is a JSON object."""


class Collector:
    """Gathers the settings of one file; `side` is the side that the user gave for it, empty where none."""

    def __init__(self, evidence: Evidence, side: str = "") -> None:
        self.evidence = evidence
        self.side = side
        self.number = 0

    def option(
        self,
        form: str,
        raw: str,
        value: Any,
        where: str,
        origin: str,
        *,
        condition: str = "",
        side: str = "",
        adds: bool = False,
        shown: str = "",
    ) -> None:
        """One option as `form` spells it; objects are taken apart into dotted names."""
        tail = raw.rsplit(".", 1)[-1]
        if isinstance(value, str) and tail in NESTED and value.strip().startswith("{"):
            try:
                value = json_or_hydra(value)
            except ValueError as error:
                self.unread(where, f"{raw}: {error}")
                return
        if isinstance(value, dict):
            try:
                parts = flatten(value, raw)
            except ValueError as error:
                self.unread(where, f"{raw}: {error}")
                return
        else:
            parts = {raw: value}
        for name, part in parts.items():
            found = canonical(form, name)
            if found.negated and not isinstance(part, Unknown):
                part = part is False or part == 0
            self.evidence.settings.append(
                Setting(
                    side or self._sided(found.side),
                    found.key,
                    part,
                    shown + name.removeprefix(raw) if shown else name,
                    where,
                    origin,
                    condition,
                    form,
                    adds,
                    self.number,
                )
            )

    def _sided(self, side: str) -> str:
        return self.side if self.side and side == "both" else side

    def env(
        self, name: str, value: Any, where: str, *, side: str = "both", condition: str = "", origin: str = "env"
    ) -> None:
        """One environment variable of the processes of a side."""
        self.evidence.settings.append(
            Setting(self._sided(side), f"env.{name}", value, name, where, origin, condition, "env", launch=self.number)
        )

    def package(self, name: str, version: str, where: str, origin: str = "file", side: str = "both") -> None:
        """An installed package, or one that a file pins."""
        key = "package." + name.lower().replace("_", "-")
        self.evidence.settings.append(Setting(self._sided(side), key, version, name, where, origin, "", "package"))

    def launch(
        self,
        framework: str,
        sides: Iterable[str],
        where: str,
        *,
        complete: bool = True,
        driver_only: Iterable[tuple[str, str]] = (),
        apart: bool = False,
    ) -> None:
        """A process that the file starts or describes; with `apart` what follows is its alone, until `launched`."""
        self.number = len(self.evidence.launches) + 1 if apart else 0
        self.evidence.launches.append(Launch(framework, tuple(sides), where, complete, tuple(driver_only), self.number))

    def launched(self) -> None:
        """Every setting of the process that `launch` began has been handed over."""
        self.number = 0

    def unread(self, where: str, why: str) -> None:
        """What could not be read; `where` is `file:line` or `file`."""
        file, colon, line = where.rpartition(":")
        if not colon or not line.isdigit():
            file, line = where, ""
        entry = Unread(file, int(line) if line else None, why)
        if entry not in self.evidence.unread:
            self.evidence.unread.append(entry)
