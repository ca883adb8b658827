"""ImportStream, the commands that `git fast-import` gets.

Git sees nothing of a workspace but this stream, in which names and contents are quoted: it opens no
file there, so no attribute, filter, hook or configuration of a repository has an effect.

Standard library only: the program that reads workspaces imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import IO

AUTHOR: Final = b"Oubliette <oubliette@oubliette.invalid>"
_ESCAPED: Final = {b"\\": b"\\\\", b'"': b'\\"', b"\n": b"\\n"}


def quoted(path: bytes) -> bytes:
    """Return a path as git takes it; any bytes are allowed."""
    for plain, escaped in _ESCAPED.items():
        path = path.replace(plain, escaped)
    return b'"' + path + b'"'


class ImportStream:
    """Writer of commands; the two files are git's standard input and output."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands = commands
        self._answers = answers

    def blob(self, data: bytes) -> None:
        """Store a content."""
        self._commands.write(b"blob\n")
        self._data(data)

    def commit(
        self, ref: str, mark: int, message: str, when: int, parent: str | None, *, afresh: bool
    ) -> None:
        """Begin a commit; `modify` and `delete` make its tree out of the parent's.

        Args:
            ref: Is set to it.
            mark: Number under which `made` names it.
            message: Text.
            when: Second since 1970.
            parent: Name of the commit before it.
            afresh: Whether its tree begins empty.
        """
        head = f"commit {ref}\nmark :{mark}\n".encode()
        self._commands.write(head + b"committer " + AUTHOR + f" {when} +0000\n".encode())
        self._data(message.encode("utf-8", "replace"))
        if parent is not None:
            self._commands.write(f"from {parent}\n".encode())
        if afresh:
            self._commands.write(b"deleteall\n")

    def modify(self, path: bytes, mode: bytes, content: str) -> None:
        """Set an entry of the tree to a content."""
        self._commands.write(b"M " + mode + b" " + content.encode() + b" " + quoted(path) + b"\n")

    def write(self, path: bytes, data: bytes) -> None:
        """Set an entry of the tree to a content that is given here."""
        self._commands.write(b"M 100644 inline " + quoted(path) + b"\n")
        self._data(data)

    def delete(self, path: bytes) -> None:
        """Remove an entry of the tree."""
        self._commands.write(b"D " + quoted(path) + b"\n")

    def made(self, mark: int) -> str:
        """Return the name of a commit; waits until git has made it."""
        self._commands.write(f"\nget-mark :{mark}\n".encode())
        self._commands.flush()
        return self._answers.readline().decode().strip()

    def end(self) -> None:
        """End the stream; without this, git keeps nothing of it."""
        self._commands.write(b"done\n")
        self._commands.close()

    def _data(self, data: bytes) -> None:
        self._commands.write(f"data {len(data)}\n".encode() + data + b"\n")
