"""A session in the whole terminal: its questions are answered there, and it gets messages."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from textual.widgets import Input, RichLog

import oubliette
from oubliette.cli.run.session_app import SessionApp
from tests.system.python_api import opened
from tests.system.site import TURN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot

pytestmark = pytest.mark.anyio


class Person:
    """Who sits at the terminal."""

    def __init__(self, app: SessionApp, pilot: Pilot[None]) -> None:
        self._app = app
        self.press = pilot.press
        self._changed = asyncio.Event()
        self._log = app.query_one(RichLog)
        app.watch(self._log, "virtual_size", self._changed.set)

    @property
    def lines(self) -> list[str]:
        return [line.text.rstrip() for line in self._log.lines]

    async def sees(self, text: str) -> None:
        """Wait until a line begins with a text."""
        async with asyncio.timeout(TURN):
            while not any(line.startswith(text) for line in self.lines):
                self._changed.clear()
                await self._changed.wait()

    async def types(self, text: str) -> None:
        self._app.query_one(Input).value = text
        await self.press("enter")

    @property
    def asked(self) -> str:
        return self._app.query_one(Input).placeholder


@contextlib.asynccontextmanager
async def attached(
    ob: oubliette.Oubliette, session: oubliette.Session, columns: int = 80
) -> AsyncIterator[Person]:
    app = SessionApp(ob, session, -1)
    async with app.run_test(size=(columns, 30)) as pilot:
        yield Person(app, pilot)


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("y", "allow"),
        pytest.param("s", "allow", marks=pytest.mark.whole),
        pytest.param("N", "deny", marks=pytest.mark.whole),
    ],
)
async def test_a_question_is_answered_and_a_message_sent(site, answer, decision):
    async with opened("connected", site) as ob:
        project = await ob.create_project("attach " + answer)
        session = await project.spawn(
            "ask sell the shop\nask sell the shop\nsay Sold", autonomy="ask"
        )
        async with attached(ob, session) as person:
            await person.sees("? The agent asks: sell the shop")
            assert person.asked.startswith("y: allow once")
            await person.types(answer)
            await person.sees(decision)
            if answer != "s":
                await person.types("n")
            await person.sees("done · ")
            await person.types("say and more")
            await person.sees("and more")
            assert person.asked.startswith("Message to the agent")
            await person.press("ctrl+right_square_bracket")
        decided = [each async for each in session.events() if each.type == "permission_settled"]
        assert [each.decision for each in decided] == [decision, "deny"][
            : 1 if answer == "s" else 2
        ]


@pytest.mark.whole
async def test_ctrl_c_twice_interrupts_the_turn(site):
    async with opened("connected", site) as ob:
        project = await ob.create_project("attach and interrupt")
        session = await project.spawn("say I begin\nsleep 600")
        async with attached(ob, session, columns=100) as person:
            await person.sees("I begin")
            await person.press("ctrl+c")
            await person.sees("Ctrl-C within 2 s interrupts the turn")
            await person.press("ctrl+c")
            await person.sees("interrupted · ")


@pytest.mark.whole
async def test_a_message_that_is_refused_is_an_error_in_the_transcript(site):
    async with opened("connected", site) as ob:
        project = await ob.create_project("attach to another's")
        session = await project.spawn("say [bold]mine[/bold]")
        async with opened("connected", site) as other:
            seen = await other.session(session.id)
            async with attached(other, seen, columns=160) as person:
                await person.sees("[bold]mine[/bold]")
                await person.types("say yours")
                await person.sees("error: ")
                await session.send("say still")
                await person.sees("still")


@pytest.mark.whole
async def test_a_session_that_has_failed_goes_on_with_a_message(site):
    async with opened("connected", site) as ob:
        project = await ob.create_project("attach and resume")
        session = await project.spawn("crash 3")
        async with attached(ob, session) as person:
            await person.sees("The session is failed")
            await person.types("say again")
            await person.sees("again")
            await session.end()
            await person.sees("The session is completed")
            await person.types("say no more")
            await person.sees("error: ")
