"""Subjects of permission requests: the tool, paths, commands and addresses that one is about.

Agents describe a call in forms of their own. A field that the model writes, such as a title, can
deny a request but never allow it; what the agent's program states of a tool can do both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.api.permissions.kinds import ON_PATHS, is_token, kind_of, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.contract.events import PermissionRequest

_OF_ACP: Final = {"fetch": "web"}
"""Kind by the kind of the Agent Client Protocol, where the two differ."""
_PATH_KEY: Final = re.compile(
    r"(?i).*(?:path|file)s?|(?:file|dir|folder)_?names?|uri|dir|directory|folder|target|source"
    r"|destination|cwd|workdir|(?:old|new|from|to)_?(?:file|path|name)"
)
_COMMAND_KEYS: Final = frozenset({"command", "cmd", "commandline", "command_line", "script"})
_ADDRESS_KEYS: Final = frozenset({"url", "urls", "uri"})
_SEARCH_KEYS: Final = frozenset({"pattern", "patterns", "glob", "include"})
"""Keys of searches, whose values may lead out of the folder that is searched."""
_PATCHED: Final = re.compile(
    r"(?m)^\*\*\* (?:Add File|Update File|Delete File|Move to): *(.+?) *$"
    r"|^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+?)[ \t]*$"
)
_QUESTIONS: Final = frozenset(
    {"exec", "edit", "create", "apply_patch", "mcp_tool", "low", "medium", "high"}
)
"""Questions of Droid's that are about the call itself, not about a violation of its rules."""
_DEPTH: Final = 8
"""Levels of nested arguments that are searched; deeper ones count as a path without a name, which
no rule allows."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a permission request, as far as it is known."""

    names: frozenset[str]
    """Names of the tool that are certain, in lower case."""
    suspected: frozenset[str] = frozenset()
    """Names that the tool may have; rules that deny match these too."""
    kind: str | None = None
    """Kind of the tool."""
    paths: tuple[str, ...] = ()
    """Paths, as the agent writes them."""
    commands: tuple[str, ...] = ()
    """Commands of a shell."""
    addresses: tuple[str, ...] = ()
    """URLs."""
    texts: tuple[str, ...] = ()
    """Subjects of another kind."""


class _Found:
    """Arguments of a call that name something, collected from nested objects."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.commands: list[str] = []
        self.addresses: list[str] = []

    def collect(self, value: object, key: str = "", depth: int = 0) -> None:
        """Collect from a value that is below a key."""
        if depth >= _DEPTH and isinstance(value, dict | list | tuple):
            self.paths.append("")
        elif isinstance(value, dict):
            for name, each in cast("dict[Any, Any]", value).items():
                self.collect(each, str(name), depth + 1)
        elif isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            if key.lower() in _COMMAND_KEYS and items and all(isinstance(i, str) for i in items):
                self.commands.append(" ".join(cast("list[str]", items)))
            else:
                for each in items:
                    self.collect(each, key, depth + 1)
        elif isinstance(value, str) and value:
            self._text(value, key)

    def _text(self, value: str, key: str) -> None:
        if key.lower() in _COMMAND_KEYS:
            self.commands.append(value)
        elif key.lower() in _ADDRESS_KEYS and not value.startswith(("/", "file:")):
            self.addresses.append(value)
        elif _PATH_KEY.fullmatch(key):
            self.paths.append(value)
        elif key.lower() in _SEARCH_KEYS:
            if value.startswith(("/", "~")) or ".." in value:
                self.paths.append(value)
        elif "patch" in key.lower() or "*** Begin Patch" in value:
            self.paths += patched_paths(value)


def subject_of(request: PermissionRequest) -> Subject:
    """Return the subject of a request of any agent."""
    call = request.tool_call
    if call is None:
        return _of_text(request.text or request.asks_for)
    if isinstance(call.get("permission"), str):
        return _of_opencode(call)
    if isinstance(call.get("toolCallId"), str):
        return _of_acp(call, request.asks_for)
    name = next(
        (call[key] for key in ("name", "tool", "tool_name") if isinstance(call.get(key), str)), None
    )
    if name is None:
        return _of_acp(call, request.asks_for)
    found = _of_name(str(name), call.get("input", call.get("arguments")))
    if call.get("type") != "tool_use" or not request.asks_for.startswith(f"{name}: "):
        return found
    question = request.asks_for.removeprefix(f"{name}: ").partition(":")[0].strip().lower()
    if question in _QUESTIONS:
        return found
    # Such as `sandbox_violation`: to allow the tool is not to allow this.
    return msgspec.structs.replace(
        found, names=frozenset([question]), suspected=found.names, kind=None
    )


def patched_paths(patch: str) -> list[str]:
    """Return the paths that a patch names, in the form of `apply_patch` or of `diff`."""
    named = [one or other for one, other in _PATCHED.findall(patch)]
    return [each for each in named if each != "/dev/null"]


def _of_text(text: str) -> Subject:
    """Return the subject of `TOOL: SUBJECT`, or of a text without a subject."""
    head, colon, rest = (part.strip() for part in text.partition(":"))
    if not colon or not is_token(head) or not rest:
        words = text.split()
        first = words[0].lower() if words else ""
        whole = " ".join(words)
        return Subject(
            names=names_of(kind_of(whole), whole),
            suspected=names_of(kind_of(first), first),
            kind=kind_of(whole),
        )
    return _with_texts(kind_of(head), head, (rest,))


def _of_opencode(call: dict[str, Any]) -> Subject:
    """Return the subject of a request of OpenCode's server: permission, patterns, metadata."""
    name = str(call["permission"])
    kind = kind_of(name)
    patterns = tuple(each for each in _list(call.get("patterns")) if isinstance(each, str))
    found = _Found()
    found.collect(call.get("metadata"))
    if kind == "execute" and found.commands:
        return _built(kind, name, commands=tuple(found.commands))
    if kind in ON_PATHS and found.paths:
        return _built(kind, name, paths=tuple(found.paths))
    if kind == "search" and name not in {"list", "ls"}:
        return _built(kind, name)  # its patterns are what is searched for
    if name == "external_directory":
        return _built(None, name, paths=(*found.paths, *patterns), texts=patterns)
    return _with_texts(kind, name, patterns)


def _of_acp(call: dict[str, Any], asks_for: str) -> Subject:
    """Return the subject of a request over the Agent Client Protocol: kind, input, locations."""
    told = call.get("kind")
    title = call.get("title")
    named = title.strip() if isinstance(title, str) else ""
    found = _Found()
    for key in ("rawInput", "locations", "content"):
        found.collect(_without_text(call.get(key)) if key == "content" else call.get(key))
    kind = _OF_ACP.get(told, kind_of(told)) if isinstance(told, str) else None
    if found.commands and (kind is not None or told is None):
        kind = "execute"  # also where the agent states another kind: the graver one holds
    stated = told.lower() if isinstance(told, str) and kind_of(told) in {kind, None} else ""
    own = named if kind is None and is_token(named) and kind_of(named) is None else ""
    suspected = names_of("execute") if found.commands else frozenset[str]()
    if kind is None:
        suspected |= _suspected_in(named) | _suspected_in(asks_for)
    return Subject(
        names=names_of(kind, own) | frozenset([stated] if stated else []),
        suspected=suspected,
        kind=kind,
        paths=_paths_of(kind, found),
        commands=tuple(found.commands),
        addresses=tuple(found.addresses),
    )


def _suspected_in(title: str) -> frozenset[str]:
    """Return names that a title may mean: its beginning, and the whole of it."""
    words = title.partition(":")[0].split()
    if not words:
        return frozenset()
    return names_of(kind_of(words[0]), words[0]) | {title.lower()}


def _of_name(name: str, arguments: object) -> Subject:
    """Return the subject of a call of a tool by its name, as Droid describes it."""
    found = _Found()
    found.collect(arguments)
    kind = kind_of(name)
    return _built(
        kind,
        name,
        paths=_paths_of(kind, found),
        commands=tuple(found.commands),
        addresses=tuple(found.addresses),
    )


def _paths_of(kind: str | None, found: _Found) -> tuple[str, ...]:
    """Return the paths; of a command they are only where it runs."""
    return () if kind == "execute" else tuple(found.paths)


def _with_texts(kind: str | None, name: str, texts: tuple[str, ...]) -> Subject:
    if kind == "execute":
        return _built(kind, name, commands=texts)
    if kind == "web":
        return _built(kind, name, addresses=texts)
    if kind in ON_PATHS:
        return _built(kind, name, paths=texts)
    return _built(kind, name, texts=texts)


def _built(
    kind: str | None,
    name: str,
    *,
    paths: tuple[str, ...] = (),
    commands: tuple[str, ...] = (),
    addresses: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
) -> Subject:
    return Subject(
        names=names_of(kind, name),
        kind=kind,
        paths=paths,
        commands=commands,
        addresses=addresses,
        texts=texts,
    )


def _without_text(content: object) -> list[object]:
    """Return only the paths of contents: texts of an edit name nothing."""
    objects = [cast("dict[str, Any]", each) for each in _list(content) if isinstance(each, dict)]
    return [{"path": each.get("path")} for each in objects]


def _list(value: object) -> Iterator[Any]:
    return iter(cast("list[Any]", value)) if isinstance(value, list) else iter(())
