"""Command line of the guest, and its key. `argparse` would cost 6 ms of the start."""

from __future__ import annotations

import os
import stat

from ..wire import KEY_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SOCKET_PATH_BYTES = 103  # of 108 on Linux and 104 on macOS, whose users mount the folder too
TAKES_VALUE: dict[str, Callable[[str], Any]] = {
    "--socket": str,
    "--key": str,
    "--spool": str,
    "--orphan-grace": float,
    "--label": str,
    "--ready": str,
    "--ready-fd": int,
}


class UsageError(Exception):
    """The guest cannot start with these options; the text gives the reason."""


class GuestOptions:
    """Options of the guest."""

    def __init__(self) -> None:
        self.socket = "/mcp/relay.sock"
        self.key: str | None = "/mcp/key"
        self.spool = ""
        self.orphan_grace = 600.0  # seconds; 0 waits for ever
        self.accept_bare = False
        self.new_privileges = False  # programs may gain more rights than the guest has: setuid
        self.label = ""  # shown by `ps`
        self.ready = ""  # a FIFO to report readiness on, where no descriptor can be inherited
        self.ready_fd: int | None = None


def read_options(arguments: list[str], *, relay: bool) -> GuestOptions:
    """Parse the command line; `relay` starts from the defaults of the bare relay.

    Raises:
        UsageError: An option is unknown, or its value is invalid.

    """
    options = GuestOptions()
    if relay:
        options.key, options.accept_bare, options.orphan_grace = None, True, 0.0
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--accept-bare" and not equals:
            options.accept_bare = True
            continue
        if name == "--new-privileges" and not equals:
            options.new_privileges = True
            continue
        read = TAKES_VALUE.get(name)
        if read is None:
            raise UsageError(f"unknown option {name}")
        if not equals:
            if not rest:
                raise UsageError(f"{name} needs a value")
            value = rest.pop(0)
        try:
            setattr(options, name[2:].replace("-", "_"), read(value))
        except ValueError:
            raise UsageError(f"{name}: {value!r} is not a number") from None
    if len(os.fsencode(options.socket)) > SOCKET_PATH_BYTES:
        raise UsageError(f"--socket: longer than {SOCKET_PATH_BYTES} bytes")
    options.spool = _spool_folder(options.spool)
    return options


def _spool_folder(path: str) -> str:
    """Return the folder for spool files, made 0700; a temporary folder if none was requested."""
    if path:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--spool {path}: {error.strerror}") from None
        return path
    for folder in (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"):  # noqa: S108 -- files have no name there
        if folder and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return "."


def read_key(options: GuestOptions) -> bytes | None:
    """Read the key and remove its file, so that no agent can read it.

    Raises:
        UsageError: A key is required and missing, or it is not 32 bytes.

    """
    path = options.key
    if path is None:
        return None
    if path == "-":
        return _key_of_input()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UsageError(f"--key {path}: not a file")
            key = os.read(fd, KEY_BYTES + 1)
        finally:
            os.close(fd)
        os.unlink(path)
    except OSError as error:
        raise UsageError(f"--key {path}: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise UsageError(f"--key {path}: not {KEY_BYTES} bytes")
    return key


def _key_of_input() -> bytes:
    """Read the key from standard input, for engines on which a file of ours may not be readable."""
    key = b""
    while len(key) < KEY_BYTES:
        piece = os.read(0, KEY_BYTES - len(key))
        if not piece:
            raise UsageError(f"--key -: not {KEY_BYTES} bytes")
        key += piece
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return key
