"""Logs go to stderr, and no key goes into them."""

from __future__ import annotations

import json
import subprocess
import sys

from oubliette.cli.terminal.logging_config import black_out

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
        assert "unseen" not in done.stderr
        assert done.stderr.count("ValueError") >= 2
        if how == "json":
            for line in done.stderr.splitlines():
                json.loads(line)
