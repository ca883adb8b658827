"""Remedies for addresses that cannot be listened on."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from oubliette.mcp_front.transport.listen_errors import taken_hint

TAKEN = OSError(errno.EADDRINUSE, "Address already in use")


class Refusing(BaseHTTPRequestHandler):
    """Refuses a request without a key, in the realm of its server."""

    realm = "oubliette"

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", f'Bearer realm="{self.realm}"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Others(Refusing):
    realm = "another"


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that answers one request."""
    with HTTPServer(("127.0.0.1", 0), request.param) as server:
        server.timeout = 10
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield server.server_port
        thread.join(10)


@pytest.mark.parametrize(
    ("port", "named"),
    [(Refusing, "a server of Oubliette listens there"), (Others, "another program listens there")],
    indirect=["port"],
)
def test_a_port_that_is_taken_is_told_with_what_has_it(port: int, named: str) -> None:
    assert taken_hint(TAKEN, "127.0.0.1", port).startswith(named)


def test_other_errors_have_their_own_remedy() -> None:
    denied = OSError(errno.EACCES, "Permission denied")
    assert "ports below 1024" in taken_hint(denied, "127.0.0.1", 80)
    missing = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert "no such address" in taken_hint(missing, "192.0.2.1", 8080)
