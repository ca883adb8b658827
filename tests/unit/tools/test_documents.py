"""The reference pages name what there is: tools, parameters, results, keys, exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from oubliette.config import json_schema, sections
from oubliette.config import schema as config_schema
from oubliette.config.field_docs import field_docs
from oubliette.tools.registry import TABLE, input_schema, output_schema
from tests.unit.cli.exit_codes import exit_codes

DOCS = Path(__file__).parents[3] / "docs"


def section(page: str, title: str) -> str:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", page, re.M | re.S)
    assert found, f"there is no section {title}"
    return found[1]


def test_every_tool_is_described_with_all_it_takes_and_gives() -> None:
    page = (DOCS / "tools.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\S+)$", page, re.M) == list(TABLE)
    for tool in TABLE.values():
        part = section(page, tool.name)
        assert tool.description in part
        schema = input_schema(tool)
        named = re.findall(r"^\| `(\w+)`(\\\*)? \|", part, re.M)
        assert [name for name, _ in named] == list(schema["properties"])
        assert {name for name, star in named if star} == set(schema["required"])
        for name, parameter in schema["properties"].items():
            assert parameter["description"] in part, name
        result = part.partition("\nResult: ")[2]
        assert re.findall(r"`(\w+)`", result) == list(output_schema(tool)["properties"])


def test_every_key_of_the_configuration_is_described() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for name, part in json_schema.schema()["properties"].items():
        if name in sections.SECTIONS_OF_TABLES:
            continue
        table = section(page, f"[{name}]")
        named = re.findall(r"^\| `(\w+)` \|", table, re.M)
        assert sorted(named) == sorted(part["properties"])
        for field in part["properties"].values():
            assert field["description"] in table


def test_every_key_of_a_credential_is_described() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    table = section(page, "[credentials.NAME]")
    docs = field_docs(config_schema.CredentialConfig)
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(docs)
    assert all(text in table for text in docs.values())


def test_every_exit_code_is_described() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d) \|", page, re.M)} == {
        0,
        *exit_codes(),
    }


def test_every_promise_of_the_security_page_names_a_test_that_is_there() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 40
    for file, name in named:
        source = (DOCS.parent / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(?:async )?def {name}\(", source, re.M), (file, name)
