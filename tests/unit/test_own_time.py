"""What a loaded machine takes from a test is no time of the product."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.own_time import OwnTime


@pytest.mark.whole  # of the kernel's statistics, which not all have
def test_what_a_test_waits_for_a_processor_is_taken_off():
    """Two that compute on one processor: each waits while the other has it."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    other = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1
    )
    try:
        with other:
            assert other.stdout is not None
            other.stdout.readline()
            own = OwnTime()
            began = time.monotonic()
            while own.waited() == 0:
                assert time.monotonic() - began < 10
            assert own.seconds() < time.monotonic() - began
            other.kill()
    finally:
        os.sched_setaffinity(0, allowed)
