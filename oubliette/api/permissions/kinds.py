"""Kinds of tools, and the names that agents give to tools of each kind."""

from __future__ import annotations

import re
from typing import Final

KINDS: Final[dict[str, frozenset[str]]] = {
    "read": frozenset({"read", "read_file", "readfile", "view", "view_file", "notebookread"}),
    "search": frozenset(
        {"search", "grep", "glob", "list", "ls", "list_directory", "codesearch", "lsp"}
    ),
    "edit": frozenset(
        {
            "edit",
            "write",
            "create",
            "multiedit",
            "multi_edit",
            "apply_patch",
            "applypatch",
            "patch",
            "write_file",
            "edit_file",
            "replace",
            "notebookedit",
        }
    ),
    "delete": frozenset({"delete", "remove", "delete_file"}),
    "move": frozenset({"move", "rename"}),
    "execute": frozenset(
        {"execute", "bash", "shell", "exec", "terminal", "run_shell_command", "run_command"}
    ),
    "web": frozenset(
        {
            "web",
            "fetch",
            "webfetch",
            "web_fetch",
            "fetchurl",
            "fetch_url",
            "websearch",
            "web_search",
            "google_web_search",
        }
    ),
}
"""Names by kind, in lower case. Rules can use a kind, or one of these names."""
COMMON: Final[dict[str, frozenset[str]]] = {
    "execute": frozenset({"execute", "bash"}),
    "web": frozenset({"web", "fetch"}),
}
"""Names that every tool of a kind answers to; of others it is the kind alone."""
ON_PATHS: Final = frozenset({"read", "search", "edit", "delete", "move"})
"""Kinds whose subjects are paths."""

_KIND_OF: Final = {name: kind for kind, names in KINDS.items() for name in names}
_TOKEN: Final = re.compile(r"[\w.:-]+")


def kind_of(name: str) -> str | None:
    """Return the kind of a tool with this name; None if the name is of no kind."""
    return _KIND_OF.get(name.lower())


def names_of(kind: str | None, name: str = "") -> frozenset[str]:
    """Return the names that rules can use for a tool of this kind and name, in lower case."""
    common = frozenset[str]() if kind is None else COMMON.get(kind, frozenset({kind}))
    return common | frozenset([name.lower()] if name else [])


def is_token(text: str) -> bool:
    """Return whether a text can be the name of a tool, rather than a title for readers."""
    return bool(_TOKEN.fullmatch(text))
