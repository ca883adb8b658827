"""Hosts to test against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.incontainer.hostclient import Control, HostProcess


@pytest.fixture
def host() -> Iterator[HostProcess]:
    """A host of the test's own."""
    with HostProcess() as process:
        yield process


@pytest.fixture
def control(host: HostProcess) -> Control:
    """A proven control link to `host`."""
    return host.control()


@pytest.fixture
def bare_host() -> Iterator[HostProcess]:
    """A host that pairs clients which know only the relay's first form."""
    with HostProcess("--accept-bare") as process:
        yield process
