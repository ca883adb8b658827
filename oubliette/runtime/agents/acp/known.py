"""What is known of single programs that speak ACP, and what they do with a repository's settings.

Most of them start programs that a repository names, unasked, and some send prompts and keys where
it says. What can be closed from here is closed; what is left is told to every session. Measured
with the releases in docs/agents.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.runtime.agents.base import AgentFile

if TYPE_CHECKING:
    from collections.abc import Sequence

_BY_IMAGE: Final = ", unless its image forbids it (docs/agents.md)"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with one program, and what is left of it."""

    obeys: str = ""
    """What a repository can still have it do; "" where nothing is known."""
    meta: dict[str, Any] = {}
    """`_meta` of the requests that open a session."""
    mode: str | None = None
    """To be chosen once a session is open, whatever a repository has chosen."""
    rules: tuple[str, ...] = ()
    """Files of the repository that it would lose, for `rules_file`."""
    rules_file: str = ""
    """A file in HOME that names them."""

    def files(self, cwd: str) -> tuple[AgentFile, ...]:
        """What to put into HOME for a session that works in `cwd`."""
        if not self.rules_file:
            return ()
        named = "".join(f"@{cwd}/{name}\n" for name in self.rules)
        return (AgentFile(path=self.rules_file, content=named.encode()),)


UNKNOWN: Final = Known()
_CLAUDE: Final = Known(
    # In spite of what follows it takes permissions.defaultMode from .claude/settings.local.json,
    # which may say that nothing is to be asked.
    mode="default",
    # Without the settings of the project it has neither its hooks and helpers nor its rules.
    meta={"claudeCode": {"options": {"settingSources": ["user"], "strictMcpConfig": True}}},
    rules=("CLAUDE.md", "AGENTS.md"),
    rules_file=".claude/CLAUDE.md",
)
_CODEX: Final = Known(obeys="MCP servers of a repository's .codex/config.toml" + _BY_IMAGE)
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
    """What is known of the program that a command line starts, itself, by `npx` or by a path.

    A package of npm is known by its folder: `node …/claude-agent-acp/dist/index.js`.
    """
    names = [name for word in command for name in reversed(word.split("/"))]
    return next((_PROGRAMS[name] for name in names if name in _PROGRAMS), UNKNOWN)
