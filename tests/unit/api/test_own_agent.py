"""What `@oubliette.agent` makes of a function, and what it refuses."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from oubliette.api.agent_files import BadAgent
from oubliette.api.own_agent import AgentFunction, agent


@agent
async def echo(turn):
    """Says it again."""
    yield turn


@agent(name="with-a-name", files=["x"])
async def other(turn):
    return turn


async def Shouting(turn):
    return turn


async def two(turn, more):
    return turn, more


async def none():
    return ""


async def defaults(turn, tone="plain", *rest, **more):
    return turn, tone, rest, more


def plain(turn):
    return turn


def generator(turn):
    yield turn


class Holder:
    async def method(self, turn):
        return turn

    @staticmethod
    async def inner(turn):
        return turn


def test_a_function_is_an_agent_with_its_name():
    assert isinstance(echo, AgentFunction)
    assert (echo.name, echo.files, echo.__doc__) == ("echo", (), "Says it again.")
    assert (other.name, other.files) == ("with-a-name", ("x",))
    assert repr(other) == "<agent with-a-name>"


async def collected(answer):
    return [piece async for piece in answer]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_test_calls_the_function_itself(anyio_backend):
    assert await collected(echo("hello")) == ["hello"]
    assert await other("hello") == "hello"


def test_further_parameters_have_defaults():
    assert agent(defaults).name == "defaults"
    assert agent(name="inner")(Holder.inner).name == "inner"


@pytest.mark.parametrize(
    ("function", "why", "remedy"),
    [
        (lambda turn: turn, "it is a lambda", "async def NAME"),
        (plain, "plain .*: it is not async", "asyncio.to_thread"),
        (generator, "it is not async", "asyncio.to_thread"),
        (two, "two .*: it takes one argument, the turn", r"async def NAME\(turn\)"),
        (none, "it takes one argument", "turn"),
        (Holder.method, "it takes one argument", "turn"),
        (Shouting, "agent 'Shouting': it is no name", "name="),
        ("echo", "'echo' is no function", "decorate"),
        (functools.partial(two, more=1), "is no function", "decorate"),
        (Holder, "is no function", "decorate"),
    ],
)
def test_what_cannot_be_an_agent_is_refused_with_the_remedy(function, why, remedy):
    with pytest.raises(BadAgent, match=why) as refused:
        agent(function)
    assert refused.match(remedy)


def test_a_function_inside_a_function_is_refused_where_it_is_written():
    async def inner(turn):
        return turn

    with pytest.raises(BadAgent, match=r"inner .*test_own_agent.py:\d+\): it is defined inside"):
        agent(inner)


def test_packages_are_those_of_the_image_or_of_the_program():
    assert (echo.packages, agent(packages="program")(defaults).packages) == ("image", "program")
    with pytest.raises(BadAgent, match=r"agent defaults: packages is 'mine'.*image or program"):
        agent(packages="mine")(defaults)


def test_a_decorator_imports_nothing_of_the_server():
    heavy = "('pykka', 'mcp', 'starlette', 'sqlite3', 'zipfile', 'oubliette.runtime')"
    code = (
        "import sys; from oubliette.api.own_agent import agent\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
