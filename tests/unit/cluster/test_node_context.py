"""The program of a node is found by its name."""

from __future__ import annotations

import pytest

from oubliette.cluster.node_context import load_main
from oubliette.errors import InvalidParameter


def test_a_program_is_found_by_module_and_function() -> None:
    assert load_main("asyncio:sleep").__name__ == "sleep"


@pytest.mark.parametrize("name", ["asyncio", "asyncio:nothing", "no.such.module:main", ":main", ""])
def test_a_name_that_leads_nowhere_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(InvalidParameter, match=r"package\.module:function") as refused:
        load_main(name)
    assert refused.value.field == "main"
