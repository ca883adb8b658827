"""The nearest known name is suggested for an unknown one."""

from __future__ import annotations

import pytest

from oubliette.errors import did_you_mean


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("dokcer", "did you mean docker? "),
        ("pod", "did you mean podman? "),
        ("kubernetes", ""),
        ("", ""),
    ],
)
def test_the_nearest_known_name_is_suggested_if_one_is_near(name: str, suggestion: str) -> None:
    assert did_you_mean(name, ["apple", "docker", "podman", "process"]) == suggestion
