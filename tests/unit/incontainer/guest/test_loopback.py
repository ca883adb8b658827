"""Connections into a container: bytes, ends, refusals and limits, over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from oubliette.incontainer import wire
from oubliette.incontainer.guest.loopback import CONNECTIONS
from tests.unit.incontainer.hostclient import Closed, Control, HostProcess, Link

SECONDS = 20.0
LARGE = 8 << 20  # bytes; far more than all buffers on the way hold


@pytest.fixture(scope="module")
def shared() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


@pytest.fixture
def control(shared: HostProcess) -> Control:
    return shared.control()


class Listener:
    """A program that listens in the container: each connection is handled in a thread."""

    def __init__(self, handle: Callable[[socket.socket], None], host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.bind((host, 0))
        self.sock.listen(CONNECTIONS)
        self.port: int = self.sock.getsockname()[1]
        self._handle = handle
        self._threads: list[threading.Thread] = []
        self._peers: list[socket.socket] = []
        self._taking = threading.Thread(target=self._take)

    def _take(self) -> None:
        while True:
            try:
                peer = self.sock.accept()[0]
            except OSError:
                return
            peer.settimeout(SECONDS)
            self._peers.append(peer)
            self._threads.append(threading.Thread(target=self._serve, args=(peer,)))
            self._threads[-1].start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            self._handle(peer)

    def __enter__(self) -> Listener:
        self._taking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self._taking.join(SECONDS)  # what it has accepted by then is among the peers
        self.sock.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):  # it has ended already
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SECONDS)


def echo(peer: socket.socket) -> None:
    while data := peer.recv(1 << 16):
        peer.sendall(data)


def connect(control: Control, host: HostProcess, port: int) -> Link:
    ticket = control.ticket("connect")
    link = host.dial()
    link.send(wire.Connect(port, ticket).line())
    return link


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_bytes_pass_both_ways_and_an_end_is_passed_on(
    shared: HostProcess, control: Control
) -> None:
    with Listener(echo) as listener:
        link = connect(control, shared, listener.port)
        link.send(b"sent at once")
        assert link.line() == wire.CONNECTED.encode()
        assert link.exactly(12) == b"sent at once"
        link.send(b"and later")
        link.half_close()
        assert link.rest() == b"and later"


def test_what_listens_on_ipv6_alone_is_reached(shared: HostProcess, control: Control) -> None:
    try:
        listener = Listener(echo, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        link = connect(control, shared, listener.port)
        assert link.line() == wire.CONNECTED.encode()
        link.send(b"six")
        assert link.exactly(3) == b"six"


def test_a_port_without_a_listener_is_refused_with_a_sentence(
    shared: HostProcess, control: Control
) -> None:
    port = free_port()
    line = connect(control, shared, port).rest()
    assert wire.parse_error(line) == f"nothing listens on port {port} in the container"


def test_a_ticket_of_another_purpose_a_used_one_and_none_open_nothing(
    shared: HostProcess, control: Control
) -> None:
    with Listener(echo) as listener:
        for purpose in ("attach", "upstream"):
            ticket = control.ticket(purpose)
            link = shared.dial()
            link.send(wire.Connect(listener.port, ticket).line())
            assert wire.parse_error(link.rest()) == "bad ticket"
        ticket = control.ticket("connect")
        links = [shared.dial(), shared.dial()]
        for link in links:
            link.send(wire.Connect(listener.port, ticket).line())
        answers = sorted(link.line().decode() for link in links)
        assert answers == [wire.CONNECTED, f"{wire.ERROR} bad ticket"]


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_what_is_no_port_is_refused(shared: HostProcess, port: str) -> None:
    link = shared.dial()
    link.send(f"{wire.CONNECT} 1 {port} ticket\n".encode())
    assert "port is not a number" in (wire.parse_error(link.rest()) or "")


def test_a_side_that_does_not_read_stops_the_other_and_no_other_link(
    shared: HostProcess, control: Control
) -> None:
    content = os.urandom(1 << 20)

    def flood(peer: socket.socket) -> None:
        for _ in range(LARGE >> 20):
            peer.sendall(content)

    with Listener(flood) as flooding, Listener(echo) as other:
        slow = connect(control, shared, flooding.port)
        assert slow.line() == wire.CONNECTED.encode()
        quick = connect(control, shared, other.port)
        assert quick.line() == wire.CONNECTED.encode()
        quick.send(content)
        assert quick.exactly(len(content)) == content
        # What the guest holds of the other is bounded, however much there is.
        assert control.settle()["rss"] < 200 << 20
        assert slow.rest() == content * (LARGE >> 20)


def test_the_number_of_connections_is_limited_and_closed_ones_do_not_count(
    host: HostProcess,
) -> None:
    control = host.control()
    with Listener(echo) as listener:
        links = [connect(control, host, listener.port) for _ in range(CONNECTIONS)]
        for link in links:
            assert link.line() == wire.CONNECTED.encode()
        assert control.settle()["connections"] == CONNECTIONS
        refused = wire.parse_error(connect(control, host, listener.port).rest())
        assert "are open already" in (refused or "")
        links[0].half_close()
        assert links[0].rest() == b""
        control.settle()
        assert connect(control, host, listener.port).line() == wire.CONNECTED.encode()
        for link in links:
            link.close()


def test_a_program_that_ends_closes_the_link(shared: HostProcess, control: Control) -> None:
    def greet(peer: socket.socket) -> None:
        peer.sendall(b"bye")

    with Listener(greet) as listener:
        link = connect(control, shared, listener.port)
        assert link.rest() == f"{wire.CONNECTED}\nbye".encode()
        with pytest.raises((BrokenPipeError, Closed, ConnectionResetError)):
            while True:
                link.send(b"more" * 10_000)
