"""The guest: the one process that a container runs for us, relay and agent supervisor in one.

See `docs/relay-protocol.md` for its protocol.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time

from .. import wire
from ..io import linux
from ..io.event_loop import READ, Loop
from .attach_link import AttachLink
from .commands import perform
from .control_link import GuestControlLink
from .header_reader import HeaderReader
from .loopback import LoopbackConnections
from .pairing import LinkRefused, Pairing
from .process import spawn
from .process.spawn import raise_file_limit
from .process.table import ProcessTable
from .tickets import Tickets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..io.event_loop import LoopTimer
    from .options import GuestOptions

BUILD = "0.1.0"
FEATURES = ["attach", "pairing", "spool", "tickets", "deadline", "connect"]
BACKLOG = 1024  # connections not accepted yet; above, connect() blocks or fails with EAGAIN
ACCEPTS = 64  # connections accepted at a time, before other descriptors get their turn
HEADER_READERS = 256  # connections without a header, or being refused; the oldest is closed first
TERM_SECONDS = 3.0  # from TERM to KILL when draining
LATE = 0.1  # seconds after the end of the grace, above which the guest was frozen
KILL_SECONDS = 3.0  # from KILL to leaving, even if processes are left


class GuestServer:
    """Owner of the listener, links, pairing and processes."""

    def __init__(self, loop: Loop, options: GuestOptions, key: bytes | None) -> None:
        self.loop = loop
        self.boot = os.urandom(8).hex()
        self.born = time.monotonic()
        self.tickets = Tickets()
        self.pairing = Pairing(loop, self.tell, accept_bare=options.accept_bare)
        self.loopback = LoopbackConnections(loop)
        spawn.new_privileges = options.new_privileges
        self.table = ProcessTable(loop, options.spool, self._process_event)
        self._options = options
        self._key = key
        self._epoch = -1
        self._control: GuestControlLink | None = None
        self._header_readers: dict[HeaderReader, None] = {}  # in order of arrival
        self._draining = False
        self._agents_uid: int | None = None
        self._orphan_timer: LoopTimer | None = None
        # Before anybody can connect: who does may end it at once.
        loop.on_signal(signal.SIGCHLD, self._reap)
        loop.on_signal(signal.SIGTERM, self.drain)
        loop.on_signal(signal.SIGINT, self.drain)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._listener = self._listen()
        self._await_server()

    # Accepting

    def _listen(self) -> socket.socket:
        path = self._options.socket
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        self._bound = os.lstat(path).st_ino
        self._admitted = False
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self.loop.watch(listener.fileno(), READ, self._acceptable)
        return listener

    def _acceptable(self, _mask: int) -> None:
        for _ in range(ACCEPTS):
            try:
                sock = self._listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._make_room()
                return
            if len(self._header_readers) >= HEADER_READERS:
                next(iter(self._header_readers)).drop()
            try:
                reader = HeaderReader(
                    self.loop, sock, self._accept, self._header_done, self._refused
                )
            except OSError:  # the kernel has no room to watch it; the listener must go on
                sock.close()
                return
            self._header_readers[reader] = None

    def _make_room(self) -> None:
        """Free a descriptor: close the oldest connection without a header, or wait for an end."""
        if self._header_readers:
            next(iter(self._header_readers)).drop()
            return
        fd = self._listener.fileno()
        self.loop.unwatch(fd)
        self.loop.call_later(1.0, lambda: self._listen_again(fd))

    def _listen_again(self, fd: int) -> None:
        if self._listener.fileno() == fd:
            self.loop.watch(fd, READ, self._acceptable)

    def _header_done(self, reader: HeaderReader) -> None:
        self._header_readers.pop(reader, None)

    def _refused(self, reason: str, session: str | None) -> None:
        event = {"event": "refused", "reason": reason}
        self.tell(event if session is None else {**event, "session": session})

    def _accept(self, reader: HeaderReader, header: wire.Header, first: bytes) -> None:
        if isinstance(header, wire.Upstream):
            bare = self._prove_upstream(reader.sock, header)
            self.pairing.upstream(header, reader.connection, first, bare=bare)
        elif isinstance(header, wire.Downstream):
            owner = self._owner_of(reader.sock) if header.secret is None else None
            self.pairing.downstream(header, reader.connection, first, owner=owner)
        elif isinstance(header, wire.ControlHeader):
            if self._key is None:
                raise LinkRefused("this relay has no key")
            link = GuestControlLink(self.loop, reader.connection, self, self._key, header.nonce)
            link.received(first)
        elif isinstance(header, wire.Connect):
            if self.tickets.redeem(header.ticket, "connect") is None:
                raise LinkRefused("bad ticket")
            self.loopback.connect(reader.connection, first, header.port)
        else:
            self._attach(reader, header, first)

    def _prove_upstream(self, sock: socket.socket, header: wire.Upstream) -> bool:
        """Authenticate an upstream; return whether it serves a bare client."""
        if header.ticket is not None:
            purpose = self.tickets.redeem(header.ticket, "upstream", "bare")
            if purpose is None:
                raise LinkRefused("bad ticket")
            return purpose == "bare"
        # Bare clients may be admitted: no possible agent may pose as the server to them
        if self._key is not None and not linux.peer_is_outside(sock):
            raise LinkRefused("a ticket is needed")
        return False

    def _owner_of(self, sock: socket.socket) -> str | None:
        """The session whose agent the peer descends from, as far as /proc shows."""
        return self.table.session_of(linux.ancestors(linux.peer_pid(sock)))

    def _attach(self, reader: HeaderReader, header: wire.Attach, first: bytes) -> None:
        if not self.tickets.redeem(header.ticket, "attach"):
            raise LinkRefused("bad ticket")
        process = self.table.get(header.proc)
        if process is None or not process.started:
            raise LinkRefused(wire.UNKNOWN_PROCESS)
        offsets = (header.out_offset, header.err_offset)
        if offsets[0] > process.out.spool.end or offsets[1] > process.err.spool.end:
            raise LinkRefused("offset beyond the end")
        link = AttachLink(reader.connection, process, offsets, self._attach_failed)
        link.received(first)

    def _attach_failed(self, reason: str) -> None:
        self._refused(reason, None)

    def admit(self, uid: int | None) -> None:
        """Let agents of another user connect: the first one's uid becomes owner of the socket.

        Only root can do that, and root keeps access itself. It happens before anything runs as that
        user, so it cannot have put another file in the socket's place.
        """
        if uid is None or self._admitted or uid == os.geteuid():
            return
        self._admitted = True
        self._agents_uid = uid
        try:
            status = os.lstat(self._options.socket)
            # A sandbox may have changed the owner already, and left the guest no right to
            if status.st_ino == self._bound and status.st_uid != uid:
                os.chown(self._options.socket, uid, -1, follow_symlinks=False)
        except OSError as error:
            print(f"oubliette host: socket stays ours: {error.strerror}", file=sys.stderr)

    def listen_again(self) -> int:
        """Make the socket again if it was removed: what cleans folders for temporary files does so.

        Returns:
            Its inode.

        Raises:
            OSError: The folder is gone too.

        """
        try:
            if os.lstat(self._options.socket).st_ino == self._bound:
                return self._bound
        except FileNotFoundError:
            pass
        before = self._listener
        self._listener = self._listen()
        self.loop.unwatch(before.fileno())
        before.close()
        self.admit(self._agents_uid)
        return self._bound

    # The control link

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event to the server, if connected; `hello` repeats what it must not miss."""
        if self._control is not None:
            self._control.event(event)

    def claim(self, link: GuestControlLink, epoch: int) -> None:
        """Make `link` the server's link.

        Raises:
            WireError: A newer server has connected before.

        """
        if epoch < self._epoch:
            raise wire.WireError("stale epoch")
        if epoch > self._epoch:
            self.tickets.clear()
        self._epoch = epoch
        older, self._control = self._control, None
        if older is not None:
            older.evict()
        self._control = link
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()

    def hello(self) -> dict[str, Any]:
        return {
            "event": "hello",
            "versions": [wire.PROTOCOL_MIN, wire.PROTOCOL_MAX],
            "build": BUILD,
            "boot": self.boot,
            "pid": os.getpid(),
            "features": [*FEATURES, "bare"] if self.pairing.accept_bare else FEATURES,
            "procs": [process.record() for process in self.table.all() if process.started],
            "sessions": self.pairing.sessions(),
        }

    def request(self, link: GuestControlLink, request: dict[str, Any]) -> None:
        perform(self, link, request)

    def left(self, link: GuestControlLink) -> None:
        """Start the grace period: the server's link is closed, and may be replaced."""
        if self._control is link:
            self._control = None
            self._await_server()

    def _await_server(self) -> None:
        if self._options.orphan_grace > 0:
            self._orphan_timer = self.loop.call_later(self._options.orphan_grace, self._orphaned)

    def _orphaned(self) -> None:
        timer = self._orphan_timer
        if timer is not None and time.monotonic() - timer.due > LATE:
            self._await_server()  # frozen past the grace: no server got an answer
            return
        print("oubliette host: no server within the grace, leaving", file=sys.stderr)
        self.drain()

    # Shutdown

    def _process_event(self, event: dict[str, Any]) -> None:
        self.tell(event)
        self._leave_if_quiet()

    def _reap(self) -> None:
        self.table.reap()
        self._leave_if_quiet()

    def _leave_if_quiet(self) -> None:
        if self._draining and self.table.is_quiet:
            # The last events are sent in this turn of the loop
            self.loop.call_later(0.0, self._leave)

    def drain(self) -> None:
        """Stop accepting connections, end all processes, then stop."""
        if self._draining:
            return
        self._draining = True
        self.tell({"event": "draining"})  # before the exits that it causes
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        self.table.signal_all(signal.SIGTERM)
        self.loop.call_later(TERM_SECONDS, self._kill)
        self._leave_if_quiet()

    def _kill(self) -> None:
        self.table.signal_all(signal.SIGKILL)
        self.loop.call_later(KILL_SECONDS, self._leave)

    def _leave(self) -> None:
        """Kill escaped processes, send the last events and stop the loop."""
        self.table.signal_all(signal.SIGKILL)
        if self._control is not None:
            self._control.finish()
        self.loop.call_later(0.0, self.loop.stop)

    def close(self) -> None:
        for reader in list(self._header_readers):
            reader.drop()
        self.pairing.close()
        self.loopback.close()
        self.table.close()
        self._listener.close()
        try:
            os.unlink(self._options.socket)
        except OSError:
            pass  # the folder may have been removed with its container


def _say_ready(options: GuestOptions) -> None:
    """Report to the parent process or the engine that the relay listens."""
    if options.ready_fd is not None:
        try:
            os.write(options.ready_fd, b"ready\n")
        except OSError:
            pass  # the server was killed; the next one finds us by our labels
        if options.ready_fd > 2:  # standard streams stay open: the next descriptor would be one
            os.close(options.ready_fd)
    if options.ready:
        try:
            fd = os.open(options.ready, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return  # the reader is gone, or an engine started us without a server
        try:
            os.write(fd, b"ready\n")
        except OSError:
            pass
        os.close(fd)


def main(arguments: list[str], *, relay: bool = False) -> int:
    """Run the guest until it is drained; returns the exit code."""
    from .options import UsageError, read_key, read_options

    linux.new_session_keyring()
    linux.forget_priority()
    linux.leave_abstract_sockets()
    linux.hide_from_tracers()
    # A program that embeds a server may have blocked some, and children inherit that
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        options = read_options(arguments, relay=relay)
        # First of all: nothing may run in this container while the key can still be read
        key = read_key(options)
    except UsageError as error:
        print(f"oubliette host: {error}", file=sys.stderr)
        return 2
    if not options.new_privileges:
        linux.drop_spare_capabilities()
    linux.keep_from_children()
    linux.adopt_orphans()
    raise_file_limit()
    loop = Loop()
    try:
        guest = GuestServer(loop, options, key)
    except OSError as error:
        print(f"oubliette host: {options.socket}: {error.strerror}", file=sys.stderr)
        return 1
    _say_ready(options)
    try:
        loop.run()
    finally:
        guest.close()
        loop.close()
    return 0
