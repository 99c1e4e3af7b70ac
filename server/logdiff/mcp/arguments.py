"""Arguments that a tool's schema refuses, told as every other error of ours is: which one, what was given."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from logdiff.mcp.answers import error_text

MOST = 5


class ToolServer(MCPServer[Any]):
    """The SDK's server, with its own words for refused arguments: the library's end in a link to its documentation."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool by name. Raises ToolError for arguments that don't fit, as for every error of ours."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(refused(name, error.__cause__)) from None
            raise


def refused(tool: str, error: ValidationError) -> str:
    """The text of arguments that don't fit: at most `MOST` of them."""
    problems = error.errors(include_url=False, include_context=False)
    words = [f"{'.'.join(map(str, p['loc'])) or 'arguments'}: {_clause(p['msg'])}" for p in problems[:MOST]]
    more = f"; and {len(problems) - MOST} more" if len(problems) > MOST else ""
    given = problems[0]["input"] if len(problems) == 1 and problems[0]["type"] != "missing" else None
    return error_text(
        {"type": "InputError", "message": f"{tool}: {'; '.join(words)}{more}", "value": given, "hint": ""}
    )


def _clause(message: str) -> str:
    return message[:1].lower() + message[1:]
