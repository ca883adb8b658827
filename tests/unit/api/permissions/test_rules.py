"""Rules decide on the requests of every agent, and a hostile one gets nothing by them."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oubliette.api.permissions import PermissionRules, UnreachableRule, policy_of, rules
from oubliette.errors import InvalidParameter
from tests.unit.api.permissions.requests import WORKSPACE, acp, droid, opencode, scripted

if TYPE_CHECKING:
    from oubliette.api.events import PermissionRequest

DIFF = {"type": "diff", "path": "/workspace/src/a.py", "newText": "see /etc/passwd"}
BEGIN, END = "*** Begin Patch", "*** End Patch"
SHOP = rules(
    allow=["read", "edit:src/**", "bash:git *", "bash:ls", "find_order", "web:docs.python.org/*"],
    deny=["websearch", "edit:src/secret/**", "edit:*.pem", "bash:git push*"],
    otherwise="ask",
)


def ruling(policy: PermissionRules, request: PermissionRequest) -> str | None:
    return policy.ruling(request, workspace=WORKSPACE).decision


def decide(policy: PermissionRules, request: PermissionRequest) -> str | None:
    async def ask() -> str | None:
        with anyio.fail_after(10):
            return await policy.decide(request, workspace=WORKSPACE)

    return anyio.run(ask)


def paths_of_every_agent(path: str) -> list[PermissionRequest]:
    """A request to edit a path, of each agent."""
    return [
        scripted(f"edit: {path}"),
        opencode("edit", [path.removeprefix("/workspace/")], filepath=path, diff="--- a"),
        opencode("edit", [path]),
        droid("Edit", file_path=path, old_str="a", new_str="b"),
        droid("Create", file_path=path, content="b"),
        droid("ApplyPatch", input=f"{BEGIN}\n*** Update File: {path}\n@@\n+x\n{END}"),
        acp("edit", "Write", rawInput={"file_path": path, "content": "b"}),
        acp("edit", "Write", locations=[{"path": path, "line": 3}]),
        acp("edit", "Write", content=[{**DIFF, "path": path}]),
    ]


def commands_of_every_agent(command: str) -> list[PermissionRequest]:
    return [
        scripted(f"bash: {command}"),
        opencode("bash", [command], command=command),
        opencode("bash", [command]),
        droid("Execute", command=command, summary="d", riskLevel="low", timeout=10),
        acp("execute", command, rawInput={"command": command, "cwd": "/workspace"}),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        scripted("read"),
        scripted("read: a.py"),
        opencode("read", ["/workspace/a.py"]),
        droid("Read", file_path="/workspace/a.py"),
        acp("read", "Read a.py", locations=[{"path": "a.py"}]),
        scripted("find_order"),
        opencode("find_order", ["*"]),
        droid("find_order", order="A-17"),
        acp("other", "find_order", rawInput={"order": "A-17"}),
        *paths_of_every_agent("/workspace/src/a.py"),
        *paths_of_every_agent("src/deep/er/a.py"),
        *commands_of_every_agent("git status"),
        *commands_of_every_agent("ls"),
        *commands_of_every_agent("git add x && ls; git log | ls"),
        opencode("webfetch", ["https://docs.python.org/3/"]),
        droid("FetchUrl", url="https://docs.python.org/3/"),
        acp("fetch", "Fetch", rawInput={"url": "https://docs.python.org/3/"}),
    ],
)
def test_what_a_pattern_matches_whole_is_allowed(request_: PermissionRequest) -> None:
    assert ruling(SHOP, request_) == "allow"


@pytest.mark.parametrize(
    "request_",
    [
        scripted("websearch: cats"),
        opencode("websearch", ["cats"]),
        droid("WebSearch", query="cats"),
        acp(None, "WebSearch", rawInput={"query": "cats"}),
        *paths_of_every_agent("/workspace/src/secret/a.py"),
        *paths_of_every_agent("src/x/../secret/a.py"),
        *paths_of_every_agent("/workspace/keys/deep/key.pem"),
        *commands_of_every_agent("git push --force"),
        *commands_of_every_agent("git status && git push"),
        *commands_of_every_agent("echo $(git push)"),
    ],
)
def test_what_a_denying_pattern_matches_in_part_is_denied(request_: PermissionRequest) -> None:
    assert ruling(SHOP, request_) == "deny"


@pytest.mark.parametrize(
    "request_",
    [
        *paths_of_every_agent("/etc/src/a.py"),
        *paths_of_every_agent("src/../a.py"),
        *paths_of_every_agent("/workspace/src/../../etc/passwd"),
        *paths_of_every_agent("~/src/a.py"),
        *paths_of_every_agent("src\\..\\..\\etc"),
        *paths_of_every_agent("https://evil.example/src/a.py"),
        *paths_of_every_agent("src"),
        *paths_of_every_agent("other/src/a.py"),
        *commands_of_every_agent("rm -r x"),
        *commands_of_every_agent("git status; rm -r x"),
        *commands_of_every_agent("git status & rm -r x"),
        *commands_of_every_agent("git status\nrm -r x"),
        *commands_of_every_agent("git log $(rm -r x)"),
        *commands_of_every_agent("git log `rm -r x`"),
        *commands_of_every_agent("git log > /etc/passwd"),
        *commands_of_every_agent("PAGER=rm git log"),
        acp("execute", "read", rawInput={"command": "rm -r x"}),
        acp("read", "Read", rawInput={"command": "rm -r x"}),
        acp("execute", "find_order", rawInput={"command": "rm -r x"}),
        acp(None, "read"),
        acp("other", "read"),
        acp("edit", "Write", rawInput={"file_path": "src/a"}, locations=[{"path": "/etc/b"}]),
        acp("edit", "Write"),
        droid("ApplyPatch", input=f"{BEGIN}\n*** Update File: src/a\n*** Delete File: b\n{END}"),
        droid("ApplyPatch", input="a patch of a form that is not known"),
        droid("Edit", file_path="src/a.py", edits=[{"file_path": "/etc/b"}]),
        opencode("edit", ["src/a.py"], filepath="/etc/a.py"),
        opencode("external_directory", ["/etc/*"], filepath="/etc/x", parentDir="/etc"),
        opencode("webfetch", ["https://docs.python.org@evil.example/"]),
        opencode("webfetch", ["https://evil.example/docs.python.org/"]),
        scripted("may I go on?"),
        scripted("read the whole file and then delete it"),
    ],
)
def test_all_else_is_left_to_otherwise(request_: PermissionRequest) -> None:
    assert ruling(SHOP, request_) is None


def test_search_patterns_of_a_model_are_no_paths() -> None:
    policy = rules(allow=["search:src/**"])
    assert ruling(policy, opencode("grep", ["src/x"], pattern="src/x")) is None
    assert ruling(policy, opencode("grep", ["x"], pattern="x", path="/workspace/src/y")) == "allow"
    assert ruling(policy, droid("Glob", folder="src/y", patterns=["../../etc/*"])) is None
    assert ruling(policy, droid("LS", directory_path="/workspace/src/y")) == "allow"


def test_a_denied_path_that_is_not_known_is_not_allowed() -> None:
    policy = rules(allow=["edit"], deny=["edit:secret/**"], otherwise="ask")
    assert ruling(policy, acp("edit", "Write")) is None
    assert ruling(policy, droid("Edit", file_path="a")) == "allow"
    everywhere = rules(allow=["find_order"], deny=["*:*.pem"])
    assert ruling(everywhere, droid("find_order", order="A-17")) == "allow"


def test_a_star_allows_everything_that_is_not_denied() -> None:
    policy = rules(allow=["*"], deny=["web*"])
    for request in (acp(None, "?"), scripted("may I?"), droid("Execute", command="x > y")):
        assert ruling(policy, request) == "allow"
    assert ruling(policy, droid("FetchUrl", url="https://x.example")) == "deny"
    assert ruling(policy, acp("execute", "webpack", rawInput={"command": "webpack"})) == "allow"


def test_a_ruling_names_the_rule() -> None:
    assert SHOP.ruling(scripted("read"), workspace=WORKSPACE).reason == "allow read"
    denied = SHOP.ruling(scripted("websearch: x"), workspace=WORKSPACE)
    assert denied.reason == "deny websearch"
    assert "allow=['read'," in repr(SHOP)


# ------------------------------------------------------------------ otherwise


def test_the_rest_is_denied_left_or_decided_by_a_function() -> None:
    request = scripted("may I?")
    seen: list[tuple[str, bool]] = []

    def sync(asked: PermissionRequest) -> bool:
        seen.append((asked.text, threading.current_thread() is threading.main_thread()))
        return True

    async def later(asked: PermissionRequest) -> str:
        await anyio.lowlevel.checkpoint()
        return "deny" if asked.text else "allow"

    class Asker:
        async def __call__(self, asked: PermissionRequest) -> None:
            assert asked is request

    assert decide(rules(), request) == "deny"
    assert decide(rules(otherwise="ask"), request) is None
    assert decide(rules(otherwise=sync), request) == "allow"
    assert seen == [("may I?", False)]
    assert decide(rules(otherwise=later), request) == "deny"
    assert decide(rules(otherwise=partial(later)), request) == "deny"
    assert decide(rules(otherwise=Asker()), request) is None
    assert decide(rules(allow=["*"], otherwise=sync), request) == "allow"
    assert len(seen) == 1


def test_an_answer_that_is_no_decision_is_an_error() -> None:
    with pytest.raises(InvalidParameter, match="returned 'yes'"):
        decide(rules(otherwise=lambda _: "yes"), scripted("may I?"))


def test_a_policy_is_rules_or_a_function() -> None:
    assert policy_of(None) is None
    assert policy_of(SHOP) is SHOP
    asking = policy_of(lambda _: "allow")
    assert asking is not None
    assert decide(asking, scripted("x")) == "allow"
    with pytest.raises(InvalidParameter, match="on_permission is 'allow'"):
        policy_of("allow")


# ------------------------------------------------------------------ bad rules


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"allow": "read"}, "allow"),
        ({"allow": 3}, "allow"),
        ({"allow": ["read", 3]}, "allow[1]"),
        ({"deny": [""]}, "deny[0]"),
        ({"deny": [":src"]}, "deny[0]"),
        ({"deny": ["edit:"]}, "deny[0]"),
        ({"otherwise": "maybe"}, "otherwise"),
    ],
)
def test_a_bad_rule_is_refused_with_its_place(given_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        rules(**given_)
    assert caught.value.field == field
    assert caught.value.hint


@pytest.mark.parametrize(
    ("given_", "named"),
    [
        ({"allow": ["webfetch"], "deny": ["web*"]}, "webfetch can never decide: deny web"),
        ({"allow": ["bash:git *"], "deny": ["execute"]}, "deny execute comes first"),
        ({"allow": ["edit:src/a/**"], "deny": ["edit:src/**"]}, "deny edit:src/"),
        ({"allow": ["edit:../x"]}, "a path with .. is never allowed"),
        ({"allow": ["edit:src\\x"]}, "paths have /"),
        ({"allow": ["read:~/x"]}, "write an absolute path"),
        ({"allow": ["read", "read:src/**"]}, r"allow\[1\]: read:src/\*\* can never decide"),
        ({"deny": ["read:src/**", "read"]}, r"deny\[0\]: read:src/\*\* can never decide"),
        ({"allow": ["read", "read"]}, r"allow\[1\]: read can never"),
    ],
)
def test_a_rule_that_can_never_decide_warns(given_: dict[str, Any], named: str) -> None:
    with pytest.warns(UnreachableRule, match=named):
        rules(**given_)


def test_rules_that_can_decide_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rules(allow=["read", "edit:src/**", "bash:git *"], deny=["web*", "edit:src/secret/**"])
        rules(allow=["*"], deny=["edit:*.pem", "read:a/*", "read:a/b/**"])


# ------------------------------------------------------------------ properties

NAMES = st.sampled_from(["read", "edit", "bash", "web", "find_order", "Execute", "*", "e*"])
PIECES = st.text("ab./*~$\\;&|<>(){} \n`-", max_size=12)
PATTERNS = st.one_of(NAMES, st.tuples(NAMES, PIECES.filter(str.strip)).map(":".join))
REQUESTS = st.one_of(
    st.text(max_size=20).map(scripted),
    st.tuples(NAMES, PIECES).map(lambda each: scripted(": ".join(each))),
    st.builds(lambda n, p: opencode(n, [p]), NAMES, PIECES),
    st.builds(lambda n, p: opencode(n, [p], filepath=p, command=p), NAMES, PIECES),
    st.builds(lambda n, p: droid(n, file_path=p, command=p, url=p), NAMES, PIECES),
    st.builds(
        lambda k, t, p: acp(k, t, rawInput={"path": p}, locations=[{"path": p}]),
        st.sampled_from(["read", "edit", "execute", "fetch", "other", None]),
        st.text(max_size=8),
        PIECES,
    ),
)


def quiet(**given_: Any) -> PermissionRules:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreachableRule)
        return rules(**given_)


@given(st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=3), REQUESTS)
def test_denying_always_wins(
    allow: list[str], deny: list[str], request_: PermissionRequest
) -> None:
    both = ruling(quiet(allow=allow, deny=deny), request_)
    if ruling(quiet(deny=deny), request_) == "deny":
        assert both == "deny"
    if both == "allow":
        assert ruling(quiet(allow=allow), request_) == "allow"


@given(st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=3), PATTERNS, REQUESTS)
def test_another_denying_rule_never_allows_more(
    allow: list[str], deny: list[str], more: str, request_: PermissionRequest
) -> None:
    before = ruling(quiet(allow=allow, deny=deny), request_)
    after = ruling(quiet(allow=allow, deny=[*deny, more]), request_)
    assert after == before or after in {"deny", None}
    assert before != "deny" or after == "deny"


PARTS = st.lists(
    st.sampled_from(["src", "..", ".", "", "a", "etc", "%2e%2e", "..a", "a..", "..\\", "~"]),
    max_size=6,
)


@given(PARTS, st.sampled_from(["", "/", "/workspace/", "file://", "file:///workspace/", "//"]))
@example(["src", "..", "etc"], "")
def test_a_path_that_leads_out_is_never_allowed(parts: list[str], root: str) -> None:
    policy = rules(allow=["edit:src/**"])
    path = root + "/".join(parts)
    for request in paths_of_every_agent(path):
        if ruling(policy, request) == "allow":
            plain = path.removeprefix("file://").removeprefix("/workspace")
            steps = [part for part in plain.split("/") if part not in {"", "."}]
            assert ".." not in steps
            assert steps[0] == "src"
            assert len(steps) > 1


@given(
    st.lists(
        st.sampled_from(["git status", "ls", "rm x", "x > y", "$(rm x)", "`rm x`", "(rm x)"]),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["; ", " && ", " || ", " | ", " & ", "\n", ";", "\r\n"]),
)
def test_a_chain_is_allowed_only_if_each_step_is(steps: list[str], between: str) -> None:
    policy = rules(allow=["bash:git *", "bash:ls"])
    for request in commands_of_every_agent(between.join(steps)):
        allowed = ruling(policy, request) == "allow"
        assert allowed == (set(steps) <= {"git status", "ls"})


@pytest.mark.timeout(20)
def test_a_hostile_text_does_not_make_matching_slow() -> None:
    policy = quiet(allow=["bash:*a*a*a*a*a*b", "edit:**/a/**/a/**/a/*b"], deny=["bash:*x*x*x*x*y"])
    for request in (*commands_of_every_agent("a" * 300), *paths_of_every_agent("a/" * 150)):
        assert ruling(policy, request) is None
