"""A caller as a process of its own, to be killed or frozen: it listens and never answers.

    python -m tests.system.caller_process URL TOKEN KIND [get-stream]

Prints `listening`, then each event as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.system.site import CALLERS


async def main(url: str, token: str, kind: str, how: str = "listen") -> None:
    cls, mode = CALLERS[kind]
    caller = cls(url, token, mode=mode, caller_id="myapp", answers=False)
    async with caller:
        if how == "get-stream":
            await caller.open_get_stream()
        else:
            await caller.listen()
        print(json.dumps({"type": "listening"}), flush=True)
        shown = 0
        while True:
            await caller.event(after=shown, timeout=600)
            for event in caller.events[shown:]:
                print(json.dumps({"type": event["type"]}), flush=True)
            shown = len(caller.events)


asyncio.run(main(*sys.argv[1:]))
