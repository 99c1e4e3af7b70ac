"""What a launch in the twin raises."""

from __future__ import annotations

from typing import Any

from logdiff_kernels.errors import RunnerError


class TwinError(RunnerError):
    """A kernel did what an NPU does not allow, or leaves undefined.

    Attributes:
        check: which check fired: `race`, `poison`, `range`, `alignment`, `capacity`, `queue`, `flag`, `deadlock`,
            `overload`, `stride`, `repeat`, `mask`, `state`, `overlap` or `launch` (see docs/twin.md).
        kernel: entry of the kernel.
        core: which core, for example `AIV0 of block 3`.
        pipe: pipe of the instruction; empty for what is no instruction.
        op: instruction or call.
        operand: operand at fault, where one is.
        reason: the sentence of the check, with its values.
    """

    def __init__(
        self,
        check: str,
        reason: str,
        *,
        kernel: str = "",
        core: str = "",
        pipe: str = "",
        op: str = "",
        operand: str = "",
    ) -> None:
        where = " ".join(word for word in (op, f"on {pipe}" if pipe else "", f"({core})" if core else "") if word)
        what = f"{operand}: {reason}" if operand else reason
        super().__init__(f"{kernel}: {check}: {where}: {what}", value=check, hint="docs/twin.md lists what is checked")
        self.check = check
        self.kernel = kernel
        self.core = core
        self.pipe = pipe
        self.op = op
        self.operand = operand
        self.reason = reason

    def as_dict(self) -> dict[str, Any]:
        """As every error of a runner, with the fields of the check."""
        fields = ("check", "kernel", "core", "pipe", "op", "operand", "reason")
        return {**super().as_dict(), **{name: getattr(self, name) for name in fields}}
