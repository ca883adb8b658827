"""Errors of git while it pushes, by cause; causes that a fetch has too are in `git_errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.runtime.repositories.git_errors import (
    BranchDiverged,
    LfsMissing,
    RepositoryDenied,
    RepositoryError,
    RepositoryTooLarge,
    repository_error,
)

if TYPE_CHECKING:
    from oubliette.runtime.repositories.git_errors import ErrorKind


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
