"""`oubliette run` in a checkout: as somebody uses it who has installed it a minute ago."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
FIX = 'exec sed -i "s/a - b/a + b/" calc.py\nsay Fixed the subtraction.'
WRONG = "def add(a, b):\n    return a - b\n"


class Desk:
    """A user's home and checkout, and the commands that are given there."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.checkout = base / "shop"
        self.checkout.mkdir()
        bubblewrap = requirements.missing("bubblewrap") is None
        self.environment = {
            **{name: text for name, text in os.environ.items() if "OUBLIETTE_" not in name},
            "PYTHONPATH": str(ROOT),
            "OUBLIETTE_HOME": str(self.home),
            "OUBLIETTE_SERVER__PORT": "0",
            "OUBLIETTE_SERVER__ON_STOP": "end",
            "OUBLIETTE_CONTAINERS__RUNTIME": "process",
            "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(base / "run"),
            "OUBLIETTE_PROCESS__SANDBOX": "bubblewrap" if bubblewrap else "best-effort",
            "OUBLIETTE_AGENTS__DEFAULT": "scripted",
            "NO_COLOR": "1",
        }
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "A User")
        self.git("config", "user.email", "user@example.com")
        self.commit(WRONG)

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", self.checkout, *words], capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self, text: str) -> None:
        (self.checkout / "calc.py").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", "A commit")

    def run(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oubliette", *words],
            cwd=folder or self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def answer(self, *words: str) -> Any:
        done = self.run(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return self.answer("session", "list")["sessions"]

    def terminal(self, *words: str) -> Terminal:
        return Terminal(
            [sys.executable, "-m", "oubliette", *words], self.checkout, self.environment
        )


class Terminal:
    """A command with a person at its terminal."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._screen, theirs = pty.openpty()
        self.seen = ""
        self._shown = 0
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._screen)

    def until(self, text: str) -> None:
        """Read on until a text is on the screen, after what was waited for last."""
        deadline = time.monotonic() + SECONDS
        while (place := self.seen.find(text, self._shown)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} in:\n{self.seen}"
            if select.select([self._screen], [], [], left)[0]:
                try:
                    self.seen += os.read(self._screen, 65536).decode(errors="replace")
                except OSError as error:  # the program has ended
                    raise AssertionError(f"no {text!r} in:\n{self.seen}") from error
        self._shown = place + len(text)

    def until_said(self, text: str) -> None:
        """Read on until the agent says what the task has, which is on the screen before."""
        self.until(f"say {text}")
        self.until(text)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Read the rest; the exit code."""
        with contextlib.suppress(OSError):
            while piece := os.read(self._screen, 65536):
                self.seen += piece.decode(errors="replace")
        return self.process.wait(SECONDS)


@pytest.fixture
def desk() -> Iterator[Desk]:
    base = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    base.chmod(0o711)
    made = Desk(base)
    try:
        yield made
    finally:
        made.run("session", "end", "--all")
        made.run("stop")
        named = [each for each in psutil.process_iter(["cmdline"]) if str(base) in str(each.info)]
        left = psutil.wait_procs(named, 20)[1]
        shutil.rmtree(base, ignore_errors=True)
        assert not left


def test_a_task_in_a_checkout_ends_with_the_diff_and_touches_nothing(desk: Desk) -> None:
    """Steps: run; the diff; the checkout; take it; a second task on a new commit; drop it."""
    index = desk.checkout / ".git" / "index"
    written = index.read_bytes()
    os.utime(desk.checkout / "calc.py", (1, 1))  # what makes git renew its index
    first = desk.run("run", FIX)
    assert first.returncode == 0, first.stderr
    assert "No server runs" in first.stderr
    assert ", autonomy not given: it depends on the agent what it asks for.\n" in first.stderr
    assert first.stdout == "Fixed the subtraction.\n"  # what a pipe gets
    assert "-    return a - b\n+    return a + b\n" in first.stderr
    assert (desk.checkout / "calc.py").read_text() == WRONG
    assert index.read_bytes() == written
    assert desk.git("status", "--porcelain") == ""
    assert desk.git("branch", "--format=%(refname:short)").split() == ["main"]

    (session,) = desk.sessions
    session_id = session["session_id"]
    assert f"take it   oubliette apply {session_id}" in first.stderr
    assert desk.run("apply", session_id).returncode == 0
    assert (desk.checkout / "calc.py").read_text() == WRONG.replace("-", "+")

    desk.commit("def add(a, b):\n    return b + a\n")
    (desk.checkout / "new.py").write_text("# not committed\n")
    second = desk.run("run", "exec cat calc.py\nexec ls")
    assert second.returncode == 0, second.stderr
    assert "No server runs" not in second.stderr
    assert "1 file has uncommitted changes" in second.stderr
    assert "return b + a" in second.stderr
    assert "new.py" not in second.stdout
    assert "nothing has changed" in second.stderr
    assert "take it" not in second.stderr
    assert len(desk.answer("project", "list")["projects"]) == 1

    latest = max(desk.sessions, key=lambda each: each["created_at"])
    assert desk.run("drop", latest["session_id"]).returncode == 0
    assert desk.run("session", "logs", latest["session_id"]).returncode == 0
    workspaces = desk.answer("workspace", "list", latest["project_id"])["workspaces"]
    assert latest["workspace_id"] not in {each["id"] for each in workspaces}
    keys = desk.answer("token", "list")["tokens"]
    assert [each["name"] for each in keys if each["revoked_at"] is None] == []


@pytest.mark.whole
def test_uncommitted_changes_come_along_where_they_are_asked_for(desk: Desk) -> None:
    (desk.checkout / "new.py").write_text("# not committed\n")
    done = desk.run("run", "--dirty", "exec cat new.py")
    assert done.returncode == 0, done.stderr
    assert "# not committed" in done.stdout


@pytest.mark.whole
def test_the_agent_asks_the_person_at_the_terminal(desk: Desk) -> None:
    with desk.terminal("run", "ask restart the shop\nask sell the shop") as terminal:
        terminal.until("The agent asks: restart the shop")
        terminal.until("[y/N]")
        terminal.type("y\n")
        terminal.until("The agent asks: sell the shop")
        terminal.type("\n")
        assert terminal.ended() == 0, terminal.seen
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", terminal.seen).split()
    assert "allow" in words
    assert "deny" in words


@pytest.mark.whole
def test_ctrl_c_leaves_the_session_running(desk: Desk) -> None:
    with desk.terminal("run", "say I begin\nsleep 300") as terminal:
        terminal.until_said("I begin")
        terminal.interrupt()
        terminal.until("Detached; it runs on.")
        assert terminal.ended() == 130
    (session,) = desk.sessions
    assert session["status"] == "running"
    assert f"oubliette attach {session['session_id']}" in terminal.seen
    assert f"oubliette session interrupt {session['session_id']}" in terminal.seen


@pytest.mark.whole
def test_a_second_ctrl_c_interrupts_the_turn(desk: Desk) -> None:
    with desk.terminal("run", f"{FIX}\nsleep 300") as terminal:
        terminal.until_said("Fixed the subtraction.")
        terminal.interrupt()
        terminal.until("Detached; it runs on.")
        terminal.interrupt()
        terminal.until("Interrupting the turn")
        assert terminal.ended() == 130
    assert "The turn was interrupted." in terminal.seen
    assert "+    return a + b" in terminal.seen
    (session,) = desk.sessions
    assert session["status"] == "idle"
    assert f"take it   oubliette apply {session['session_id']}" in terminal.seen


@pytest.mark.whole
@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_leaves_a_session_that_is_followed_and_a_second_one_interrupts_it(
    desk: Desk, again: bool
) -> None:
    """Steps: a session that rests; another one is followed to where it sleeps; Ctrl-C."""
    assert desk.run("run", "say hello").returncode == 0
    (first,) = desk.sessions
    words = ["session", "spawn", first["project_id"], "say I begin\nsleep 300", "--follow"]
    with desk.terminal(*words) as terminal:
        terminal.until_said("I begin")
        terminal.interrupt()
        terminal.until("Detached; it runs on.")
        if again:
            terminal.interrupt()
            terminal.until("Interrupting the turn")
        assert terminal.ended() == (1 if again else 130), terminal.seen
    (session,) = (each for each in desk.sessions if each["session_id"] != first["session_id"])
    assert session["status"] == ("idle" if again else "running")
    come_back = f"oubliette attach {session['session_id']}"
    assert (come_back in terminal.seen) is not again


@pytest.mark.whole
def test_a_session_is_attached_to_and_left(desk: Desk) -> None:
    """Steps: a task that asks, and goes on alone; a second terminal answers; a pipe."""
    with desk.terminal("run", "ask sell the shop", "--autonomy", "ask") as terminal:
        terminal.until("Allow it?")
        terminal.interrupt()
        assert terminal.ended() == 130
    (session,) = desk.sessions
    with desk.terminal("attach", session["session_id"]) as terminal:
        terminal.until("The agent asks: sell the shop")
        terminal.type("y\r")
        terminal.until("done")
        terminal.type("\x1d")
        assert terminal.ended() == 0, terminal.seen
    assert f"oubliette attach {session['session_id']}" in terminal.seen
    assert {each["revoked_at"] is None for each in desk.answer("token", "list")["tokens"]} == {
        False
    }
    assert desk.run("session", "end", session["session_id"]).returncode == 0
    done = desk.run("attach", session["session_id"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "> ask sell the shop",
        "? The agent asks: sell the shop",
        "allowed by operator",
    ]


@pytest.mark.whole
def test_a_third_ctrl_c_ends_the_command_before_the_turn_is_interrupted(desk: Desk) -> None:
    # A command that takes its time to end keeps the turn from being interrupted at once.
    stubborn = "say I begin\nexec trap '' TERM INT; sleep 300"
    with desk.terminal("run", stubborn) as terminal:
        terminal.until_said("I begin")
        terminal.interrupt()
        terminal.until("Detached; it runs on.")
        terminal.interrupt()
        terminal.until("Interrupting the turn")
        terminal.interrupt()
        assert terminal.ended() == 130
    (session,) = desk.sessions
    assert f"oubliette attach {session['session_id']}" in terminal.seen


@pytest.mark.whole
def test_a_task_for_no_model_says_so_and_changes_are_taken_as_a_patch(desk: Desk) -> None:
    """Steps: run on a repository from elsewhere, without a configured agent; a turn that fails."""
    task = f"{FIX}\nfail I am at a loss"
    done = desk.run("run", task, "--repo", str(desk.checkout), folder=desk.home.parent)
    assert done.returncode == 1
    (session,) = desk.sessions
    session_id = session["session_id"]
    assert f"{session_id} (scripted) works in" in done.stderr
    assert "No agent with a model is configured" in done.stderr
    assert "oubliette doctor" in done.stderr
    assert "The turn has failed." in done.stderr
    assert f"take it   oubliette export {session_id} changes.patch" in done.stderr
    repeated = desk.run("run", "Fix the failing tests.\n\nAll of them.")
    assert (repeated.returncode, "understood nothing" in repeated.stderr) == (1, True)
    named = desk.run("run", "say hello", "--agent", "scripted")
    assert "No agent with a model" not in named.stderr


@pytest.mark.whole
@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ("off", "asks nothing, the container is the boundary"),
        ("medium", "some actions need a permission"),
    ],
)
def test_the_first_line_says_which_autonomy_holds(desk: Desk, given: str, meaning: str) -> None:
    done = desk.run("run", "say hello", "--autonomy", given)
    (line,) = (each for each in done.stderr.splitlines() if " works in workspace " in each)
    assert line.endswith(f", autonomy {given}: {meaning}.")
    assert desk.sessions[0]["autonomy"] == given


@pytest.mark.whole
def test_a_program_gets_one_document(desk: Desk) -> None:
    """Steps: a turn that is completed; one that fails; one that is left running."""
    done = desk.run("run", FIX, "--autonomy", "off", "-o", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (session,) = desk.sessions
    same = ("session_id", "project_id", "workspace_id", "agent", "model", "autonomy")
    assert {name: answer.pop(name) for name in same} == {name: session[name] for name in same}
    assert answer.pop("usage")["cost_usd"] == session["usage"]["cost_usd"]
    changes = {"files": 1, "insertions": 1, "deletions": 1, "binary_files": 0}
    text = "Fixed the subtraction."
    assert answer == {"status": "completed", "final_text": text, "changes": changes}
    assert f"{text}\n" in done.stderr
    assert "+    return a + b\n" in done.stderr

    failed = desk.run("run", "fail I am at a loss", "-o", "json")
    assert failed.returncode == 1
    answer = json.loads(failed.stdout)
    assert (answer["status"], answer["autonomy"]) == ("failed", None)
    assert "I am at a loss" in answer["final_text"]
    assert answer["changes"]["files"] == 0

    with desk.terminal("run", "say I begin\nsleep 300", "-o", "json") as terminal:
        terminal.until_said("I begin")
        terminal.interrupt()
        assert terminal.ended() == 130
    answer = json.loads(terminal.seen.strip().splitlines()[-1])
    assert (answer["status"], answer["final_text"], answer["changes"]) == ("running", None, None)


@pytest.mark.whole
def test_a_result_by_a_schema_is_json_and_made_with_a_tool_of_the_user(desk: Desk) -> None:
    """Steps: a tool and a schema, from another folder; a result that is not valid; its events."""
    (desk.home.parent / "shop_tools.py").write_text(
        'def price(item: str) -> int:\n    """Return the price.\n\n    Args:\n        item: What."""\n'
        "    return len(item)\n"
    )
    schema = desk.home.parent / "bill.json"
    schema.write_text('{"type": "object", "required": ["sum"]}')
    task = 'call program_price {"item": "tea"}\nsay {"sum": 3}'
    words = ["--tool", "python:shop_tools.price", "--returns", str(schema), "--quiet"]
    done = desk.run("run", "shop", task, *words, folder=desk.home.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"sum": 3}\n', "")
    assert desk.sessions[0]["title"] == 'call program_price {"item": "tea"}'

    done = desk.run("run", "say []", "--returns", str(schema))
    assert (done.returncode, done.stdout) == (1, "")
    assert "the agent gave no bill in 3 answers" in done.stderr
    assert "drop it   oubliette drop" in done.stderr

    done = desk.run("run", "say hello", "--events")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["type"] == "status"
    assert [each["final_text"] for each in events if each["type"] == "completion"] == ["hello"]


@pytest.mark.whole
def test_a_session_is_gone_on_with_and_left_where_it_asks_and_nothing_can_answer(
    desk: Desk,
) -> None:
    """Steps: a first turn; on with it; by its id; a question; a limit of the cost."""
    assert desk.run("run", "remember ticket 4711").returncode == 0
    (first,) = desk.sessions
    done = desk.run("run", "recall ticket", "--continue")
    assert (done.returncode, done.stdout) == (0, "4711\n"), done.stderr
    done = desk.run("run", "ask sell the shop", "--session", first["session_id"][-6:])
    assert done.returncode == 9, done.stderr
    (session,) = desk.sessions
    assert (session["status"], session["turn_count"]) == ("running", 3)
    assert f"oubliette permit {session['session_id']}" in done.stderr
    assert desk.run("permit", session["session_id"]).returncode == 0

    done = desk.run(
        "run", 'usage 5 9\ncall session_message {"message": "say hello"}', "--max-cost", "1"
    )
    assert "max_cost_usd" in done.stdout, done.stderr


@pytest.mark.whole
def test_what_cannot_be_dropped_stays_as_it_is(desk: Desk) -> None:
    """Steps: a project by a run; a session in its default workspace; drop it."""
    assert desk.run("run", "say hello").returncode == 0
    spawned = desk.answer("session", "spawn", desk.sessions[0]["project_id"], "say hello", "--new")
    done = desk.run("drop", spawned["session_id"])
    assert done.returncode == 1
    assert "the default workspace of project shop" in done.stderr
    assert f"oubliette session end {spawned['session_id']}" in done.stderr
    assert desk.answer("session", "show", spawned["session_id"])["ended_at"] is None


def test_outside_of_a_checkout_it_says_what_to_give(desk: Desk) -> None:
    done = desk.run("run", "say hello", folder=desk.checkout.parent)
    assert done.returncode == 2
    assert "is not in a checkout of git" in done.stderr
    assert "--repo" in done.stderr
    assert not desk.home.exists()


@pytest.mark.whole
def test_a_checkout_without_a_branch_says_what_to_do(desk: Desk) -> None:
    desk.git("switch", "-q", "--detach")
    detached = desk.run("run", "say hello")
    assert detached.returncode == 2
    assert "no branch (detached HEAD)" in detached.stderr
    assert "git switch -c NAME" in detached.stderr

    desk.git("switch", "-q", "--orphan", "fresh")
    empty = desk.run("run", "say hello")
    assert empty.returncode == 2
    assert "has no commit yet" in empty.stderr
    assert not desk.home.exists()


@pytest.mark.whole
def test_a_checkout_of_another_user_is_not_called_none(desk: Desk) -> None:
    desk.environment["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    done = desk.run("run", "say hello")
    assert done.returncode == 2
    assert "belongs to another user" in done.stderr
    assert "safe.directory" in done.stderr
    assert not desk.home.exists()


@pytest.mark.whole
def test_a_server_that_cannot_start_is_an_error_with_the_reason(desk: Desk) -> None:
    desk.environment["OUBLIETTE_AGENTS__DEFAULT"] = "no-such-agent"
    done = desk.run("run", "say hello")
    assert done.returncode == 2  # as serve has it
    assert "no-such-agent" in done.stderr
    assert f"its log is {desk.home / 'server.log'}" in done.stderr


@pytest.mark.whole
def test_two_runs_that_begin_together_use_one_server(desk: Desk) -> None:
    other = desk.checkout.with_name("other")
    shutil.copytree(desk.checkout, other)
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(desk.run, "run", "say hello", folder=each)
            for each in (desk.checkout, other)
        ]
        done = [task.result(2 * SECONDS) for task in tasks]
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    assert len(desk.sessions) == 2


@pytest.mark.whole
def test_a_server_without_snapshots_says_why_there_is_no_diff(desk: Desk) -> None:
    desk.environment["OUBLIETTE_SNAPSHOTS__MODE"] = "off"
    done = desk.run("run", FIX)
    assert done.returncode == 0, done.stderr
    assert "No diff: " in done.stderr
    assert "snapshots.mode" in done.stderr
