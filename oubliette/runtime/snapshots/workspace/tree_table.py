"""TreeTable, what is known of each entry of a workspace, with its name, and the manifest of it.

Git keeps neither empty folders nor modes other than 0644 and 0755, and a snapshot has neither
sockets nor files above its limit. The manifest, a file of the tree `rest`, has what is missing.

Standard library only: the program that reads workspaces imports this module.

A snapshot has two trees. The tree `files` is what a user of git expects: the workspace without any
`.git`. The tree `rest` has everything else: names that git refuses, because a checkout of them
could harm a reader, and the folders that are Oubliette's own. In `rest` a refused name has a `%`
before it and before each part of it, as git sees parts on Windows, and so has each name that could
be mistaken for one of those.

Standard library only: the program that reads workspaces imports this module.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    Kind = Literal["file", "link", "folder", "large"]
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
_STARTS: Final = re.compile(rb"\A|(?<=[\\:])")
"""Beginnings of the parts of a name."""
_ONE_MARK: Final = re.compile(rb"(?:\A|(?<=[\\:]))%")
_ALL_MARKS: Final = re.compile(rb"(?:\A|(?<=[\\:]))%+")
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
    """The path in the workspace of an entry of a tree: the inverse of `placed`.

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


def refused_path(path: bytes) -> bytes | None:
    """Return the path in a workspace, as far as a name that git refuses, of an entry of `rest`.

    None: it is of the `.git` of the workspace itself, or of a folder of Oubliette.

    Raises:
        ValueError: no entry has this path.
    """
    names = original("rest", path).split(b"/")
    if names[0] in _OWN or names[0] == b".git":
        return None
    last = next((place for place, name in enumerate(names, 1) if refused(name)), len(names))
    return b"/".join(names[:last])


def _special(name: bytes) -> bool:
    bare = _ALL_MARKS.sub(b"", name)
    return refused(bare) or refused(bare, _AS_LINK)


def _marked(name: bytes) -> bytes:
    return _STARTS.sub(_MARK, name) if _special(name) else name


def _unmarked(name: bytes) -> bytes:
    return _ONE_MARK.sub(b"", name) if name.startswith(_MARK) and _special(name) else name


VERSION: Final = 4
"""Of the table, and of the rules by which `names` places entries."""
FOLDER_MODE: Final = 0o755
FILE_MODE: Final = 0o644
PROGRAM_MODE: Final = 0o755
_KINDS: Final[dict[str, Kind]] = {"f": "file", "l": "link", "d": "folder", "b": "large"}
_LETTERS: Final = {kind: letter for letter, kind in _KINDS.items()}
_NONE: Final = ((), (), (), (), (), ())
NEVER: Final = -1
"""A time of change that equals none: the entry is read again at the next snapshot."""


class Entry(NamedTuple):
    """An entry of a workspace."""

    kind: Kind
    mode: int
    """Permission bits."""
    size: int = 0
    changed: int = NEVER
    """Nanosecond at which the kernel saw the last change of the inode; an agent cannot forge it."""
    inode: int = 0
    content: str = ""
    """Name of its blob; of a large file the SHA-256."""

    @property
    def same_as(self) -> tuple[str, int, str]:
        """Fields that are the same in two snapshots of an equal entry."""
        return self.kind, self.mode, self.content

    @property
    def git_mode(self) -> bytes:
        if self.kind == "link":
            return b"120000"
        return b"100755" if self.mode & 0o100 else b"100644"


_MADE: Final[Callable[[Iterable[Any]], Entry]] = partial(tuple.__new__, Entry)  # pyright: ignore[reportUnknownMemberType]


class TreeTable:
    """Entries of a workspace, by path; and what a snapshot of it leaves out, with the reason."""

    def __init__(
        self, entries: dict[bytes, Entry] | None = None, left_out: dict[bytes, str] | None = None
    ) -> None:
        self.entries: dict[bytes, Entry] = {} if entries is None else entries
        self.left_out: dict[bytes, str] = {} if left_out is None else left_out

    def same_as(self, other: TreeTable) -> bool:
        if self.left_out != other.left_out or self.entries.keys() != other.entries.keys():
            return False
        theirs = other.entries
        return all(
            self.entries[path].same_as == theirs[path].same_as for path in self._not_of(other)
        )

    def is_as_stored(self, other: TreeTable) -> bool:
        """Whether the other one, which was stored, need not be written again."""
        return self.left_out == other.left_out and self.entries == other.entries

    def has_manifest_of(self, other: TreeTable) -> bool:
        """Whether only contents differ, of which a manifest has nothing."""
        if self.left_out != other.left_out or self.entries.keys() != other.entries.keys():
            return False
        pairs = ((self.entries[path], other.entries[path]) for path in self._not_of(other))
        return all(
            now.kind == before.kind != "large" and now.mode == before.mode for now, before in pairs
        )

    def _not_of(self, other: TreeTable) -> list[bytes]:
        """The paths whose entries are other objects than those of the other table.

        An entry that has not changed is the same object: a large tree is compared by it.
        """
        theirs = other.entries.get
        return [path for path, entry in self.entries.items() if theirs(path) is not entry]

    def manifest(self) -> bytes:
        """The manifest, which is the same for the same tree."""
        parents = {path.rpartition(b"/")[0] for path in (*self.entries, *self.left_out)}
        folders: dict[str, int] = {}
        modes: dict[str, int] = {}
        large: dict[str, list[Any]] = {}
        for path, entry in self.entries.items():
            name = os.fsdecode(path)
            if entry.kind == "folder":
                if entry.mode != FOLDER_MODE or path not in parents:
                    folders[name] = entry.mode
            elif entry.kind == "large":
                large[name] = [entry.size, entry.content, entry.mode]
            elif entry.kind == "file" and entry.mode not in {FILE_MODE, PROGRAM_MODE}:
                modes[name] = entry.mode
        left_out = {os.fsdecode(path): reason for path, reason in self.left_out.items()}
        tree = {"folders": folders, "modes": modes, "large": large, "left_out": left_out}
        return json.dumps(tree, sort_keys=True, indent=0).encode() + b"\n"

    def changes_from(self, old: TreeTable) -> dict[str, tuple[list[bytes], list[bytes]]]:
        """Return for each tree the paths that are gone from it, and the paths that are new in it.

        The new ones are paths of the workspace, the others paths of the tree.
        """
        changes: dict[str, tuple[list[bytes], list[bytes]]] = {"files": ([], []), "rest": ([], [])}
        for path in old._not_of(self):
            entry, now = old.entries[path], self.entries.get(path)
            if entry.kind in {"file", "link"}:
                part, there = placed(path, link=entry.kind == "link")
                if now is None or now.kind not in {"file", "link"} or now.kind != entry.kind:
                    changes[part][0].append(there)
        for path in self._not_of(old):
            entry, before = self.entries[path], old.entries.get(path)
            if entry.kind in {"file", "link"} and (
                before is None
                or before.kind != entry.kind
                or before.content != entry.content
                or before.git_mode != entry.git_mode
            ):
                changes[placed(path, link=entry.kind == "link")[0]][1].append(path)
        return changes

    def encode(self, heads: dict[str, str]) -> bytes:
        """Return the table as a file has it, for the next snapshot: a line of JSON, and columns.

        Args:
            heads: Commits of the two trees that it describes.
        """
        left_out = {os.fsdecode(path): reason for path, reason in self.left_out.items()}
        head = {
            "version": VERSION,
            "heads": heads,
            "left_out": left_out,
            "entries": len(self.entries),
        }
        rows = self.entries.values()
        kinds, modes, sizes, changed, inodes, contents = zip(*rows, strict=True) if rows else _NONE
        return b"".join(
            (
                json.dumps(head, separators=(",", ":")).encode() + b"\n",
                "".join(map(_LETTERS.__getitem__, kinds)).encode(),
                *(array(*each).tobytes() for each in (("H", modes), ("q", sizes))),
                *(array(*each).tobytes() for each in (("q", changed), ("Q", inodes))),
                "\n".join(contents).encode() + b"\n",
                b"\0".join(self.entries),
            )
        )


def without_content(manifest: bytes) -> dict[str, dict[str, Any]]:
    """Return what a manifest has of `large` files and of those that were `left_out`.

    Folders and modes, of which there may be one for each entry, are not decoded: that holds up
    all threads of the process. A name has no newline in JSON, so the places are certain.

    Raises:
        ValueError: it is damaged.
    """
    begin = manifest.index(b'\n"large": {')
    end = manifest.index(b',\n"modes": {', begin)
    return json.loads(b"{" + manifest[begin:end] + b"}")


def decoded(data: bytes) -> tuple[TreeTable, dict[str, str]] | None:
    """Return the table in a file, and the commits that it describes; None: it cannot be used."""
    try:
        line, _, rest = data.partition(b"\n")
        head = json.loads(line)
        count = head["entries"]
        if head["version"] != VERSION or count < 0:
            return None
        kinds = list(map(_KINDS.__getitem__, rest[:count].decode()))
        place = count
        columns: list[array[int]] = []
        for column in (array("H"), array("q"), array("q"), array("Q")):
            size = count * column.itemsize
            column.frombytes(rest[place : place + size])
            columns.append(column)
            place += size
        *contents, names = rest[place:].split(b"\n", count)
        paths = names.split(b"\0") if count else []
        rows = zip(kinds, *columns, map(bytes.decode, contents), strict=True)
        # `Entry._make` is the same in Python; this is a good part of what a large tree costs
        entries: dict[bytes, Entry] = dict(zip(paths, map(_MADE, rows), strict=True))
        left_out = {os.fsencode(path): str(why) for path, why in head["left_out"].items()}
        if len(entries) != count:
            return None
        return TreeTable(entries, left_out), dict(head["heads"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
