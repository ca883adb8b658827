"""Structs with paths are written as JSON and read back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from oubliette.runtime.containers import labels
from oubliette.runtime.containers.base import Mount


def test_a_struct_with_a_path_is_read_back_as_it_was() -> None:
    mount = Mount(Path("/srv/data"), "/data", read_only=True)
    written = labels.encoder.encode(mount)
    assert msgspec.json.decode(written)["source"] == "/srv/data"
    assert labels.decoder(Mount).decode(written) == mount


def test_other_types_have_no_form_in_json() -> None:
    with pytest.raises(TypeError, match="object has no form in JSON"):
        labels.encoder.encode(object())
    with pytest.raises(msgspec.ValidationError, match="no form in JSON"):
        labels.decoder(Mount).decode(b'{"source": 1, "target": "/data"}')
