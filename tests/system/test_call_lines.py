"""docs/journeys.md shows the lines of one call of a caller's tool; a run has the same ones.

The server runs in this process, so that its connections and those of the caller can be recorded.
The scripted agent starts `oubliette-client` through `line_tap.py`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.config.schema import Config
from oubliette.incontainer import wire
from oubliette.runtime.zipapp import zipapp_path
from oubliette.server import running, startup
from tests.callers import HttpCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.whole]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "journeys.md"
TITLE = "### The lines of one such call"
AGENT = "incontainer/scripted_agent/main.py"
CLIENT = b'[sys.executable, "-I", "-S", home, "client"]'
EVENTS = ("listening", "caller_tool_request", "caller_tool_settled")
REPORTS = ("tool_call", "tool_result")
MASKS = (
    (r"\boub_\S+", "<key>"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\b(gogol|proj|proc)_[0-9a-z]{26}\b", r"<\1>"),
    (r"\b[0-9a-f]{32}\b", "<ticket>"),
    (r"\b\d{10}\.\d+\b", "<time>"),
    (r"(?m)^date: .*$", "date: <time>"),
    (r"(?m)^host: .*$", "host: <host>"),
    (r"(?m)^content-length: \d+$", "content-length: <length>"),
    (r'"(index|seq)":\d+', r'"\1":<number>'),
    (r'"version":( ?)"[^"]+"', r'"version":\1"<version>"'),
)

Link = list[tuple[str, bytes]]
"""Pieces of one connection in their order, each with its direction, from who opened it: > or <."""


class Taps:
    """What passes on all connections that this process opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links: list[Link] = []
        for name in ("open_connection", "open_unix_connection"):
            monkeypatch.setattr(asyncio, name, self._tapped(getattr(asyncio, name)))

    def _tapped(self, opens: Callable[..., Any]) -> Callable[..., Any]:
        async def opened(*args: Any, **options: Any) -> Any:
            reader, writer = await opens(*args, **options)
            link: Link = []
            self.links.append(link)
            feed, write = reader.feed_data, writer.write

            def fed(data: bytes) -> None:
                link.append(("<", bytes(data)))
                feed(data)

            def wrote(data: bytes) -> None:
                link.append((">", bytes(data)))
                write(data)

            reader.feed_data, writer.write = fed, wrote
            return reader, writer

        return opened

    def one(self, header: str) -> Link:
        """The connection that begins with this header of the relay's protocol."""
        (found,) = [each for each in self.links if each[0][1].startswith(header.encode())]
        return found

    def exchange(self, tool: str) -> tuple[list[str], list[str]]:
        """The lines of the request that calls a tool over HTTP, and those of its response."""
        for link in self.links:
            asked = False
            request = response = b""
            for way, data in link:
                if way == ">":
                    if asked:
                        break
                    asked = f"\r\nmcp-name: {tool}\r\n".encode() in data
                    request = data
                elif asked:
                    response += data
            if asked:
                return request.decode().split("\r\n"), response.decode().split("\r\n")
        raise AssertionError(f"{tool} was not called")


def tapped_zipapp(folder: Path) -> Path:
    """The zipapp, whose scripted agent starts its client through the tap."""
    tap = shutil.copy(Path(__file__).with_name("line_tap.py"), folder)
    through = f"[sys.executable, {str(tap)!r}, {str(folder / 'pipe')!r}, *{CLIENT.decode()}]"
    target = folder / "tapped.pyz"
    with zipfile.ZipFile(zipapp_path()) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == AGENT:
                assert data.count(CLIENT) == 1
                data = data.replace(CLIENT, through.encode())
            if name != AGENT + "c":  # the bytecode of what it was
                new.writestr(name, data)
    return target


def sent(link: Link, way: str) -> bytes:
    return b"".join(data for each, data in link if each == way)


def text_of(data: bytes, kind: int) -> list[str]:
    """The lines in the frames of one kind."""
    frames = wire.FrameDecoder().feed(data)
    return b"".join(each.payload for each in frames if each.kind == kind).decode().splitlines()


def lines_of(taps: Taps, pipe: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines of each wire and direction."""
    yield "agent to client, pipe", [line[2:] for line in pipe if line[0] == ">"]
    yield "client to agent, pipe", [line[2:] for line in pipe if line[0] == "<"]
    session = taps.one("OUBLIETTE-UPSTREAM")
    yield "server to client, session link", sent(session, ">").decode().splitlines()
    yield "client to server, session link", sent(session, "<").decode().splitlines()
    attached = taps.one("OUBLIETTE-ATTACH")
    (_, header), *rest = attached
    prompt = text_of(sent(rest, ">"), wire.STDIN)
    yield "server to agent, attached link", [*header.decode().splitlines(), *prompt]
    reports = text_of(sent(rest, "<"), wire.STDOUT)
    marks = [f'{{"type": "{kind}"' for kind in REPORTS]
    yield "agent to server, attached link", [x for x in reports if x.startswith(tuple(marks))]
    request, response = taps.exchange("caller_listen")
    yield "caller to server, HTTP stream", request
    place = response.index("") + 1
    events = [line for piece in response[place:] for line in piece.split("\n")]
    shown = [line for line in events if any(f'"type":"{kind}"' in line for kind in EVENTS)]
    yield "server to caller, HTTP stream", response[:place] + shown
    request, response = taps.exchange("caller_tool_response")
    yield "caller to server, HTTP", request
    yield "server to caller, HTTP", response


def page_lines() -> dict[str, list[str]]:
    """The lines of the page, by the first line of their block, which names wire and direction."""
    section = PAGE.read_text(encoding="utf-8").partition(f"{TITLE}\n")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = defaultdict(list)
    for block in re.findall(r"(?ms)^```text\n(.*?)\n```$", section):
        where, *lines = block.split("\n")
        found[where] += lines
    return found


def masked(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text.split("\n")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One in which the agent's user may write, and with a short path, as sockets lie below it."""
    found = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    found.chmod(0o777)
    yield found
    shutil.rmtree(found)


async def called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The lines of a run in which an agent calls a tool of its caller."""
    zipapp = tapped_zipapp(folder)
    monkeypatch.setattr(startup, "zipapp_path", lambda: zipapp)
    settings = {
        "server": {"port": 0, "on_stop": "end"},
        "containers": {"runtime": "process", "runtime_dir": str(folder / "r")},
        "process": {"sandbox": "best-effort"},
    }
    async with running(folder / "home", msgspec.convert(settings, Config)) as server:
        key = (await server.keys.create(name="shop", scope="write")).key
        taps = Taps(monkeypatch)
        tools = {"add": lambda a, b: a + b}
        async with HttpCaller(
            server.url, key, caller_id="shop", tools=tools, answers=False
        ) as caller:
            project = await caller.call("project_create", name="demo", init_git=False)
            await caller.listen()
            spawned = await caller.call(
                "session_spawn",
                prompt='call shop_add {"a": 1, "b": 2}',
                project_id=project["id"],
                context=caller.context,
                new_session=True,
            )
            asked = await caller.event("caller_tool_request", timeout=60)
            await caller.call(
                "caller_tool_response",
                session_id=spawned["session_id"],
                request_id=asked["request_id"],
                result={"sum": 3},
            )
            await caller.event("completion", timeout=60)
            pipe = (folder / "pipe").read_text(encoding="utf-8").splitlines()
            return dict(lines_of(taps, pipe))


async def test_a_run_has_the_lines_of_the_page(folder, monkeypatch):
    lines = await called(folder, monkeypatch)
    page = page_lines()
    assert page.keys() == lines.keys()
    for where, found in lines.items():
        assert masked(page[where]) == masked(found), f"{where}:\n" + "\n".join(found)
