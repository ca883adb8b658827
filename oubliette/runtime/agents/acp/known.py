"""Known ACP programs, and their treatment of a repository's settings.

Most of them start programs that a repository names, without asking, and some send prompts and keys
to an address in it. Settings close as much of this as possible; every session reports the rest.
Measured with the releases in docs/agents.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.runtime.agents.base import AgentFile

if TYPE_CHECKING:
    from collections.abc import Sequence

_BY_IMAGE: Final = ", unless its image forbids it (docs/agents.md)"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for one program, and its remaining risks."""

    obeys: str = ""
    """Remaining control of a repository over it; "" if unknown."""
    meta: dict[str, Any] = {}
    """`_meta` of the requests that open a session."""
    mode: str | None = None
    """Mode to choose once a session is open, overriding the repository's."""
    session_files: tuple[str, ...] = ()
    """Files and folders, in HOME, with its conversations, and without credentials."""
    forks: bool = True
    """Whether its `session/fork` may be used, if it has that."""
    rules: tuple[str, ...] = ()
    """Files of the repository that it would not read, for `rules_file`."""
    rules_file: str = ""
    """File in HOME that names them."""

    def files(self, cwd: str) -> tuple[AgentFile, ...]:
        """Return files to put into HOME for a session that works in `cwd`."""
        if not self.rules_file:
            return ()
        named = "".join(f"@{cwd}/{name}\n" for name in self.rules)
        return (AgentFile(path=self.rules_file, content=named.encode()),)


UNKNOWN: Final = Known()
_CLAUDE: Final = Known(
    # In spite of what follows it reads permissions.defaultMode from .claude/settings.local.json,
    # which may disable all permission requests.
    mode="default",
    # Without the project's settings it loses hooks and helpers, but also its rules.
    meta={"claudeCode": {"options": {"settingSources": ["user"], "strictMcpConfig": True}}},
    session_files=(".claude/projects",),
    rules=("CLAUDE.md", "AGENTS.md"),
    rules_file=".claude/CLAUDE.md",
)
_CODEX: Final = Known(
    obeys="MCP servers of a repository's .codex/config.toml" + _BY_IMAGE,
    session_files=(".codex/sessions",),
)
_GEMINI: Final = Known(
    obeys="MCP servers, hooks, commands and .env of a repository's .gemini/settings.json"
    + _BY_IMAGE
)
_QWEN: Final = Known(
    obeys="MCP servers, hooks, commands and .env of a repository's .qwen/settings.json" + _BY_IMAGE
)
_PROGRAMS: Final[dict[str, Known]] = {
    "claude-agent-acp": _CLAUDE,
    "claude-code-acp": _CLAUDE,
    "codex-acp": _CODEX,
    "gemini": _GEMINI,
    "qwen": _QWEN,
}


def known(command: Sequence[str]) -> Known:
    """The entry for the program of a command line: itself, by `npx` or by a path.

    A package of npm is recognised by its folder: `node …/claude-agent-acp/dist/index.js`.
    """
    names = [name for word in command for name in reversed(word.split("/"))]
    return next((_PROGRAMS[name] for name in names if name in _PROGRAMS), UNKNOWN)
