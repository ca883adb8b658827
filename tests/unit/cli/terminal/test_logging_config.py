"""Logs go to stderr, and no key goes into them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from oubliette.cli.terminal import output as output_module
from oubliette.cli.terminal.logging_config import black_out, shown_safely
from oubliette.cli.terminal.output import print_error, print_json
from oubliette.errors import NotFound

KEY = "oub_tok_01m7yr2dhgtcd0evc2y6msbca5_mmhpSXvh1eR11F5qbxXMT1X4YoWworuZcHq4QpViL2M"
SECRET = KEY[-43:]


def test_keys_are_blacked_out_wherever_they_stand() -> None:
    event = {
        "event": f"called with {KEY}!",
        "deep": {"list": [f"Bearer {KEY}", 1, None], "api_key": "own"},
        "Authorization": "Bearer x",
        "token_id": "tok_1",
        "exception": f"Traceback: {KEY} {KEY}",
    }
    told = json.dumps(black_out(None, "info", event))
    assert SECRET not in told
    assert "own" not in told
    assert "Bearer x" not in told
    assert "tok_01m7yr2dhgtcd0evc2y6msbca5" in told, "which key it was may be known"
    assert '"token_id": "tok_1"' in told


def test_a_real_log_has_no_key_and_stdout_no_log() -> None:
    source = f"""
import logging, structlog, sys
from oubliette.cli.terminal import logging_config
logging_config.configure("info", as_json=sys.argv[1] == "json")
structlog.get_logger("a").info("got {KEY}", api_key="hunter2")
logging.getLogger("b").warning("got %s", "{KEY}")
logging.getLogger("b").warning("%s", chr(27) + "]0;x" + chr(7) + chr(155))
structlog.get_logger("a").info("said", text=chr(27) + "]0;x" + chr(155))
try:
    raise ValueError("{KEY}")
except ValueError:
    structlog.get_logger("a").exception("failed")
    logging.getLogger("b").exception("failed")
structlog.get_logger("a").debug("unseen")
"""
    for how in ("json", "text"):
        done = subprocess.run(
            [sys.executable, "-c", source, how],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        assert done.stdout == ""
        assert SECRET not in done.stderr
        assert "hunter2" not in done.stderr
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stderr)
        assert "unseen" not in done.stderr
        assert done.stderr.count("ValueError") >= 2
        if how == "json":
            for line in done.stderr.splitlines():
                json.loads(line)


@pytest.mark.parametrize(
    "bad", ["\x1b]0;x\x07", "\x7f", "\x9b31m", "\x85", "a\nb", "\u2028", "\ud800"]
)
def test_no_text_in_a_log_drives_a_terminal_or_begins_a_line(bad: str) -> None:
    given = {"event": f"said {bad}", "name": bad, "exception": f"Traceback\n  {bad}", "n": 1}
    shown = shown_safely(None, "info", dict(given))
    assert shown["n"] == 1
    assert "\n" in shown["exception"]
    for text in (shown["event"], shown["name"], shown["exception"].replace("\n", "")):
        assert text.isprintable() or bad in {"\u2028", "\ud800"}  # these are no matter there
    assert bad not in shown["event"] + shown["name"]


@pytest.mark.parametrize("output", ["result", "error"])
def test_json_on_a_terminal_has_no_control_characters(
    output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(map(chr, range(0xA1))) + "\u2028\u2029é\ud800"
    if output == "result":
        print_json({"text": text})
        said = capsys.readouterr().out
        assert json.loads(said)["text"] == text
    else:
        monkeypatch.setattr(output_module, "_chosen", output_module.Format.json)
        print_error(NotFound(text))
        said = capsys.readouterr().err
        assert json.loads(said)["error"]["message"] == text
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800]", said.removesuffix("\n"))
    assert "é" in said
