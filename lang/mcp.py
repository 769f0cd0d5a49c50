"""Tools of a server that speaks MCP (Model Context Protocol), from a session that the `mcp` package opened: `mcp_tools(session)`.

This package doesn't import `mcp`: the session is the caller's. The tools are `async`; `ause_tools` and `call.arun()` take them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from branchpoint.errors import BranchpointError
from branchpoint.lang.tools import Tool

__all__ = ["McpSession", "McpToolError", "mcp_tools"]


class McpSession(Protocol):
    """What is used of `mcp.ClientSession` (and of `mcp.Client`)."""

    async def list_tools(self) -> Any:
        """The server's tools."""

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """What a tool comes to."""


class McpToolError(BranchpointError, RuntimeError):
    """A tool of an MCP server said that it failed; the message is what it said."""


async def mcp_tools(session: McpSession, names: Sequence[str] | None = None) -> tuple[Tool, ...]:
    """The server's tools (those of `names`, where given), to be used as long as the session is open."""
    listed = (await session.list_tools()).tools
    return tuple(_tool(session, each) for each in listed if names is None or each.name in names)


def _tool(session: McpSession, listed: Any) -> Tool:
    name: str = listed.name

    async def call(**arguments: object) -> str:
        result = await session.call_tool(name, arguments)
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None) is not None)
        if _either(result, "is_error", "isError"):
            raise McpToolError(f"Tool {name!r} failed: {text}")
        return text

    schema: Mapping[str, object] = _either(listed, "input_schema", "inputSchema")
    if "properties" in schema:  # a model that may add what isn't declared does, and the server throws it away
        schema = {"additionalProperties": False, **schema}
    return Tool(name, listed.description or "", schema, call)


def _either(found: Any, name: str, other: str) -> Any:
    """An attribute whose name changed between versions 1 and 2 of `mcp`."""
    return getattr(found, name) if hasattr(found, name) else getattr(found, other)
