"""Checks of the sandbox, and of a relay in a temporary container."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette import ids
from oubliette.cli.doctor.checks import Check, bad, failed, ok
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.runtime.containers.process.sandbox_probe import Probe

ROUND_TRIP_SECONDS: Final = 30.0
_WORD: Final = b"oubliette\n"


def sandbox(config: Config, home: Path | None = None) -> tuple[list[Check], bool]:
    """Check sockets, bubblewrap and Python; return also whether to try a container."""
    from oubliette.runtime.containers import host_paths
    from oubliette.runtime.containers.process import unsandboxed
    from oubliette.runtime.containers.process.sandbox_probe import (
        probe_best_effort,
        probe_bubblewrap,
    )

    stranger = unsandboxed.stranger(config.process.sandbox)
    try:
        base = host_paths.runtime_base(config.containers.runtime_dir, stranger=stranger)
    except OublietteError as error:
        return [failed("runtime folder", error)], False
    checks = [ok("runtime folder", f"{base} ({_longest(base)} of 103 bytes)")]
    if config.process.sandbox == "best-effort":
        checks.append(
            bad(
                "bubblewrap",
                'not used: process.sandbox = "best-effort", agents are not isolated',
                'install bubblewrap and set process.sandbox = "bubblewrap"',
                "warn",
            )
        )
        found = probe_best_effort(stranger, base=base, home=home)
    else:
        found = probe_bubblewrap(base)
        if found.ok:
            network = "" if found.network_none else "; network none does not work here"
            filtered = "" if found.filtered else "; system calls are not filtered here"
            checks.append(ok("bubblewrap", f"{found.version}{network}{filtered}"))
            checks.append(_network(config.process.network, found))
        else:
            checks.append(bad("bubblewrap", found.reason or "does not work", found.remedy))
            return checks, False
    if not found.ok:
        checks.append(bad("python inside", found.reason or "none", found.remedy))
        return checks, False
    checks.append(ok("python inside", found.python or "python3"))
    return checks, True


def _network(asked: str, found: Probe) -> Check:
    """Return what agents in a sandbox reach of this machine, and why."""
    from oubliette.incontainer.io import linux
    from oubliette.runtime.containers.process import own_network, start

    try:
        network, why = start.resolved(asked, found)
    except OublietteError as error:
        return failed("network", error)
    if network == "none":
        return ok("network", "none: agents reach nothing, no model on this machine either")
    if network == "own":
        return ok(
            "network",
            "own, by pasta: of this machine's loopback interface agents reach the ports that their"
            " settings name",
        )
    scoped = linux.landlock_version() >= linux.SCOPES
    sockets = "" if scoped else " and abstract Unix sockets (Linux 6.12 closes these)"
    reach = f"host: agents reach what listens on this machine's loopback interface{sockets}"
    if why is None:
        return ok("network", f'{reach}; process.network = "auto" or "none" closes it')
    return bad("network", f"{reach}; {why}", own_network.REMEDY, "warn")


def not_asked_for(check: Check) -> Check:
    """The finding about the sandbox as it applies if containers are an engine's."""
    if check.name == "runtime folder" or check.status == "ok":
        return check
    return ok(check.name, f"not used: {check.detail}; to use it: {check.remedy}")


def _longest(base: Path) -> int:
    return len(os.fsencode(base / "01234567" / "relay.sock"))


def relay(config: Config, zipapp: Path) -> Check:
    """Send a message through the relay of a temporary container."""
    try:
        return asyncio.run(_bounded(config, zipapp))
    except TimeoutError:
        return bad("relay", f"no round trip within {ROUND_TRIP_SECONDS:g} s", "see the lines above")
    except OublietteError as error:
        return failed("relay", error)


async def _bounded(config: Config, zipapp: Path) -> Check:
    async with asyncio.timeout(ROUND_TRIP_SECONDS):
        return await _round_trip(config, zipapp)


async def _round_trip(config: Config, zipapp: Path) -> Check:
    from oubliette.runtime.containers import (
        LABEL_CONTAINER,
        LABEL_INSTANCE,
        ContainerSpec,
        Mount,
        ProcessRuntime,
    )
    from oubliette.runtime.containers.host_paths import (
        new_runtime_dir,
        runtime_base,
        temporary_folder,
    )
    from oubliette.runtime.containers.process.unsandboxed import stranger
    from oubliette.runtime.guest import ControlLink

    who = stranger(config.process.sandbox)
    base = runtime_base(config.containers.runtime_dir, stranger=who)
    runtime = ProcessRuntime(base, zipapp, sandbox=config.process.sandbox)
    best_effort = config.process.sandbox == "best-effort"
    name = ids.new_id(ids.CONTAINER)
    began = asyncio.get_running_loop().time()
    try:
        with tempfile.TemporaryDirectory(
            prefix="oubliette-doctor-", dir=temporary_folder(who)
        ) as workspace:
            spec = ContainerSpec(
                id=name,
                labels={LABEL_INSTANCE: ids.new_id(ids.INSTANCE), LABEL_CONTAINER: name},
                runtime_dir=new_runtime_dir(base),
                mounts=(Mount(Path(workspace), "/workspace"),),
                network="host" if best_effort else config.process.network,
                orphan_grace=60.0,
            )
            try:
                await runtime.create(spec)
                key = secrets.token_bytes(32)
                info = await runtime.start(name, key=key)
                dial = runtime.dial(info)
                async with await ControlLink.connect(dial, key, epoch=1) as link:
                    await _word_through(link, dial)
            finally:
                await runtime.remove(name)
    finally:
        await runtime.aclose()
    seconds = asyncio.get_running_loop().time() - began
    through = f"round trip through a temporary container in {seconds:.2f} s"
    if info.warnings and not best_effort:
        return bad(
            "relay",
            f"{through}; {info.warnings[0]}",
            'mend it, or set process.network = "host"',
            "warn",
        )
    return ok("relay", through)


async def _word_through(link: ControlLink, dial: Dial) -> None:
    from oubliette.errors import ProtocolViolation
    from oubliette.incontainer import wire
    from oubliette.runtime.guest.dial import close, open_link

    session, project = ids.new_id(ids.SESSION), ids.new_id(ids.PROJECT)
    secret = secrets.token_urlsafe(32)
    await link.expect(session, project, secret=secret, depth=0)
    near, near_writer = await link.upstream(session, project, 0)
    header = wire.Downstream(project, session, secret).line()
    far, far_writer = await open_link(dial, header, wire.MAX_SESSION_LINE)
    try:
        near_writer.write(_WORD)
        heard = await far.readline()
        far_writer.write(heard)
        if await near.readline() != _WORD:
            raise ProtocolViolation("the relay gave back something else than what it was given")
    finally:
        await close(near_writer)
        await close(far_writer)


if TYPE_CHECKING:
    from oubliette.runtime.containers.base import Dial
    from oubliette.runtime.guest import ControlLink
