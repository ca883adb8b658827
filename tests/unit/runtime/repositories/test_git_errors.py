"""What git writes becomes a sentence with a remedy; what it does not say is not made up."""

from __future__ import annotations

import pytest

from oubliette.errors import LimitExceeded
from oubliette.runtime.repositories import git_errors
from oubliette.runtime.repositories.git_errors import repository_error

WHERE = "https://git.example/acme/shop.git"
# As git 2.39 and 2.47, OpenSSH 9.2 and three hosts write them.
SAID = [
    (
        "fatal: unable to access 'https://git.example/': Could not resolve host: git.example",
        git_errors.RepositoryUnreachable,
        "the name git.example cannot be resolved",
    ),
    (
        "fatal: unable to access 'http://git.example:1/x.git/': Failed to connect to git.example"
        " port 1 after 0 ms: Couldn't connect to server",
        git_errors.RepositoryUnreachable,
        "git.example does not answer",
    ),
    (
        "ssh: connect to host git.example port 22: Connection timed out\n"
        "fatal: Could not read from remote repository.\n\nPlease make sure you have the correct"
        " access rights\nand the repository exists.",
        git_errors.RepositoryUnreachable,
        "git.example does not answer",
    ),
    (
        "git@github.com: Permission denied (publickey).\n"
        "fatal: Could not read from remote repository.",
        git_errors.RepositoryDenied,
        "accepts none of the server's ssh keys",
    ),
    (
        "Host key verification failed.\nfatal: Could not read from remote repository.",
        git_errors.RepositoryUntrusted,
        "the ssh key of git.example is not known",
    ),
    (
        "fatal: unable to access 'https://git.example/': server certificate verification failed."
        " CAfile: none CRLfile: none",
        git_errors.RepositoryUntrusted,
        "the TLS certificate of git.example is not trusted",
    ),
    (
        "fatal: unable to access 'https://git.example/': SSL certificate problem: self-signed"
        " certificate",
        git_errors.RepositoryUntrusted,
        "the TLS certificate of git.example is not trusted",
    ),
    (
        "fatal: unable to access 'https://git.example/': gnutls_handshake() failed: An unexpected"
        " TLS packet was received.",
        git_errors.RepositoryUntrusted,
        "git.example does not answer with TLS",
    ),
    (
        "fatal: could not read Username for 'https://git.example': terminal prompts disabled",
        git_errors.RepositoryDenied,
        "repositories.credentials in the server's configuration, such as [\"git.example=env:",
    ),
    (
        "remote: Invalid username or token. Password authentication is not supported.\n"
        "fatal: Authentication failed for 'https://git.example/acme/shop.git/'",
        git_errors.RepositoryDenied,
        "git.example refuses the credential",
    ),
    (
        "remote: Permission to acme/shop.git denied to me.\nfatal: unable to access"
        " 'https://git.example/acme/shop.git/': The requested URL returned error: 403",
        git_errors.RepositoryDenied,
        "does not let this server read",
    ),
    (
        "remote: Repository not found.\nfatal: repository 'https://git.example/x/' not found",
        git_errors.RepositoryNotFound,
        f"there is no repository at {WHERE}",
    ),
    (
        "ERROR: Repository not found.\nfatal: Could not read from remote repository.",
        git_errors.RepositoryNotFound,
        "there is no repository",
    ),
    (
        "fatal: '/srv/x' does not appear to be a git repository",
        git_errors.RepositoryNotFound,
        "there is no repository",
    ),
    (
        "fatal: Remote branch nope not found in upstream origin",
        git_errors.BranchNotFound,
        f"{WHERE} has no branch nope",
    ),
    (
        "fatal: couldn't find remote ref refs/heads/fix/a",
        git_errors.BranchNotFound,
        "has no branch fix/a",
    ),
    (
        "fatal: transport 'http' not allowed",
        git_errors.RepositoryError,
        "needs the protocol http, which this server does not allow",
    ),
    (
        "fatal: unable to access 'https://git.example/': The requested URL returned error: 503",
        git_errors.RepositoryUnreachable,
        "answered with the HTTP status 503",
    ),
    (
        "fatal: write error: File too large\nfatal: fetch-pack: invalid index-pack output",
        git_errors.RepositoryTooLarge,
        "is larger than repositories.max_bytes",
    ),
    (
        "fatal: write error: No space left on device\nfatal: index-pack failed",
        git_errors.RepositoryError,
        "the server's disk is full",
    ),
    (
        "git-lfs: command not found",
        git_errors.LfsMissing,
        "install git-lfs there",
    ),
    (
        "warning: the following paths have collided (e.g. case-sensitive paths\n"
        "on a case-insensitive filesystem) and only one from the same\n"
        "colliding group is in the working tree:\n\n  'A'\n  'a'",
        git_errors.PathsClash,
        "differ only in upper and lower case",
    ),
    (
        "fatal: refusing to merge unrelated histories",
        git_errors.HistoryMissing,
        "create the project again without depth",
    ),
    (
        " ! [rejected]        main -> main (fetch first)\nerror: failed to push some refs",
        git_errors.BranchDiverged,
        "the branch has changed on both sides",
    ),
    (
        "error: RPC failed; curl 56 GnuTLS recv error (-9)\nfatal: early EOF",
        git_errors.RepositoryUnreachable,
        "the transfer from git.example broke off",
    ),
]


@pytest.mark.parametrize(("output", "kind", "words"), SAID, ids=[each[2][:40] for each in SAID])
def test_a_cause_is_told_with_a_remedy(output: str, kind: type, words: str) -> None:
    error = repository_error(output, where=WHERE, host="git.example", doing="the clone")
    assert type(error) is kind
    assert words in str(error)
    assert error.hint
    assert "fatal:" not in str(error)


def test_a_cause_that_is_not_known_is_repeated_without_the_noise() -> None:
    output = (
        "Cloning into '/home/x'...\nwarning: something\nremote: Counting objects: 50% (1/2)\r"
        "fatal: the moon is in the way\n\nPlease make sure you have the correct access rights\n"
        "and the repository exists."
    )
    error = repository_error(output, where=WHERE, host="git.example", doing="the clone")
    assert type(error) is git_errors.RepositoryError
    assert error.message == f"the clone of {WHERE} failed: fatal: the moon is in the way"


def test_silence_is_called_so() -> None:
    error = repository_error("", where=WHERE, host="git.example", doing="the fetch")
    assert error.message.endswith("git gave no reason")


def test_size_is_a_limit() -> None:
    assert issubclass(git_errors.RepositoryTooLarge, LimitExceeded)
