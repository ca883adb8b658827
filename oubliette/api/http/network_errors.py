"""Errors of the network, in the words of the operating system, and whether they may pass."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, cast

from oubliette.api.http.answers import away
from oubliette.api.http.attempts import AttemptFailed

if TYPE_CHECKING:
    import httpx2


def failure(url: httpx2.URL, error: httpx2.HTTPError, handled: BaseException | None) -> Exception:
    """Return the error of a request that had no complete answer.

    `handled`: the error that was being handled when the request began, which is not its cause.
    """
    import httpx2

    below = _lowest(error, handled)
    if isinstance(error, httpx2.ConnectTimeout):
        return AttemptFailed(away(url, "it does not take the connection"), "refused")
    told = away(url, _words(below))
    if isinstance(error, httpx2.ConnectError):
        return told if _is_permanent(below) else AttemptFailed(told, "refused")
    if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):
        return AttemptFailed(told, "lost")
    return told


def _lowest(error: BaseException, handled: BaseException | None) -> BaseException:
    """Return the operating system's error, which is at the bottom of the chain."""
    while (below := error.__cause__ or error.__context__) is not None and below is not handled:
        error = below
    if isinstance(error, BaseExceptionGroup):  # one for each address of the host
        group = cast("BaseExceptionGroup[BaseException]", error)
        return _lowest(group.exceptions[0], handled)
    return error


def _words(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _is_permanent(error: BaseException) -> bool:
    """Return whether this is a wrong address or certificate, which stays wrong."""
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_AGAIN
    return isinstance(error, ssl.SSLError)
