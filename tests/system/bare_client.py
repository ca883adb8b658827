"""A client that knows only the relay protocol's first form: a program for inside a container.

    python3 bare_client.py SOCKET PROJECT < script

It connects, says `OUBLIETTE-DOWNSTREAM {project}` and nothing of a session, waits for the caller's
tools as such clients do, and then does what each line of its input, a JSON array, says. For each it
prints one line of JSON: the answer as its agent would have it.

    ["config"]                       the caller_tools_config it was sent
    ["call", METHOD, PARAMS]         the result, or {"error": message}
    ["message", TEXT, SESSION]       session_message, then session_events until the turn is over

Standard library only, and nothing of ours: whatever both ends shared, it would not notice.
"""

import json
import socket
import sys
import threading
import time

CONFIG_SECONDS = 5.0
ANSWER_SECONDS = 30.0
TURN_SECONDS = 60.0
POLL_SECONDS = 0.2


class BareClient:
    def __init__(self, path, project):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.sendall(f"OUBLIETTE-DOWNSTREAM {project}\n".encode())
        self.config = None
        self.configured = threading.Event()
        self.answers = {}
        self.arrived = threading.Condition()
        self.next_id = 0  # the first request has the id 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.sock.makefile("rb"):
            message = json.loads(line)
            if message.get("id") is None:
                if "caller_tools_config" in (message.get("type"), message.get("method")):
                    self.config = message["params"]
                    self.configured.set()
                continue
            with self.arrived:
                self.answers[message["id"]] = message
                self.arrived.notify_all()

    def call(self, method, params):
        number, self.next_id = self.next_id, self.next_id + 1
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.sock.sendall(json.dumps(request).encode() + b"\n")
        with self.arrived:
            if not self.arrived.wait_for(lambda: number in self.answers, ANSWER_SECONDS):
                return {"error": "timeout waiting for response"}
            message = self.answers.pop(number)
        if message.get("error") is not None:
            return {"error": message["error"]["message"], "code": message["error"]["code"]}
        return message.get("result")

    def message(self, text, session_id=""):
        began = time.monotonic()
        spawned = self.call("session_message", {"message": text, "session_id": session_id})
        if "error" in spawned:
            return spawned
        at_once = time.monotonic() - began
        found = {"session_id": spawned["session_id"], "spawned": spawned["spawned"]}
        found["answered_after"] = at_once
        while time.monotonic() - began < TURN_SECONDS:
            time.sleep(POLL_SECONDS)
            asked = {"session_id": spawned["session_id"], "since_index": 0}
            page = self.call("session_events", asked)
            if page.get("completed"):
                for event in page["events"]:
                    if event["type"] == "message" and event.get("role") == "assistant":
                        return {**found, "result": event["text"]}
                return {**found, "result": "Session completed"}
            if page.get("failed"):
                for event in page["events"]:
                    if event["type"] == "error":
                        return {**found, "error": event["text"]}
                return {**found, "error": "session failed"}
        return {**found, "error": "timeout waiting for session result"}


def main():
    client = BareClient(sys.argv[1], sys.argv[2])
    client.configured.wait(CONFIG_SECONDS)
    for line in sys.stdin:
        what, *rest = json.loads(line)
        answer = client.config if what == "config" else getattr(client, what)(*rest)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
