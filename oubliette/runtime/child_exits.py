"""Exit codes of child programs, which a process that ignores SIGCHLD does not get.

That it is ignored is inherited from the program that started this one, or a program that embeds a
server wants no zombies. Children inherit it too: the sandbox would wait for its own for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

_lock = threading.Lock()
_users = 0  # of this process, in which servers may run in several threads
_DEFAULT: Final = 0  # SIG_DFL and SIG_IGN of signal.h
_IGNORE: Final = 1


@contextlib.contextmanager
def kept() -> Generator[None]:
    """Do not ignore SIGCHLD for the time of the `with` block; a handler of the program stays."""
    global _users
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        yield
        return
    with _lock:
        _users += 1
        _set(_DEFAULT)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set(_IGNORE)


def _set(disposition: int) -> None:
    # Not by Python's function, which works in the main thread only: a server may run in another.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGCHLD, disposition)
