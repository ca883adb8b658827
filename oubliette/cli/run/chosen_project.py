"""The project of a checkout or a URL: one for each source and branch, made at its first use."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

from oubliette.cli.client.calls import pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.client.tools import HomeServer
from oubliette.cli.terminal.output import note
from oubliette.cli.terminal.progress import shown
from oubliette.errors import AlreadyExists, InvalidParameter, NotFound
from oubliette.user_paths import expanded, working_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUIET_SECONDS: Final = 300.0
"""Time without progress of git; a clone has a deadline of its own in the configuration."""
GIT_SECONDS: Final = 30.0
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
_NAMES: Final = 100
"""Names that are tried for a project."""


class Source:
    """Repository and branch at which the work begins.

    Args:
        repo: URL or folder as given; None: the checkout that the current folder is in.
        branch: As given; None: the one that is checked out, or HEAD.
        dirty: Whether uncommitted changes come too.

    Raises:
        InvalidParameter: there is no checkout, or none of a branch with a commit.
    """

    def __init__(self, repo: str | None, branch: str | None, *, dirty: bool) -> None:
        self.url = repo if repo is not None and _URL.match(repo) else None
        self.path: str | None = None
        self.branch = branch
        self.dirty = dirty
        if self.url is None:
            folder = working_folder() if repo is None else expanded(repo, "--repo")
            self.path = _checkout(folder, given=repo is not None)
            self.branch = branch or _branch(self.path)

    @property
    def name(self) -> str:
        """Name for a project of it."""
        last = re.split(r"[/:]", (self.url or self.path or "").rstrip("/"))[-1]
        return last.removesuffix(".git") or "repository"

    @property
    def shown(self) -> str:
        """The source, for people."""
        branch = f" (branch {self.branch})" if self.branch else ""
        return f"{self.url or self.path}{branch}"

    @property
    def parameter(self) -> dict[str, Any]:
        """Parameter `repository` of `project_create`."""
        place = {"url": self.url} if self.url else {"path": self.path}
        return {**place, "branch": self.branch, "dirty": self.dirty}

    def is_of(self, repository: dict[str, Any] | None) -> bool:
        """Whether a project with this `repository` begins there."""
        if repository is None:
            return False
        same = repository["url"] == self.url and repository["path"] == self.path
        branch = self.branch is None or repository["branch"] == self.branch
        return same and branch and bool(repository.get("dirty")) == self.dirty

    def changed_files(self) -> int:
        """Number of files of the checkout with changes that are not committed."""
        if self.path is None:
            return 0
        return len((_git(self.path, "status", "--porcelain", "--no-renames") or "").splitlines())


def project_of(home: str | None, place: Path, source: Source) -> str:
    """Return the id of the project of a source; what is new there is fetched.

    Args:
        home: As given on the command line.
        place: Folder of the server.
        source: The repository.
    """
    server = HomeServer(place)
    if not source.dirty and (changed := source.changed_files()):
        files = "1 file has" if changed == 1 else f"{changed} files have"
        note(f"{files} uncommitted changes, which stay here; --dirty brings them.")
    if (known := _known(home, source)) is not None:
        with shown(f"fetching {source.shown}") as report:
            _call(server, "repository_fetch", {"project_id": known}, report)
        return known
    with shown(f"cloning {source.shown}") as report:
        for number in range(1, _NAMES):
            name = source.name if number == 1 else f"{source.name}-{number}"
            arguments = {"name": name, "repository": source.parameter}
            try:
                made = _call(server, "project_create", arguments, report)
            except AlreadyExists:
                continue
            break
        else:
            raise AlreadyExists(
                f"{_NAMES} projects are named like {source.name}", hint="give one with --project"
            )
    note(f"Project {made['name']} is a clone of {source.shown}.")
    return str(made["id"])


def used_before(home: str | None, source: Source) -> str:
    """Return the id of the project of a source, which is left as it is.

    Raises:
        NotFound: there is none.
    """
    known = _known(home, source)
    if known is None:
        raise NotFound(
            f"there is no project of {source.shown}, and no session to go on with",
            hint="start one without --continue",
        )
    return known


def _known(home: str | None, source: Source) -> str | None:
    for project in pages(home, "project_list", "projects", {}):
        if source.is_of(project.get("repository")):
            return str(project["id"])
    return None


def named(home: str | None, project: str) -> str:
    """Return the id of a project by its name, or by a part of its id."""
    return whole_id(home, "project", project)


def _call(
    server: HomeServer, tool: str, arguments: dict[str, Any], report: Callable[[str], None]
) -> dict[str, Any]:
    return server.call(tool, arguments, QUIET_SECONDS, on_progress=report)


def _checkout(folder: Path, *, given: bool) -> str:
    try:
        top = _git(str(folder), "rev-parse", "--show-toplevel") if folder.is_dir() else None
    except _Untrusted:
        raise InvalidParameter(
            f"{folder} belongs to another user, and your git does not trust it",
            hint=f"if you do: git config --global --add safe.directory {folder.resolve()}",
        ) from None
    if top is not None:
        return top
    if given and folder.is_dir():  # a bare repository, or none: the server looks at it
        return str(folder.resolve())
    raise InvalidParameter(
        f"{folder} is not in a checkout of git",
        hint="go to one, or give --repo URL or --project NAME",
    )


def _branch(path: str) -> str | None:
    """Return the branch that is checked out; None: git does not know it, and the server looks."""
    branch = _git(path, "symbolic-ref", "--quiet", "--short", "HEAD")
    commit = _git(path, "rev-parse", "--verify", "--quiet", "HEAD")
    if branch is not None and commit is None:
        raise InvalidParameter(
            f"{path} has no commit yet", hint="make a first one: git add -A && git commit"
        )
    if branch is None and commit is not None:
        raise InvalidParameter(
            f"{path} has a commit checked out, and no branch (detached HEAD)",
            hint="make a branch of it (git switch -c NAME), or begin at another with --branch",
        )
    return branch


class _Untrusted(Exception):
    """git refuses to work in a folder of another user."""


def _git(folder: str, *arguments: str) -> str | None:
    """Return the output of the user's own git in a folder of theirs; None: it failed."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", folder, *arguments],  # writes no index either
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if b"safe.directory" in done.stderr:
        raise _Untrusted
    text = done.stdout.decode(errors="surrogateescape").rstrip("\n")
    return text if done.returncode == 0 else None
