"""A client is not led astray by the proxies and certificates that its environment names."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from oubliette.api.http import HttpConnection
from oubliette.api.tools.errors import BadTool
from oubliette.api.tools.mcp_tools import mcp
from oubliette.errors import ConfigError, OublietteError, Unavailable
from tests.unit.api.http.scripted_server import RESULT, ScriptedServer

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9"  # the port of "discard", where nothing listens
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
ELSEWHERE = "http://example.invalid:8080/mcp"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def error_of(url: str) -> OublietteError:
    async with HttpConnection(url, "oub_key", reconnect_seconds=0) as remote:
        with pytest.raises(OublietteError) as raised:
            await remote.call("project_list", {})
    return raised.value


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HTTP_PROXY", NOBODY), ("all_proxy", "socks5://127.0.0.1:9"), ("http_proxy", "ftp://x")],
)
async def test_no_proxy_stands_before_this_machine(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    async with (
        ScriptedServer() as server,
        HttpConnection(server.url.replace("127.0.0.1", "localhost"), "oub_key") as remote,
    ):
        assert await remote.call("project_get", {"project_id": "p"}) == RESULT


async def test_an_error_by_way_of_a_proxy_names_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    error = await error_of(ELSEWHERE)
    assert isinstance(error, Unavailable)
    assert "connection refused (by way of the proxy in HTTP_PROXY)" in error.message


async def test_a_proxy_that_cannot_be_used_is_named_unless_none_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    refused = await error_of(ELSEWHERE)
    assert isinstance(refused, ConfigError)
    assert refused.message.startswith("ALL_PROXY: its proxy cannot be used: ")
    assert refused.hint is not None
    assert "example.invalid to NO_PROXY" in refused.hint
    with pytest.raises(BadTool, match="ALL_PROXY"):
        async with AsyncExitStack() as stack:
            await mcp(ELSEWHERE).open(stack)
    monkeypatch.setenv("NO_PROXY", "example.invalid")
    assert "PROXY" not in (await error_of(ELSEWHERE)).message


async def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    error = await error_of("https://127.0.0.1:9/mcp")
    assert error.message.startswith("SSL_CERT_FILE")
