"""Subjects of requests, from the agents' own frames through their adapters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.api.events import PermissionRequest
from oubliette.api.permissions import rules, subject_of
from oubliette.runtime.agents import AcpAdapter, AgentSession, DroidAdapter
from oubliette.runtime.agents.acp.runtime import opening
from oubliette.runtime.agents.opencode.adapter import OpencodeAdapter
from oubliette.runtime.agents.scripted.adapter import ScriptedAdapter
from oubliette.runtime.containers import Inside
from tests.unit.api.permissions.requests import WORKSPACE, acp, droid, event

SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd=WORKSPACE,
    home="/home/agent/gogol_1",
    pairing_secret="secret",
    autonomy="ask",
)
PATCH = """*** Begin Patch
*** Update File: src/a.py
*** Move to: src/b.py
*** Add File: src/c.py
+x
*** Delete File: /etc/d
*** End Patch"""


def through(adapter: Any, frame: dict[str, Any]) -> PermissionRequest:
    """The request that a session makes of an agent's frame."""
    found = adapter.feed(json.dumps(frame).encode() + b"\n", 0)
    (data,) = [each.data for each in found if each.type == "permission_request"]
    return event(**data)


def of_scripted(text: str) -> PermissionRequest:
    frame = {"type": "permission_request", "turn": 1, "request_id": "ask-1", "text": text}
    return through(ScriptedAdapter(), frame)


def of_opencode(**properties: Any) -> PermissionRequest:
    adapter = OpencodeAdapter(opening(SESSION, Inside()), {"ready": True})
    asked = {"id": "per_1", "sessionID": "ses_1", "always": ["*"], **properties}
    return through(adapter, {"event": {"type": "permission.asked", "properties": asked}})


def of_droid(name: str, question: str, **arguments: Any) -> PermissionRequest:
    adapter = DroidAdapter(opening(SESSION, Inside()), {"ready": True})
    use = {
        "toolUse": {"type": "tool_use", "id": "c", "name": name, "input": arguments},
        "confirmationType": question,
        "details": {"type": question, "impactLevel": "high"},
    }
    frame = {"jsonrpc": "2.0", "type": "request", "id": "p", "method": "droid.request_permission"}
    return through(adapter, {**frame, "params": {"toolUses": [use]}})


def of_acp(**call: Any) -> PermissionRequest:
    adapter = AcpAdapter(opening(SESSION, Inside()), {"ready": True})
    params = {"sessionId": "s", "toolCall": {"toolCallId": "c", **call}, "options": []}
    return through(adapter, {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission",
                             "params": params})  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [
        of_scripted("edit: src/a.py"),
        of_opencode(
            permission="edit",
            patterns=["src/a.py"],
            metadata={"filepath": "/workspace/src/a.py", "diff": "--- a\n+++ b"},
        ),
        of_droid("Edit", "edit", file_path="/workspace/src/a.py", old_str="a", new_str="b"),
        of_acp(title="Edit src/a.py", kind="edit", rawInput={"file_path": "src/a.py"}),
    ],
)
def test_an_edit_of_any_agent_has_its_path(request_: PermissionRequest) -> None:
    subject = subject_of(request_)
    assert subject.kind == "edit"
    assert {path.removeprefix("/workspace/") for path in subject.paths} == {"src/a.py"}
    policy = rules(allow=["edit:src/**"])
    assert policy.ruling(request_, workspace=WORKSPACE).decision == "allow"


@pytest.mark.parametrize(
    "request_",
    [
        of_scripted("bash: git log"),
        of_opencode(
            permission="bash", patterns=["git log"], metadata={"command": "git log"}
        ),
        of_droid("Execute", "exec", command="git log", riskLevel="low"),
        of_acp(title="Terminal", kind="execute", rawInput={"command": "git log"}),
        of_acp(title="Terminal", rawInput={"command": ["git", "log"]}),
    ],
)  # fmt: skip
def test_a_command_of_any_agent_is_one(request_: PermissionRequest) -> None:
    subject = subject_of(request_)
    assert (subject.kind, subject.commands, subject.paths) == ("execute", ("git log",), ())
    assert {"bash", "execute"} <= subject.names


def test_a_question_about_a_violation_is_not_about_the_tool() -> None:
    policy = rules(allow=["read", "bash:git *"], deny=["web*"], otherwise="ask")
    asked = of_droid("Read", "sandbox_violation", file_path="/workspace/a")
    assert policy.ruling(asked, workspace=WORKSPACE).decision is None
    asked = of_droid("Execute", "droid_shield_violation", command="git commit")
    assert policy.ruling(asked, workspace=WORKSPACE).decision is None
    asked = of_droid("FetchUrl", "sandbox_violation", url="https://x.example")
    assert policy.ruling(asked, workspace=WORKSPACE).decision == "deny"


def test_a_patch_has_all_its_paths() -> None:
    subject = subject_of(droid("ApplyPatch", input=PATCH))
    assert subject.paths == ("src/a.py", "src/b.py", "src/c.py", "/etc/d")
    unified = "--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-x\n+y\n--- /dev/null\n+++ new.py\n"
    assert subject_of(droid("Edit", patch=unified)).paths == ("src/a.py", "src/a.py", "new.py")


def test_a_title_names_no_kind_and_only_an_unknown_tool() -> None:
    assert subject_of(acp("other", "read")).names == {"other"}
    assert subject_of(acp("other", "shop_find")).names == {"other", "shop_find"}
    assert subject_of(acp("other", "shop find it")).names == {"other"}
    assert subject_of(acp("execute", "shop_find")).names == {"execute", "bash"}
    assert "web" in subject_of(acp("other", "Fetch the page")).suspected


def test_arguments_that_are_too_deep_are_a_path_that_nothing_allows() -> None:
    nested: Any = {"file_path": "src/a"}
    for _ in range(20):
        nested = [nested]
    subject = subject_of(droid("Edit", file_path="src/a.py", edits=nested))
    assert subject.paths == ("src/a.py", "")
    policy = rules(allow=["edit:src/**"], otherwise="ask")
    request = droid("Edit", file_path="src/a.py", edits=nested)
    assert policy.ruling(request, workspace=WORKSPACE).decision is None


def test_a_request_of_an_unknown_form_has_no_names() -> None:
    assert subject_of(PermissionRequest(request_id="r", tool_call={})).names == frozenset()
    odd = PermissionRequest(request_id="r", tool_call={"toolCallId": "c", "title": 3, "kind": []})
    assert subject_of(odd).names == frozenset()
