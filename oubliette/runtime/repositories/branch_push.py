"""BranchPush, which pushes a branch of the project's repository to where that was cloned from.

Nothing there is replaced: the branch has to contain what was fetched of the other side's, and the
other side has to have just that still. A push that was cut off may be repeated.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.failpoints import failpoint
from oubliette.runtime.repositories.git_errors import (
    BranchDiverged,
    LfsMissing,
    RepositoryDenied,
    RepositoryError,
    RepositoryTooLarge,
    repository_error,
)
from oubliette.runtime.repositories.project_repository import REMOTE, SECONDS
from oubliette.runtime.snapshots.git_program import git_failure, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.repositories.git_errors import ErrorKind
    from oubliette.runtime.repositories.remote_git import RemoteGit
    from oubliette.runtime.snapshots.git_program import GitProgram

_RECEIVE: Final = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "receive.denyCurrentBranch=refuse", "-c", "receive.denyNonFastForwards=true"),
    *("-c", "receive.autogc=false", "-c", "core.alternateRefsCommand=true", "receive-pack"),
)
"""The other side of a push to a folder: none of its hooks and programs is run."""
_AS_OWNER: Final = (
    "import os,sys;os.setgroups([]);os.setgid(int(sys.argv[1]));os.setuid(int(sys.argv[2]));"
    "os.environ['GIT_CONFIG_GLOBAL']='/dev/null';os.execv(sys.argv[3],sys.argv[3:])"
)


class PushOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a push."""

    where: str = ""
    """Address of the other repository, as it may be shown."""
    pushed: bool = False
    up_to_date: bool = False
    """Whether the other side had it already."""
    created: bool = False
    """Whether the branch is new there."""
    before: str | None = None
    """Commit of the branch there, before."""
    commit: str | None = None
    """Commit of the branch; None: the project's repository has no such branch."""


class BranchPush:
    """Pushes of one project's repository. Its owner does one thing at a time.

    Args:
        repository: Folder of the project's repository.
        git: The program, for that repository.
        remote: The program, for the other one.
        seconds: Time for a transfer.
    """

    def __init__(
        self, repository: Path, git: GitProgram, remote: RemoteGit, seconds: float
    ) -> None:
        self._repository = repository
        self._git = git
        self._remote = remote
        self._seconds = seconds

    async def push(
        self, branch: str, to: str, report: Callable[[str], object] | None = None
    ) -> PushOutcome:
        """Push a branch.

        Args:
            branch: Its name.
            to: Its name on the other side.
            report: Gets lines about git's progress.

        Raises:
            BranchDiverged: the other side has commits that the branch lacks.
            BranchCheckedOut: it is the one in a checkout there.
            BranchProtected: a rule of the host forbids it.
            RepositoryError: git failed; the sentence has the cause and a remedy.
            DeadlineExceeded: it takes too long; it may have been done.
        """
        where = self._remote.access.shown
        commit = await self._commit_of(f"refs/heads/{branch}")
        if commit is None:
            return PushOutcome(where=where)
        before = await self._commit_of(f"{REMOTE}/{to}")
        if before == commit:
            return PushOutcome(where=where, up_to_date=True, before=before, commit=commit)
        if before is not None and not await self._contains(commit, before):
            raise BranchDiverged(
                f"the branch {to} of {where} has commits that {branch} does not contain",
                hint=f"merge again with session_merge into {to}, which brings them, then push",
            )
        failpoint("push.begun")
        try:
            await self._send(commit, to, before, report)
        except BranchDiverged:
            if await self._there(to) != commit:
                raise
        failpoint("push.sent")
        await self._git.run(
            self._repository, "update-ref", f"{REMOTE}/{to}", commit, seconds=SECONDS
        )
        return PushOutcome(
            where=where, pushed=True, created=before is None, before=before, commit=commit
        )

    async def _send(
        self, commit: str, to: str, before: str | None, report: Callable[[str], object] | None
    ) -> None:
        ref, access = f"refs/heads/{to}", self._remote.access
        options = ["--progress", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
        options.append(f"--force-with-lease={ref}:{before or ''}")
        if access.local:
            options.append(f"--receive-pack={_receiver(self._git.path, Path(access.address))}")
        await self._remote.run(
            self._repository,
            *("push", *options, "--", access.address, f"{commit}:{ref}"),
            doing="the push",
            seconds=self._seconds,
            report=report,
            more={"GIT_DIR": str(self._repository)},
            error_of=push_error,
        )

    async def _there(self, to: str) -> str | None:
        ref = f"refs/heads/{to}"
        output = await self._remote.run(
            self._repository,
            *("ls-remote", "--", self._remote.access.address, ref),
            doing="a look at the branches",
            seconds=self._seconds,
        )
        for line in output.decode(errors="replace").splitlines():
            commit, _, name = line.partition("\t")
            if name == ref:
                return commit
        return None

    async def _commit_of(self, ref: str) -> str | None:
        return await self._git.commit_of(self._repository, ref, seconds=SECONDS)

    async def _contains(self, commit: str, older: str) -> bool:
        done = await run(
            [self._git.path, "merge-base", "--is-ancestor", older, commit],
            environment=self._git.environment(self._repository),
            folder=self._repository,
            seconds=SECONDS,
        )
        if done.code not in {0, 1}:
            raise git_failure("merge-base", done)
        return done.code == 0


def _receiver(git: str, folder: Path) -> str:
    """The command that takes what is pushed to a folder, as the folder's owner."""
    command = [git, *_RECEIVE]
    status = folder.stat()
    if os.geteuid() == 0 and status.st_uid != 0:
        who = (str(status.st_gid), str(status.st_uid))
        command = [sys.executable, "-I", "-S", "-c", _AS_OWNER, *who, *command]
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in command)


class BranchCheckedOut(RepositoryError):
    """A branch cannot be pushed to, as it is the one in a checkout there."""

    code = "branch_checked_out"


class BranchProtected(RepositoryError):
    """The host has a rule against this change of a branch."""

    code = "branch_protected"


_KINDS: Final[tuple[ErrorKind, ...]] = (
    (
        r"branch is currently checked out|refusing to update checked out branch",
        BranchCheckedOut,
        "the branch is checked out in {where}, whose files would not be those of the branch then",
        "push to another branch, and merge that there with git merge",
    ),
    (
        r"Git LFS object|LFS objects are missing|GH008",
        LfsMissing,
        "{host} refuses files of Git LFS whose content was never sent to it",
        "push from a checkout with git-lfs: fetch the branch there, then git push",
    ),
    (
        r"GH001|Large files detected|file size limit|larger than the maximum",
        RepositoryTooLarge,
        "{host} refuses a file that is too large",
        "remove it from the workspace, merge into a new branch, and push that",
    ),
    (
        r"[Pp]ush cannot contain secrets|GITHUB PUSH PROTECTION",
        BranchProtected,
        "{host} has found a secret in what is pushed, and refuses it",
        "remove it from the workspace, merge with strategy squash into a new branch, and push that",
    ),
    (
        (
            r"GH006|GH013|[Pp]rotected branch|protected branches|repository rule violations"
            r"|hook declined|prohibited by Gerrit|TF402455|denied updating"
        ),
        BranchProtected,
        "{host} has a rule against this change of the branch",
        "push to another branch, and propose the change there (a pull or merge request)",
    ),
    (
        r"directory file conflict|cannot lock ref|unable to resolve reference|refname conflict",
        RepositoryError,
        "{where} has another branch whose name and this one exclude each other",
        "a/b cannot be there beside a; choose another name",
    ),
    (
        (
            r"requested URL returned error: 403|Write access to repository not granted"
            r"|(?:push|access|permission)[^\n]* denied|not allowed to push"
            r"|insufficient permission for adding|[Pp]ermission to [^\n]* denied"
            r"|service not enabled"
        ),
        RepositoryDenied,
        "{host} does not let this server push to {where}",
        "the credential in repositories.credentials for {host} has to permit writing",
    ),
    (
        r"shallow update not allowed",
        RepositoryError,
        "{where} does not take commits of a clone that has only a part of the history",
        "create the project again without depth",
    ),
    (
        r"non-fast-forward|fetch first|\[rejected\]|stale info",
        BranchDiverged,
        "the branch has got other commits at {where} since it was fetched",
        "fetch them with repository_fetch, merge again, then push",
    ),
)


def push_error(output: str, *, where: str, host: str, doing: str) -> RepositoryError:
    """The error that git's output means, as `repository_error` does."""
    return repository_error(output, where=where, host=host, doing=doing, first=_KINDS)
