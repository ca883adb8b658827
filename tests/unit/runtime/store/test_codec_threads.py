"""msgspec 0.22 ends the process when two threads look into a struct for the first time at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading, types
sys.setswitchinterval(1e-6)
from oubliette import records
from oubliette.runtime.store import codec

source = open(records.__file__).read()
whole = codec.encode(records.Session(
    id="a", project_id="b", workspace_id="c", principal="p", agent="s", status="idle",
    created_at=1.0, updated_at=1.0, exploration_id="e", root_session_id="a"))
for number in range(60):
    module = types.ModuleType(f"records{number}")
    sys.modules[module.__name__] = module
    exec(compile(source, "records", "exec"), module.__dict__)
    together = threading.Barrier(4)

    def decode():
        together.wait()
        codec.decode(module.Session, whole)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_what_none_has_decoded_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-500:]
