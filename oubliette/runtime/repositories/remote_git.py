"""RemoteGit, git that fetches from another repository: over the network, or from a folder here.

It reads no configuration but its own and, where the server's owner allows it, that of the server's
user, for his credentials. It never asks anybody anything, runs no hook, and has a deadline. A
secret is in its environment for as long as it runs: not in its arguments, not in any file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import DeadlineExceeded
from oubliette.runtime.repositories.addresses import host_and_path, without_password
from oubliette.runtime.repositories.git_errors import repository_error
from oubliette.runtime.snapshots.git_program import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oubliette.runtime.repositories.credentials import HostCredential
    from oubliette.runtime.repositories.git_errors import RepositoryError
    from oubliette.runtime.snapshots.git_program import GitProgram

HIDDEN: Final = "(hidden)"
_SETTINGS: Final = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # all that comes is one file, which has the size limit
    "submodule.recurse": "false",
    "protocol.version": "2",
    "init.defaultBranch": "main",
}
_PASSED_ON: Final = (
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "CURL_CA_BUNDLE"),
)
"""Variables of the server that determine proxies and trusted certificates."""
_OF_USER: Final = ("HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "USER", "LOGNAME")
_ANSWER: Final = (
    '!f() { test "$1" = get || exit 0;'
    ' printf "username=%s\\npassword=%s\\n" "$OUBLIETTE_GIT_USER" "$OUBLIETTE_GIT_PASSWORD"; }; f'
)
"""Helper that answers git's question; git asks it for one host only."""
_STALLED_SECONDS: Final = 60
"""Time without progress after which a transfer over HTTP is given up."""
_OF_SUBMODULE: Final = re.compile(r"clone of '(?P<url>[^']+)' into submodule path")
_BLOCK: Final = 512
"""Bytes in the unit of `ulimit -f`."""
_LIMITED: Final = 'trap "" XFSZ && ulimit -f "$0" && exec "$@"'
"""The signal would end git without a message; without it git has the error of a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAccess:
    """Another repository: its address, and the ways in which git may reach it."""

    address: str
    """URL or path, as git gets it."""
    protocols: frozenset[str]
    """Protocols that git may use, also for what the address leads to."""
    credential: HostCredential | None = None
    key_file: str | None = None
    """Key for ssh."""
    as_user: bool = False
    """Whether git uses the credentials of the server's user."""
    gitconfig: Path = field(default=Path("/dev/null"))
    """File that takes the place of the user's configuration."""
    max_bytes: int = 0
    """Size limit of each file that git writes; 0: none."""

    @property
    def local(self) -> bool:
        return self.address.startswith("/")

    @property
    def shown(self) -> str:
        return without_password(self.address)

    @property
    def host(self) -> str:
        """Host of the address; of a folder, the folder."""
        return self.address if self.local else host_and_path(self.address)[1]


class RemoteGit:
    """git for one other repository."""

    def __init__(self, git: GitProgram, access: RemoteAccess) -> None:
        self._git = git
        self.access = access

    def environment(
        self, environ: Mapping[str, str] = os.environ, more: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return git's environment, with the secret in it if there is one, and more settings."""
        access = self.access
        settings = {**_SETTINGS, **(more or {})}
        variables = {
            "PATH": f"{Path(self._git.path).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_PAGER": "cat",
            "GIT_EDITOR": "/bin/false",
            "GIT_ALLOW_PROTOCOL": ":".join(sorted(access.protocols)),
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
            "GIT_HTTP_LOW_SPEED_TIME": str(_STALLED_SECONDS),
            "GIT_SSH_COMMAND": self._ssh(),
            **{name: environ[name] for name in _PASSED_ON if name in environ},
        }
        if access.as_user and not access.local:
            variables |= {name: environ[name] for name in _OF_USER if name in environ}
        else:
            variables["GIT_CONFIG_GLOBAL"] = str(access.gitconfig)
        if access.credential is not None:
            settings["credential.helper"] = ""
            settings[f"credential.{access.credential.scope}.helper"] = _ANSWER
            variables["OUBLIETTE_GIT_USER"] = access.credential.user
            variables["OUBLIETTE_GIT_PASSWORD"] = access.credential.password
        variables["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (name, value) in enumerate(settings.items()):
            variables[f"GIT_CONFIG_KEY_{number}"] = name
            variables[f"GIT_CONFIG_VALUE_{number}"] = value
        return variables

    def _ssh(self) -> str:
        options = ["ssh", "-oBatchMode=yes", "-oConnectTimeout=20", "-oServerAliveInterval=20"]
        if self.access.key_file is not None:
            options += ["-F/dev/null", "-oIdentitiesOnly=yes", "-i", self.access.key_file]
        elif not self.access.as_user:
            options += ["-F/dev/null", "-oIdentityAgent=none", "-oIdentityFile=none"]
        return " ".join(_quoted(each) for each in options)

    async def run(
        self,
        folder: Path,
        *arguments: str,
        doing: str,
        seconds: float,
        report: Callable[[str], object] | None = None,
        more: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        error_of: Callable[..., RepositoryError] = repository_error,
    ) -> bytes:
        """Run a command of git; return its output.

        Args:
            folder: Its working directory.
            arguments: The command.
            doing: Name of it, for errors: `the clone`.
            seconds: Its time.
            report: Gets lines about its progress.
            more: Further variables of its environment.
            settings: Further settings of git.
            error_of: Returns the error that git's output means, as `repository_error` does.

        Raises:
            DeadlineExceeded: the time was too short.
            RepositoryError: git failed; the sentence has the cause and a remedy.
            RuntimeFailure: git cannot be started.
        """
        command = [self._git.path, *arguments]
        if self.access.max_bytes:
            blocks = str(-(-self.access.max_bytes // _BLOCK))
            command = ["/bin/sh", "-c", _LIMITED, blocks, *command]
        progress = GitProgress(report or (lambda _: None))
        try:
            done = await run(
                command,
                environment=self.environment(more=settings) | dict(more or {}),
                folder=folder,
                seconds=seconds,
                follow=progress.take,
            )
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"{doing} of {self.access.shown} took more than {seconds:g} s",
                hint="raise repositories.clone_seconds, or fetch less of it with depth",
            ) from None
        if done.code != 0:
            raise self._error(self._without_secret(done.errors), doing, error_of)
        return done.output

    def _error(
        self, output: str, doing: str, error_of: Callable[..., RepositoryError]
    ) -> RepositoryError:
        where, host = self.access.shown, self.access.host
        submodule = _OF_SUBMODULE.search(output)
        if submodule is not None:
            where = submodule["url"]
            host = host_and_path(where)[1] or where
        return error_of(output, where=where, host=host, doing=doing)

    def _without_secret(self, text: str) -> str:
        credential = self.access.credential
        if credential is not None and credential.password:
            text = text.replace(credential.password, HIDDEN)
        return without_password(text)


def _quoted(word: str) -> str:
    """A word for the shell in which git runs ssh."""
    return "'" + word.replace("'", "'\\''") + "'"


_STEP: Final = re.compile(
    rb"(?:remote: )?(?P<step>[A-Z][a-z]+ [a-z]+): +(?P<percent>\d{1,3})% \(\d+/\d+\)"
    rb"(?:, (?P<size>[\d.]+ [KMGT]?i?B|[\d.]+ bytes))?"
)
_MAX_LINE: Final = 1000
_STRIDE: Final = 10
"""Percent of a step between two lines."""


class GitProgress:
    """Reader of git's standard error while it runs; one for each command."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._rest = b""
        self._last: tuple[bytes, int] | None = None

    def take(self, data: bytes) -> None:
        """Take the next piece of the output; report each step in strides of 10 %."""
        *lines, rest = re.split(rb"[\r\n]", self._rest + data)
        self._rest = rest[-_MAX_LINE:]
        for line in lines:
            found = _STEP.match(line)
            if found is None:
                continue
            percent = int(found["percent"])
            now = (found["step"], percent // _STRIDE)
            if now == self._last:
                continue
            self._last = now
            size = f", {found['size'].decode()}" if found["size"] else ""
            self._report(f"{found['step'].decode()}: {percent} %{size}")
