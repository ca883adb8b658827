"""Pairing against a model: after any history, exactly the right two links are tied together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.incontainer import wire
from tests import selection
from tests.unit.incontainer.hostclient import Control, HostProcess, Link


@dataclass
class Session:
    """What the protocol says that the host knows of one session."""

    secret: str | None = None  # None: not announced
    up: Link | None = None
    down: Link | None = None
    early: list[Link] = field(default_factory=list)  # upstreams that came before the announcement

    @property
    def is_paired(self) -> bool:
        return self.secret is not None and self.up is not None and self.down is not None

    @property
    def links(self) -> int:
        return (self.up is not None) + (self.down is not None) + len(self.early)


class World:
    """The host, and the model beside it."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.sessions = {name: Session() for name in "ab"}
        self.dead: list[Link] = []  # what the host must have closed

    def drop(self, session: Session, *sides: str) -> None:
        for side in sides:
            link = getattr(session, side)
            if link is not None:
                self.dead.append(link)
                setattr(session, side, None)

    def expect(self, name: str, secret: str) -> None:
        session = self.sessions[name]
        self.control.expect(name, secret)
        if session.secret is None:
            if session.early:
                session.up = session.early.pop(0)
        elif session.secret != secret:
            self.drop(session, "down", *(["up"] if session.is_paired else []))
        session.secret = secret

    def unexpect(self, name: str, _secret: str) -> None:
        session = self.sessions[name]
        assert self.control.ask("unexpect", session=name)["known"] == (session.secret is not None)
        self.drop(session, "up", "down")
        session.secret = None

    def upstream(self, name: str, _secret: str) -> None:
        session = self.sessions[name]
        link = self.control.upstream(name)
        self.control.settle()
        if session.secret is None:
            session.early.append(link)
            return
        self.drop(session, "up", *(["down"] if session.is_paired else []))
        session.up = link

    def downstream(self, name: str, secret: str) -> None:
        session = self.sessions[name]
        link = Link(self.control.path)
        link.send(wire.Downstream("p", name, secret).line())
        self.control.settle()
        if session.secret != secret:
            assert wire.parse_error(link.rest()) == "unknown session or wrong secret"
        elif session.down is not None:
            assert wire.parse_error(link.rest()) == "already connected"
        else:
            session.down = link
            return
        link.close()

    def leave(self, name: str, which: str) -> None:
        session = self.sessions[name]
        side, other = ("up", "down") if which == "1" else ("down", "up")
        link = getattr(session, side)
        if link is not None:
            paired = session.is_paired
            link.close()
            setattr(session, side, None)
            if paired:
                self.drop(session, other)

    def check(self) -> None:
        links = self.control.settle()["links"]
        assert links == sum(session.links for session in self.sessions.values())
        for link in self.dead:
            assert link.rest() == b""
            link.close()
        self.dead.clear()
        for name, session in self.sessions.items():
            if session.is_paired:
                assert session.up is not None
                assert session.down is not None
                session.down.send(name.encode() + b">")
                assert session.up.exactly(2) == name.encode() + b">"
                session.up.send(b"<" + name.encode())
                assert session.down.exactly(2) == b"<" + name.encode()
            for link in (session.up, session.down, *session.early):
                assert link is None or link.is_silent()

    def end(self) -> None:
        for name, session in self.sessions.items():
            self.unexpect(name, "")
            for link in session.early:
                link.close()
            session.early.clear()
        self.check()


@pytest.fixture(scope="module")
def shared() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["expect", "expect", "upstream", "upstream", "downstream", "downstream", "downstream"]
            + ["leave", "leave", "unexpect"]
        ),
        st.sampled_from("aab"),
        st.sampled_from("112"),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=selection.examples(60))
def test_after_any_history_the_right_links_are_paired_and_no_other_is_held(
    shared: HostProcess, plan: list[tuple[str, str, str]]
) -> None:
    world = World(shared.control())
    for verb, name, secret in plan:
        getattr(world, verb)(name, secret)
        world.check()
    world.end()
    world.control.close()
