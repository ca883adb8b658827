"""Agents of the demo: prompt, program and model of each.

Real agents get the scripted model unless one is configured. Its language is close to that of the
scripted agent, so the same lines produce the same story with all of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.config.loader import find_home, flat, load
from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

FINAL: Final = "Done: the refund is approved."
CHILDREN: Final = 2
START_SECONDS: Final = 180.0  # two real programs that start at once on a busy machine

_STORY: Final = """\
say I ask the program that sent me for an order.
call {ours}shop_find_order {{"order": "A-17"}}
say Two helpers look at the halves of it at the same time.
call {ours}session_map {{"messages": ["sleep 0.5\\nsay the invoice is right", \
"sleep 0.5\\nsay the parcel left on Monday"]}}
say Now Oubliette's own tools: my key may read, and nothing else.
call {ours}oubliette_project_list {{}}
call {ours}oubliette_project_create {{"name": "not-for-me"}}
say I need a yes from the program that sent me.
call {ours}shop_approve {{"order": "A-17", "refund": 12.5}}
say Done: the refund is approved.
"""
_FOR_MODELS: Final = """\
The lines below are a script; go through it line by line, and do nothing else. `say TEXT`: write
TEXT. `call TOOL JSON`: call that tool with exactly these arguments, even where you expect to be
refused; a refusal is part of the script.

"""


class DemoAgent(msgspec.Struct, frozen=True):
    """One agent, ready for the demo."""

    name: str
    prompt: str
    environment: dict[str, str]
    """Configuration of the demo's server."""
    note: str = ""
    """Notes to print about it."""
    free: bool = False
    """Whether a real model answers, whose text may differ from the script."""


class _Kind(msgspec.Struct, frozen=True):
    section: str
    ours: str
    """Prefix of our MCP server's tools in the model's view."""


_KINDS: Final = {
    "opencode": _Kind("opencode", "oubliette_"),
    "opencode-acp": _Kind("opencode", "oubliette_"),
    "droid": _Kind("droid", "oubliette___"),
}
NAMES: Final = ("auto", "scripted", *_KINDS)


@contextlib.asynccontextmanager
async def ready(name: str, *, contained: bool) -> AsyncGenerator[DemoAgent]:
    """Yield the agent, with its scripted model while the block runs.

    Args:
        name: one of `NAMES`; `auto` is the scripted agent.
        contained: it runs in an engine's container, which has a loopback of its own.

    Raises:
        ConfigError: the agent is unknown, its program is missing, or its section of the usual
            configuration is invalid; with the remedy.
    """
    kind = _KINDS.get(name)
    if name not in NAMES:
        raise ConfigError(f"the demo has no agent {name!r}", hint=f"one of {', '.join(NAMES)}")
    if kind is None:
        yield DemoAgent("scripted", _STORY.format(ours=""), {})
        return
    settings = await _configured(name, kind.section)
    settings["agents.start_timeout_seconds"] = START_SECONDS
    prompt = _STORY.format(ours=kind.ours)
    if contained:
        settings["containers.memory_mb"] = 4096  # a real agent takes half a gigabyte
    if settings.get(f"{kind.section}.model"):
        model = settings[f"{kind.section}.model"]
        note = f"{name} uses the model {model} of your configuration"
        yield DemoAgent(name, _FOR_MODELS + prompt, _environment(settings), note, free=True)
        return
    from oubliette.testing.model_server import ModelServer

    async with ModelServer() as model:
        base = model.root if settings.get("droid.provider") == "anthropic" else model.url
        settings |= {f"{kind.section}.model": "scripted", f"{kind.section}.base_url": base}
        note = f"no model is configured for {name}: a scripted one answers at {model.url}"
        if contained:
            settings["containers.network"] = "host"
            note += "; the container shares the machine's network to reach it"
        yield DemoAgent(name, prompt, _environment(settings), note)


async def _configured(name: str, section: str) -> dict[str, Any]:
    """Return the agent's section of the usual configuration; checks that its program is there."""
    from oubliette.runtime.agents.registry import installed

    loaded = load(find_home())
    missing = (await installed(loaded.config)).missing.get(name)
    if missing is not None:
        raise ConfigError(f"{name} cannot be used here: {missing.reason}", hint=missing.remedy)
    return {
        key: value
        for key, value in flat(loaded.config).items()
        if key.startswith(f"{section}.") and loaded.sources.get(key, "default") != "default"
    }


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    def text(value: object) -> str:
        listed = isinstance(value, list | tuple | dict)
        return msgspec.json.encode(value).decode() if listed else str(value)

    return {
        "OUBLIETTE_" + key.replace(".", "__").upper(): text(value)
        for key, value in settings.items()
    }
