"""The log of an embedded system goes where the program's goes, and leaves no trace behind."""

from __future__ import annotations

import logging

import pytest
import structlog

from oubliette.server import embedded


@pytest.fixture(autouse=True)
def structlog_as_it_is():
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_it_is_a_log_of_the_standard_library_until_the_last_server_has_ended(caplog):
    caplog.set_level(logging.INFO, "oubliette.server")
    log = structlog.get_logger("oubliette.server")
    program = embedded._ProgramLog()
    with program.used():
        with program.used():
            pass
        log.info("stage started", stage="store")
    assert [(each.name, each.levelname) for each in caplog.records] == [
        ("oubliette.server", "INFO")
    ]
    assert "stage='store'" in caplog.text
    assert not structlog.is_configured()


def test_a_program_that_configures_structlog_keeps_its_own_way():
    seen = []

    def note(logger, method, event):
        seen.append(event["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    with embedded._ProgramLog().used():
        structlog.get_logger("oubliette.server").info("stage started")
    structlog.get_logger("oubliette.server").info("after")
    assert seen == ["stage started", "after"]
