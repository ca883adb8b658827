"""Checks of agents, their models, and their secrets.

A check of a secret reports its source and whether it exists, never its value.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Final

from oubliette.cli.doctor.checks import Check, bad, failed
from oubliette.errors import ConfigError
from oubliette.runtime.agents.environment import resolve
from oubliette.runtime.agents.program import out_of_reach
from oubliette.runtime.agents.registry import survey, without_default
from oubliette.runtime.containers import registry
from oubliette.runtime.containers.process import unsandboxed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oubliette.config.schema import Config

VERSION_SECONDS: Final = 20.0
_SECTIONS: Final = {
    "opencode": "opencode",
    "opencode-acp": "opencode",
    "droid": "droid",
    "acp": "acp",
}
_KINDS: Final = ("env:", "file:", "credential:")


def agents(config: Config, *, versions: bool) -> list[Check]:
    """Return one finding for each agent; a failure only for the default one of sessions.

    Args:
        config: the server's configuration.
        versions: start each program to ask for its version.
    """
    return asyncio.run(_agents(config, versions=versions))


async def _agents(config: Config, *, versions: bool) -> list[Check]:
    try:
        found = await survey(config)
    except ConfigError as error:
        return [failed("agents", error, "oubliette config schema lists the valid keys")]
    checks: list[Check] = []
    wrong = without_default(config, found)
    if wrong is not None:
        checks.append(failed("agents", wrong))
    elif not set(found.agents) - {"scripted"}:
        checks.append(
            bad(
                "agents",
                "none is installed but `scripted`, which is for tests",
                getattr(found.missing.get("opencode"), "remedy", None) or "install one",
                "warn",
            )
        )
    default = config.agents.default
    if default == "auto":
        default = next(iter(found.agents), None)
    places = {name: _places(runtime) for name, runtime in found.agents.items()}
    programs = sorted({path for several in places.values() for path in several})
    said: dict[Path, str | None] = {}
    if versions:
        asked = await asyncio.gather(*(asyncio.to_thread(_version, path) for path in programs))
        said = dict(zip(programs, asked, strict=True))
    for name in found.agents:
        version = next((said[path] for path in places[name] if said.get(path)), None)
        checks.append(_usable(config, name, places[name], version, default=name == default))
    for name, status in found.missing.items():
        facts = {"name": name, "usable": False, "reason": status.reason, "remedy": status.remedy}
        detail = f"not used: {status.reason}; to use it: {status.remedy}"
        checks.append(
            Check(name=f"agent {name}", status="ok", detail=detail, facts={"agent": facts})
        )
    return checks


def _places(runtime: Any) -> tuple[Path, ...]:
    """The programs of this machine that are mounted for it."""
    return tuple(each.source for each in runtime.mounts if each.source.is_file())


def _usable(
    config: Config, name: str, places: tuple[Path, ...], version: str | None, *, default: bool
) -> Check:
    section = f"acp_agents.{name}" if name in config.acp_agents else _SECTIONS.get(name, "")
    part = config.acp_agents.get(name) or getattr(config, section, None)
    model, base_url = getattr(part, "model", None), getattr(part, "base_url", None)
    secrets = [_secret(config, *each) for each in _references(section, part)]
    where = str(places[0]) if places else "built in" if name == "scripted" else "in the image"
    words = [where if version is None else f"{where}, version {version}"]
    if default:
        words.append("the default of sessions")
    if part is not None and hasattr(part, "model"):
        at = f" at {base_url}" if base_url else ""
        without = "its own model" if hasattr(part, "mode") else "no model is set: sessions name one"
        words.append(f"model {model}{at}" if model else without)
    words += [f"{each['key']} ({each['reference']}) is there" for each in secrets if each["there"]]
    facts: dict[str, Any] = {
        "name": name,
        "usable": True,
        "default": default,
        "path": str(places[0]) if places else None,
        "version": version,
        "model": model,
        "base_url": base_url,
        "secrets": secrets,
    }
    missing = [each for each in secrets if not each["there"]]
    words += [f"{each['key']}: {each['reason']}" for each in missing]
    remedies: list[str] = []
    if missing:
        remedies.append(f"give the server {', '.join(each['reference'] for each in missing)}")
    if closed := _closed(config, places):
        facts["usable"] = False
        words.append(closed)
        remedies.append("install it where every user may go, or install bubblewrap")
    return Check(
        name=f"agent {name}",
        status="ok" if not remedies else "fail" if default else "warn",
        detail="; ".join(words),
        remedy="; ".join(remedies) or None,
        facts={"agent": facts},
    )


def _closed(config: Config, places: tuple[Path, ...]) -> str | None:
    """The folder that keeps an agent from its program if nothing is mounted."""
    wanted = registry.lookup(config.containers.runtime)
    if config.containers.runtime != registry.AUTO and (wanted is None or not wanted.uses_sandbox):
        return None
    uid = unsandboxed.stranger(config.process.sandbox)
    found = (out_of_reach(place, uid) for place in places if uid is not None)
    why = next((each for each in found if each is not None), None)
    return None if why is None else f"without a sandbox agents run as user {uid}, who {why}"


def _references(section: str, part: Any) -> Iterator[tuple[str, str]]:
    """Iterate over (key, reference) of the secrets in a section."""
    if getattr(part, "api_key", None) is not None:
        yield f"{section}.api_key", part.api_key
    for entry in getattr(part, "env", ()):
        name, _, value = entry.partition("=")
        if value.startswith(_KINDS):
            yield f"{section}.env: {name}", value


def _secret(config: Config, key: str, reference: str) -> dict[str, Any]:
    """Return the source of a secret, and whether it exists."""
    try:
        kind, _, name = reference.partition(":")
        if kind == "credential":
            if name not in config.credentials:
                raise ConfigError(f"there is no [credentials.{name}]")  # noqa: TRY301
            resolve(config.credentials[name].value)
        else:
            resolve(reference)
    except ConfigError as error:
        return {"key": key, "reference": reference, "there": False, "reason": error.message}
    return {"key": key, "reference": reference, "there": True, "reason": None}


def credentials(config: Config) -> Iterator[Check]:
    """Return one finding for each of `[credentials]`: whether it exists, and its grants."""
    for name, each in sorted(config.credentials.items()):
        secret = _secret(config, f"credentials.{name}", each.value)
        given = ", ".join(each.projects) or "no project"
        facts = {
            "credential": {
                "name": name,
                "reference": each.value,
                "there": secret["there"],
                "reason": secret["reason"],
                "projects": list(each.projects),
                "users": list(each.users),
                "agents": list(each.agents),
            }
        }
        there = "is there" if secret["there"] else f"is not there: {secret['reason']}"
        yield Check(
            name=f"credential {name}",
            status="ok" if secret["there"] else "warn",
            detail=f"{each.value} {there}; given to {given}",
            remedy=None if secret["there"] else f"give the server {each.value}",
            facts=facts,
        )


def _version(program: Path) -> str | None:
    """Return a program's answer to `--version`; None if it is unusable."""
    with tempfile.TemporaryDirectory(prefix="oubliette-doctor-") as home:
        try:
            done = subprocess.run(
                [str(program), "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=VERSION_SECONDS,
                check=False,
                cwd=home,
                env={"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return lines[0][:60] if done.returncode == 0 and lines else None
