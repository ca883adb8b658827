"""What engines say of images that cannot be had, and what it is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import DeadlineExceeded
from oubliette.runtime.containers import engine_errors as errors
from oubliette.runtime.containers.docker.image_progress import ImageProgress
from oubliette.runtime.containers.selection import pull_command

# Of docker 20.10 and podman 4.3, as they were seen.
SAID = [
    (
        'Get "https://registry.example/v2/": dial tcp 192.0.2.1:443: connect: connection refused',
        errors.RegistryUnreachable,
    ),
    (
        'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host',
        errors.RegistryUnreachable,
    ),
    (
        'Get "https://r/v2/": net/http: request canceled (Client.Timeout exceeded while awaiting headers)',
        errors.RegistryUnreachable,
    ),
    ("received unexpected HTTP status: 503 Service Unavailable", errors.RegistryUnreachable),
    (
        "manifest for registry.example/a:2 not found: manifest unknown: manifest unknown",
        errors.ImageNotFound,
    ),
    (
        "repository registry.example/a not found: name unknown: name unknown",
        errors.ImageNotFound,
    ),
    (
        "initializing source docker://registry.example/a:2: reading manifest 2 in registry.example/a:"
        " manifest unknown",
        errors.ImageNotFound,
    ),
    (
        "pull access denied for a, repository does not exist or may require 'docker login': denied:"
        " requested access to the resource is denied",
        errors.RegistryDenied,
    ),
    ('Head "https://r/v2/a/manifests/1": no basic auth credentials', errors.RegistryDenied),
    (
        "unable to retrieve auth token: invalid username/password: unauthorized: authentication"
        " required",
        errors.RegistryDenied,
    ),
    (
        'Get "https://127.0.0.1:5/v2/": http: server gave HTTP response to HTTPS client',
        errors.RegistryUntrusted,
    ),
    (
        'Get "https://r/v2/": x509: certificate signed by unknown authority',
        errors.RegistryUntrusted,
    ),
    (
        "toomanyrequests: You have reached your pull rate limit",
        errors.RegistryBusy,
    ),
    ("something new", errors.ImageError),
]


@pytest.mark.parametrize(("said", "kind"), SAID)
def test_what_an_engine_says_has_a_name_and_a_remedy(said: str, kind: type[Exception]) -> None:
    for engine in ("docker", "podman"):
        error = errors.pull_failed(engine, "registry.example/a:2", said)
        assert type(error) is kind
        assert "registry.example/a:2" in error.message
        assert said in error.message
        assert error.hint
        assert "{" not in error.message + error.hint


def test_every_name_is_another() -> None:
    kinds = [kind for _, kind in SAID]
    kinds += [errors.PullTimeout, errors.BuildFailed, errors.BuildTimeout]
    assert len({kind.code for kind in set(kinds)}) == len(set(kinds))
    assert issubclass(errors.PullTimeout, DeadlineExceeded)


@given(st.text())
def test_whatever_an_engine_says_is_told(said: str) -> None:
    assert isinstance(errors.pull_failed("docker", "a:{x}", said), errors.ImageError)
    errors.python_hint(None, said)


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("python:3.12", "docker.io"),
        ("library/python", "docker.io"),
        ("docker.io/library/python", "docker.io"),
        ("registry.example/a:1", "registry.example"),
        ("localhost:5000/a", "localhost:5000"),
        ("localhost/a", "localhost"),
    ],
)
def test_a_names_registry_is_its_first_part_if_that_is_a_host(image: str, registry: str) -> None:
    assert errors.registry_of(image) == registry


@pytest.mark.parametrize(
    "said",
    [
        'OCI runtime create failed: exec: "python3": executable file not found in $PATH: unknown',
        "[FATAL tini (7)] exec python3 failed: No such file or directory",
        "ERROR (catatonit:2): failed to exec pid1: No such file or directory",
        "this is Python 3.6, and Oubliette needs 3.9 or later",
        "its guest ended before it was ready (exit code 1)",  # and left no word
    ],
)
def test_a_host_that_lacks_python_says_what_the_image_needs(said: str) -> None:
    assert "python3, 3.9 or later" in (errors.python_hint("a:1", said) or "")


def test_other_failures_are_not_put_down_to_python() -> None:
    ended = "its guest ended before it was ready"
    for said in (f"{ended} (exit code 1): permission denied: /mcp/key", f"{ended} (exit code 137)"):
        assert errors.python_hint("a:1", said) is None


def test_how_far_a_pull_is_counts_layers_and_bytes() -> None:
    progress = ImageProgress()
    assert progress.line == ""
    progress.feed({"status": "Pulling from library/python", "id": "3.12"})
    assert progress.line == "Pulling from library/python"
    for layer in ("a", "b", "c"):
        progress.feed({"status": "Pulling fs layer", "progressDetail": {}, "id": layer})
    assert progress.line == "0 of 3 layers"
    progress.feed({"status": "Already exists", "id": "a"})
    detail = {"current": 1_500_000, "total": 3_000_000}
    progress.feed({"status": "Downloading", "progressDetail": detail, "id": "b"})
    assert progress.line == "1 of 3 layers, 1.5 of 3.0 MB"
    progress.feed({"status": "Download complete", "id": "b"})
    progress.feed({"status": "Extracting", "progressDetail": {"current": 5, "total": 9}, "id": "b"})
    assert progress.line == "2 of 3 layers, 3.0 of 3.0 MB"


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["status", "id", "stream", "progressDetail", "aux"]),
            st.none() | st.text(max_size=9),
        )
    )
)
def test_no_part_of_a_stream_breaks_it(parts: list[dict[str, str]]) -> None:
    progress = ImageProgress()
    for part in parts:
        part.pop("progressDetail", None)
        progress.feed(part)
        assert len(progress.line) <= 300


def test_an_image_that_no_registry_has_is_to_be_built_not_pulled() -> None:
    said = 'Get "https://localhost/v2/": dial tcp 127.0.0.1:443: connect: connection refused'
    error = errors.pull_failed("docker", "localhost/oubliette/dev:latest", said)
    assert isinstance(error, errors.ImageNotFound)
    assert "is not built" in str(error)
    assert "oubliette image rebuild" in (error.hint or "")
    assert "network" not in str(error)
    assert "oubliette image rebuild" in pull_command("docker", "localhost/oubliette/dev:latest")
    assert pull_command("podman", "docker.io/a:1") == "podman pull docker.io/a:1"
