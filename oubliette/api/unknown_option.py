"""`check_options`, the refusal of an option that `spawn`, `run` and `map` do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.contract.limits import TreeLimits
from oubliette.errors import InvalidParameter, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

_TYPED: Final = "run and map have it: project.run(prompt, returns=TYPE)"
_RULES: Final = "on_permission=oubliette.rules(allow=[…], deny=[…]), or a function of the request"
_INSTRUCTIONS: Final = (
    "write instructions in the prompt, or in a file of the workspace that the agent reads, such as"
    " AGENTS.md"
)
_RESUME: Final = "ob.session(id) returns a session, and session.send(message) goes on with it"

ELSEWHERE: Final[dict[str, str]] = {
    **{
        name: f"limits belong to a tree: project.tree({name}=…)"
        for name in TreeLimits.__struct_fields__
    },
    "limits": "limits belong to a tree: project.tree(max_cost_usd=…, max_turn_steps=…)",
    "max_turns": "limits belong to a tree: project.tree(max_turn_steps=…)",
    "max_budget_usd": "limits belong to a tree: project.tree(max_cost_usd=…)",
    "timeout": "project.tree(max_turn_seconds=…), or asyncio.timeout(…) around the call",
    "stream": "project.spawn(prompt) returns a session whose events() arrive while it works",
    "returns": _TYPED,
    "attempts": _TYPED,
    "output_type": "returns=TYPE, of run and map",
    "output_format": "returns=TYPE, of run and map",
    "system_prompt": _INSTRUCTIONS,
    "instructions": _INSTRUCTIONS,
    "can_use_tool": _RULES,
    "allowed_tools": _RULES,
    "disallowed_tools": _RULES,
    "permission_mode": "autonomy=…, or on_permission=…",
    "mcp_servers": "tools=[oubliette.mcp(URL)]; or those of a project: create_project(…)",
    "cwd": "workspace_id=…, or new_workspace=True",
    "session": _RESUME,
    "session_id": _RESUME,
    "resume": _RESUME,
}
"""Names from other places and other SDKs, with what does the same here."""


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first option, in alphabetical order, that is not known.

    Raises:
        InvalidParameter: there is one; the hint has what was probably meant, or all options.
    """
    options = sorted(known)
    for name in sorted(set(given) - set(options)):
        hint = ELSEWHERE.get(name) or did_you_mean(name, options).rstrip()
        raise InvalidParameter(
            f"{name}: there is no option of this name",
            field=name,
            hint=hint or f"the options are {', '.join(options)}",
        )


__all__ = ["ELSEWHERE", "check_options"]
