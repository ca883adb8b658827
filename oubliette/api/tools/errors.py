"""Errors of tools that a program provides: a tool that is unusable, and a call that has failed."""

from __future__ import annotations

from oubliette.errors import OublietteError


class BadTool(OublietteError, TypeError):
    """A tool cannot be offered to agents; the message names the function, the parameter and why.

    Raised when tools are prepared, before an agent can see any of them.
    """

    code = "bad_tool"
    exit_code = 2


class ToolError(OublietteError):
    """A tool has failed in a way that its author foresaw; the agent reads the message.

    Raise it in a tool. The message is passed on as it is, and no traceback is logged.
    """

    code = "tool_error"


class ToolCallRefused(OublietteError):
    """A call of a tool has no result; the message is the answer that the agent reads."""

    code = "tool_call_refused"
