"""Names of a workspace's entries, as its snapshot has them.

A snapshot has two trees. The tree `files` is what a user of git expects: the workspace without any
`.git`. The tree `rest` has everything else: names that git refuses, because a checkout of them
could harm a reader, and the folders that are Oubliette's own. In `rest` a refused name has a `%`
before it, and so has each name that could be mistaken for one of those.

Standard library only: the program that reads workspaces imports this module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Literal

    Part = Literal["files", "rest"]

PARTS: Final = ("files", "rest")
BELOW: Final = b"files/"
"""Folder of the tree `rest` that has the entries; beside it is the manifest."""
MANIFEST: Final = b"manifest"

_OWN: Final = (b".rlm-context", b".factory")
"""Folders at the top of a workspace that Oubliette makes; its git ignores them too."""
_REFUSED: Final = frozenset({b".git", b"git~1"})
_AS_LINK: Final = frozenset({b".gitmodules", b".gitattributes", b".gitignore", b".mailmap"})
"""Names that git refuses if the entry is a symbolic link."""
_SHORT: Final = re.compile(
    rb"(?i:gitmod~[1-4]|(?=.{8}[ .]*\Z)(?:g(?:i(?:7(?:e(?:ba?)?)?)?)?)?~[1-9]\d*)[ .]*\Z"
)
"""Short names of Windows that stand for `.gitmodules`, as git takes them."""
_MARK: Final = b"%"
_SEPARATORS: Final = re.compile(rb"[\\:]")
_IGNORED_BY_HFS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def refused(name: bytes, names: frozenset[bytes] = _REFUSED) -> bool:
    """Return whether git, on any system, takes `name` for one of `names`, or for a part of one."""
    for piece in _SEPARATORS.split(name):
        text = _IGNORED_BY_HFS.sub("", piece.decode("utf-8", "ignore"))
        if text.rstrip(" .").lower().encode() in names or piece.lower() in names:
            return True
        if names is _AS_LINK and _SHORT.match(piece):
            return True
    return False


def placed(path: bytes, *, link: bool) -> tuple[Part, bytes]:
    """Return the tree of an entry of a workspace, and its path there.

    Args:
        path: Relative to the workspace; a folder has none, because it has its entries'.
        link: Whether it is a symbolic link.
    """
    names = path.split(b"/")
    in_rest = names[0] in _OWN or any(refused(name) for name in names)
    if not in_rest and not (link and refused(names[-1], _AS_LINK)):
        return "files", path
    return "rest", BELOW + b"/".join(map(_marked, names))


def original(part: Part, path: bytes) -> bytes:
    """Return the path in the workspace of an entry of a tree: the inverse of `placed`.

    Raises:
        ValueError: no entry has this path.
    """
    if part == "files":
        names = path.split(b"/")
        if any(refused(name) for name in names):
            raise ValueError(f"{path!r} is not in the tree of files")
    else:
        if not path.startswith(BELOW):
            raise ValueError(f"{path!r} is not below {BELOW!r}")
        names = [_unmarked(name) for name in path.removeprefix(BELOW).split(b"/")]
    if any(name in {b"", b".", b".."} for name in names):
        raise ValueError(f"{path!r} is no path of a workspace")
    return b"/".join(names)


def _special(name: bytes) -> bool:
    bare = name.lstrip(_MARK)
    return refused(bare) or refused(bare, _AS_LINK)


def _marked(name: bytes) -> bytes:
    return _MARK + name if _special(name) else name


def _unmarked(name: bytes) -> bytes:
    return name[1:] if name.startswith(_MARK) and _special(name) else name
