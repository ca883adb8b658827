"""Places at which tests make a process fail are places that the product passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.product_files import PACKAGE, product_files

if TYPE_CHECKING:
    from collections.abc import Iterable

TESTS = Path(__file__).parents[1]
PASSED = re.compile(r'(?:failpoint|PassFailpoint)\(\s*"([a-z_]+\.[a-z_]+)"')
USED = re.compile(r'"([a-z_]+\.[a-z_]+)(?:=[a-z]+)?@\d+|failpoints="([a-z_]+\.[a-z_]+)=')

HANDLED = re.compile(r'"([A-Z]\w*Actor)\.(_?[A-Z]\w+)(?:=[a-z]+(?:@\d+)?)?"')


def sources(files: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_each_place_that_a_test_names_is_passed_by_the_product() -> None:
    passed = set(PASSED.findall(sources(product_files())))
    named = {one or other for one, other in USED.findall(sources(TESTS.rglob("*.py")))}
    assert len(named) > 20
    assert named <= passed


def test_each_message_that_a_test_waits_for_in_an_actor_is_a_class_of_the_product() -> None:
    named = set(HANDLED.findall(sources((TESTS / "faults").rglob("*.py"))))
    product = sources(product_files(PACKAGE / "actors") + product_files(PACKAGE / "kit"))
    classes = set(re.findall(r"^class (\w+)", product, re.MULTILINE))
    assert len(named) > 5
    assert {name for pair in named for name in pair} <= classes
