"""Errors of git by cause: a sentence with a remedy in place of its output."""

from __future__ import annotations

import re
from typing import Final

from oubliette.errors import LimitExceeded, RuntimeFailure

SAID: Final = 400
"""Characters of git's own message that an error repeats."""


class RepositoryError(RuntimeFailure):
    """git failed on a repository; a subclass has the cause if git's message shows it."""

    code = "repository"


class RepositoryNotFound(RepositoryError):
    """There is no such repository, or its host hides it from this user."""

    code = "repository_not_found"


class RepositoryDenied(RepositoryError):
    """The host requires a login, or another one."""

    code = "repository_denied"


class RepositoryUnreachable(RepositoryError):
    """The host does not answer."""

    code = "repository_unreachable"


class RepositoryUntrusted(RepositoryError):
    """The host's TLS certificate or ssh key is not trusted."""

    code = "repository_untrusted"


class BranchNotFound(RepositoryError):
    """The repository has no such branch."""

    code = "branch_not_found"


class RepositoryEmpty(RepositoryError):
    """The repository has no commit yet."""

    code = "repository_empty"


class HistoryMissing(RepositoryError):
    """A commit that is needed is not in a shallow repository."""

    code = "history_missing"


class LfsMissing(RepositoryError):
    """Files of Git LFS cannot be fetched."""

    code = "lfs_missing"


class BranchDiverged(RepositoryError):
    """A branch has commits that the other side does not have."""

    code = "branch_diverged"


class PathsClash(RepositoryError):
    """Two paths of the repository are one for the server's file system."""

    code = "paths_clash"


class RepositoryTooLarge(RepositoryError, LimitExceeded):
    """The repository is larger than the limit."""

    code = "repository_too_large"


_CREDENTIALS: Final = (
    "set repositories.credentials in the server's configuration, such as"
    ' ["{host}=env:GIT_TOKEN"], and restart the server'
)
ErrorKind = tuple[str, type[RepositoryError], str, str]
"""Pattern of git's output, and class, sentence and remedy of the error that it means."""

# In this order: the messages of hosts (`remote: …`) and of ssh come before git's own, and are the
# most specific.
_KINDS: Final[tuple[ErrorKind, ...]] = (
    (
        r"File too large",
        RepositoryTooLarge,
        "{where} is larger than repositories.max_bytes",
        "raise repositories.max_bytes, or fetch less of it with depth",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        RepositoryError,
        "the server's disk is full",
        "free some space in the home, then try again",
    ),
    (
        r"transport '(?P<what>[^']*)' not allowed",
        RepositoryError,
        "{where} needs the protocol {what}, which this server does not allow",
        "repositories.protocols in the server's configuration determines that",
    ),
    (
        (
            r"Remote branch (?P<what>.+) not found in upstream"
            r"|couldn't find remote ref (?:refs/heads/)?(?P<other>.+)"
        ),
        BranchNotFound,
        "{where} has no branch {what}",
        "leave branch out for its default one, or push the branch first",
    ),
    (
        r"the following paths have collided",
        PathsClash,
        (
            "{where} has paths that differ only in upper and lower case, which the server's file"
            " system takes for one"
        ),
        "put the server's home on a file system that tells them apart",
    ),
    (
        r"git-lfs: (?:command )?not found|'lfs' is not a git command|git-lfs.*No such file",
        LfsMissing,
        "files of {where} are kept by Git LFS, which is not installed on the server",
        "install git-lfs there, or leave lfs out to get pointers to those files",
    ),
    (
        r"smudge filter lfs failed|batch response|LFS: |Object does not exist on the server",
        LfsMissing,
        "files of {where} that Git LFS keeps cannot be fetched",
        "check that the credential may read them, or leave lfs out",
    ),
    (
        (
            r"SSL certificate problem|certificate verification failed|unable to get local issuer"
            r"|SSL: no alternative certificate|certificate has expired|server certificate"
        ),
        RepositoryUntrusted,
        "the TLS certificate of {host} is not trusted",
        "give the server its authority with GIT_SSL_CAINFO or SSL_CERT_FILE",
    ),
    (
        r"gnutls_handshake|wrong version number|unexpected TLS packet|SSL connect error",
        RepositoryUntrusted,
        "{host} does not answer with TLS",
        "check the port of the address; http is possible where repositories.protocols allows it",
    ),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        RepositoryUntrusted,
        "the ssh key of {host} is not known to the server",
        "check it, and add it to ~/.ssh/known_hosts of the server's user",
    ),
    (
        (
            r"Authentication failed|HTTP Basic: Access denied|Bad credentials"
            r"|Invalid username or (?:password|token)"
        ),
        RepositoryDenied,
        "{host} refuses the credential of this server",
        "check that the token in repositories.credentials for {host} is valid and may read it",
    ),
    (
        r"could not read (?:Username|Password)|terminal prompts disabled",
        RepositoryDenied,
        "{host} wants a login for {where}",
        _CREDENTIALS + "; a public repository that does not exist is answered like this too",
    ),
    (
        r"Permission denied \(|Too many authentication failures",
        RepositoryDenied,
        "{host} accepts none of the server's ssh keys",
        'name a key it knows in repositories.credentials: ["{host}=file:/path/of/the/key"]',
    ),
    (
        (
            r"requested URL returned error: 403|Write access to repository not granted"
            r"|(?:pull|access|permission)[^\n]* denied"
        ),
        RepositoryDenied,
        "{host} does not let this server read {where}",
        _CREDENTIALS,
    ),
    (
        (
            r"Repository not found|repository '[^']*' (?:not found|does not exist)"
            r"|does not appear to be a git repository|requested URL returned error: 404"
            r"|not valid: is this a git repository|project you were looking for could not be found"
        ),
        RepositoryNotFound,
        "there is no repository at {where}, or it is hidden from this server",
        "check its address; a private one needs repositories.credentials",
    ),
    (
        (
            r"Could not resolve (?:host|proxy)|Name or service not known"
            r"|Temporary failure in name resolution"
        ),
        RepositoryUnreachable,
        "the name {host} cannot be resolved",
        "check the address, and the network of the server's machine",
    ),
    (
        (
            r"Failed to connect|Connection (?:refused|timed out|reset)|Couldn't connect"
            r"|Network is unreachable|No route to host|Operation timed out|Empty reply from server"
            r"|Operation too slow|ssh: connect to host"
        ),
        RepositoryUnreachable,
        "{host} does not answer",
        "check the address, and the network of the server's machine, then try again",
    ),
    (
        r"requested URL returned error: (?P<what>429|5\d\d)",
        RepositoryUnreachable,
        "{host} answered with the HTTP status {what}",
        "try again later",
    ),
    (
        (
            r"shallow update not allowed|source repository is shallow|attempt to fetch/clone from a"
            r" shallow|dumb http transport does not support shallow"
        ),
        HistoryMissing,
        "{where} has only a part of its history",
        "fetch the rest there first: git fetch --unshallow",
    ),
    (
        (
            r"no merge base|refusing to merge unrelated histories"
            r"|Could not read [0-9a-f]{40}|bad object [0-9a-f]{40}"
        ),
        HistoryMissing,
        "a commit that is needed is not here: the clone has only a part of the history",
        "create the project again without depth",
    ),
    (
        r"non-fast-forward|fetch first|\[rejected\]|stale info",
        BranchDiverged,
        "the branch has changed on both sides",
        "fetch it with repository_fetch, and merge again",
    ),
    (
        (
            r"early EOF|unexpected disconnect|hung up unexpectedly|RPC failed"
            r"|invalid index-pack output"
            r"|TLS connection was non-properly terminated"
        ),
        RepositoryUnreachable,
        "the transfer from {host} broke off",
        "try again; with depth less is transferred",
    ),
)
_NOISE: Final = re.compile(
    r"(?m)^(?:Cloning into .*|warning: .*|Please make sure you have .*|and the repository exists\."
    r"|(?:remote: )?[A-Z][a-z]+ [a-z]+: .*%.*|remote: Total .*|)$\n?"
)


def repository_error(
    output: str, *, where: str, host: str, doing: str, first: tuple[ErrorKind, ...] = ()
) -> RepositoryError:
    """The error that git's output means.

    Args:
        output: What git wrote to its standard error, without secrets.
        where: The repository's address, as it may be shown.
        host: Its host.
        doing: Name of what failed, for causes that are not known: `the clone`.
        first: Causes that come before the usual ones.
    """
    for pattern, kind, what, remedy in (*first, *_KINDS):
        found = re.search(pattern, output)
        if found is None:
            continue
        named = found.groupdict()
        parts = {
            "where": where,
            "host": host,
            "what": (named.get("what") or named.get("other") or "").strip(),
        }
        return kind(what.format(**parts), hint=remedy.format(**parts))
    said = " ".join(_NOISE.sub("", output.replace("\r", "\n")).split())[-SAID:]
    return RepositoryError(
        f"{doing} of {where} failed: {said or 'git gave no reason'}",
        hint="the same command of git on the server's machine shows more",
    )
