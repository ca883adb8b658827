"""MCP clients, with the files that each reads its servers from and the form of an entry."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from oubliette.user_paths import absolute

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Client(StrEnum):
    """Name of a client, as its command is called."""

    claude = "claude"
    opencode = "opencode"
    cursor = "cursor"
    vscode = "vscode"
    codex = "codex"
    gemini = "gemini"


KEY_PREFIX: Final = "mcp setup "
"""Beginning of the names of the keys of clients."""


class Form(NamedTuple):
    """Form of the entry of a server that is reached over HTTP."""

    title: str
    section: str
    url: str = "url"
    headers: str = "headers"
    fixed: Mapping[str, object] = {}


FORMS: Final[Mapping[Client, Form]] = {
    Client.claude: Form(title="Claude Code", section="mcpServers", fixed={"type": "http"}),
    # Without `oauth` it takes a refused key for a request to log in.
    Client.opencode: Form(
        title="OpenCode", section="mcp", fixed={"type": "remote", "oauth": False}
    ),
    Client.cursor: Form(title="Cursor", section="mcpServers"),
    Client.vscode: Form(title="VS Code", section="servers", fixed={"type": "http"}),
    Client.codex: Form(title="Codex", section="mcp_servers", headers="http_headers"),
    Client.gemini: Form(title="Gemini CLI", section="mcpServers", url="httpUrl"),
}

PROGRAMS: Final[Mapping[Client, str]] = {each: str(each) for each in Client} | {
    Client.vscode: "code"
}


def path_of(client: Client) -> Path:
    """The file with what is configured for all folders."""
    home = absolute("~", "HOME")
    settings = _folder("XDG_CONFIG_HOME", home / ".config")
    match client:
        case Client.claude:
            return _folder("CLAUDE_CONFIG_DIR", home) / ".claude.json"
        case Client.opencode:
            commented = settings / "opencode" / "opencode.jsonc"
            return commented if commented.exists() else commented.with_suffix(".json")
        case Client.cursor:
            return home / ".cursor" / "mcp.json"
        case Client.vscode:
            if sys.platform == "darwin":
                settings = home / "Library" / "Application Support"
            return settings / "Code" / "User" / "mcp.json"
        case Client.codex:
            return _folder("CODEX_HOME", home / ".codex") / "config.toml"
        case Client.gemini:
            return home / ".gemini" / "settings.json"


def _folder(variable: str, usual: Path) -> Path:
    chosen = os.environ.get(variable, "").strip()
    return absolute(chosen, variable) if chosen else usual
