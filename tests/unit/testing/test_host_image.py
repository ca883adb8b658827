"""The image that is made of this machine's files: what engines can unpack as it is meant."""

from __future__ import annotations

import io
import tarfile

from oubliette.testing import host_image


def test_every_folder_comes_before_what_is_in_it_and_can_be_passed() -> None:
    """An engine that has to make one itself may make it 0700, so that no agent starts."""
    files = host_image._files(["sh"], python=False)
    with tarfile.open(fileobj=io.BytesIO(host_image._tar(files))) as tar:
        entries = tar.getmembers()
    made = {""}
    for entry in entries:
        assert entry.name.rpartition("/")[0] in made, entry.name
        if entry.isdir():
            assert entry.name not in made
            made.add(entry.name)
            assert entry.mode & 0o111 == (0o100 if entry.name == "root" else 0o111)
        elif entry.issym():
            made.add(entry.name)
