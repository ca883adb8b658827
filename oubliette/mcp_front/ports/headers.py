"""Headers between a browser and a container, neither of which is trusted with the other's secrets.

To the container go neither the browser's cookie for this server nor its API key. To the
browser goes nothing that reaches beyond the host name of this port.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

COOKIE: Final = b"oubliette_port"
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS: Final = frozenset(
    {
        b"expect",  # answered already
        b"forwarded",
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-real-ip",
    }
)
_HERE: Final = rb"(?i)https?://(?:localhost|127\.0\.0\.1|\[::1\]):%d(?=[/?#]|$)"
_KEPT_BACK: Final = frozenset(
    {
        b"alt-svc",  # another server for this host name
        b"clear-site-data",
        b"date",  # this server sends its own
        b"public-key-pins",
        b"service-worker-allowed",
        b"strict-transport-security",
    }
)


def cookies_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
    """The values of this server's cookie that the browser sends.

    A page of another port may have set one of this name for a domain or path of both.
    """
    parts = (part for name, value in headers if name == b"cookie" for part in value.split(b";"))
    pairs = (part.strip().partition(b"=") for part in parts)
    return tuple(given.decode("latin-1") for key, _, given in pairs if key == COOKIE)


def to_container(
    headers: Iterable[tuple[bytes, bytes]],
    *,
    port: int,
    client: str,
    scheme: str,
    own_key: bool,
) -> Headers:
    """The headers of a request for the program that listens on `port`.

    Args:
        headers: of the browser.
        port: number in the container.
        client: address of the browser.
        scheme: `http` or `https`, as the browser sees it.
        own_key: whether Authorization has an API key of this server.
    """
    given = list(headers)
    dropped = _HOP_BY_HOP | _OURS | _named(given)
    here = f"localhost:{port}".encode()
    host = next((value for name, value in given if name == b"host"), b"")
    sent: Headers = [(b"host", here)]
    for name, value in given:
        if name == b"cookie":
            left = _other_cookies(value)
            if left:
                sent.append((name, left))
        elif name == b"origin":
            # A program that compares the origin of a page with its host finds them equal
            own = _is_own_origin(value, host)
            sent.append((name, b"http://" + here if own else value))
        elif name == b"transfer-encoding" and value.strip().lower() == b"chunked":
            sent.append((name, b"chunked"))
        elif name not in dropped and not (own_key and name == b"authorization"):
            sent.append((name, value))
    sent += [
        (b"x-forwarded-for", client.encode()),
        (b"x-forwarded-host", host),
        (b"x-forwarded-proto", scheme.encode()),
    ]
    return sent


def _is_own_origin(origin: bytes, host: bytes) -> bool:
    return origin.partition(b"://")[2].lower() == host.lower()


def is_foreign(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a page of another origin makes the request, other than by a link to a page.

    Images and frames of other pages come with the cookie where the site is the same, as that of two
    ports below `ports.base_url` is, and have no Origin.
    """
    found = dict(headers)
    origin = found.get(b"origin")
    if origin is not None and not _is_own_origin(origin, found.get(b"host", b"")):
        return True
    if found.get(b"sec-fetch-site", b"none") in {b"none", b"same-origin"}:
        return False
    opened = (found.get(b"sec-fetch-mode"), found.get(b"sec-fetch-dest"))
    return opened != (b"navigate", b"document") or method not in {"GET", "HEAD"}


def to_browser(headers: Iterable[tuple[bytes, bytes]], *, port: int, bodyless: bool) -> Headers:
    """The headers of an answer for the browser.

    Args:
        headers: of the program in the container.
        port: its number.
        bodyless: whether the status allows no body, so that it gets no length.
    """
    given = list(headers)
    dropped = _HOP_BY_HOP | _KEPT_BACK | _named(given)
    sent: Headers = []
    for name, value in given:
        if name == b"set-cookie":
            kept = _confined_cookie(value)
            if kept is not None:
                sent.append((name, kept))
        elif name == b"location":
            sent.append((name, _on_this_host(value, port)))
        elif name not in dropped and not (bodyless and name == b"content-length"):
            sent.append((name, value))
    return sent


def _named(headers: Headers) -> set[bytes]:
    """The headers that Connection names: they are for the next hop alone."""
    return {
        each.strip().lower()
        for name, value in headers
        if name == b"connection"
        for each in value.split(b",")
    } - {b"host", b"cookie", b"content-length", b"transfer-encoding"}


def _other_cookies(value: bytes) -> bytes:
    parts = [part.strip() for part in value.split(b";")]
    return b"; ".join(part for part in parts if part.partition(b"=")[0].strip() != COOKIE)


def _confined_cookie(value: bytes) -> bytes | None:
    """Return a cookie for this host name alone; None if it would replace the server's own."""
    pair, *attributes = value.split(b";")
    if pair.partition(b"=")[0].strip().lower() == COOKIE:
        return None
    kept = [each for each in attributes if each.strip().partition(b"=")[0].lower() != b"domain"]
    return b";".join([pair, *kept])


def _on_this_host(location: bytes, port: int) -> bytes:
    """A redirect to the program's own address as a path, which is right for both sides."""
    own = re.match(_HERE % port, location)
    if own is None:
        return location
    rest = location[own.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
