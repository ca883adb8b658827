"""What OpenCode is started with behind the guard, and the rules of a repository that it reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oubliette.incontainer.bridges.opencode.guard import LARGEST, Guarded, with_rules


def read(guarded: Guarded) -> dict:
    assert guarded.fd is not None
    with os.fdopen(os.dup(guarded.fd)) as file:
        return json.load(file)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": "/bin",
        "HOME": str(tmp_path / "home"),
        "OUBLIETTE_WORKSPACE": str(tmp_path),
        "OUBLIETTE_PAIRING_SECRET": "pairing",
        "OUBLIETTE_API_KEY": "minted",
        "OPENCODE_CONFIG_CONTENT": json.dumps({"provider": "model-key"}),
    }


def test_no_secret_is_in_the_environment_of_opencode(environ: dict[str, str]) -> None:
    guarded = Guarded(environ, {"OPENCODE_SERVER_PASSWORD": "password"})
    told = "\n".join(f"{name}={value}" for name, value in guarded.environ.items())
    for secret in ("pairing", "minted", "model-key", "password"):
        assert secret not in told
    given = read(guarded)
    assert given["listed"] == {"OPENCODE_SERVER_PASSWORD": "password"}
    assert json.loads(given["secrets"]["OPENCODE_CONFIG_CONTENT"])["provider"] == "model-key"
    assert guarded.inherited == (guarded.fd,)


def test_without_the_guard_there_are_no_settings_to_start_with(environ: dict[str, str]) -> None:
    guarded = Guarded(environ, {})
    with pytest.raises(ValueError):
        json.loads(guarded.environ["OPENCODE_CONFIG_CONTENT"])
    assert not guarded.taken
    os.ftruncate(guarded.inherited[0], 0)  # as the guard does
    assert guarded.taken


def test_the_script_is_written_anew_whatever_lies_in_its_place(environ: dict[str, str]) -> None:
    script = Path(Guarded(environ, {}).environ["BUN_INSPECT_PRELOAD"])
    original = script.read_text()
    victim = Path(environ["HOME"]) / "victim"
    victim.write_text("precious")
    script.unlink()
    script.symlink_to(victim)
    assert Path(Guarded(environ, {}).environ["BUN_INSPECT_PRELOAD"]).read_text() == original
    assert not script.is_symlink()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["OPENCODE_CONFIG_DIR", "XDG_CONFIG_HOME"])
def test_a_folder_that_the_servers_configuration_names_counts(
    environ: dict[str, str], name: str
) -> None:
    given = read(Guarded({**environ, name: "/opt/settings/"}, {}))
    assert given["trusted"] == ["/etc/opencode", "/opt/settings"]
    assert given["settings"] is None
    assert read(Guarded(environ, {}))["settings"].startswith(environ["HOME"])


def test_with_a_trusted_repository_there_is_no_guard(environ: dict[str, str]) -> None:
    guarded = Guarded({**environ, "OUBLIETTE_TRUST_REPOSITORY": "1"}, {"PASSWORD": "p"})
    assert guarded.taken
    assert guarded.environ["PASSWORD"] == "p"
    assert guarded.environ["OPENCODE_CONFIG_CONTENT"] == environ["OPENCODE_CONFIG_CONTENT"]
    assert not {"BUN_INSPECT_PRELOAD", "OUBLIETTE_GUARD", "OUBLIETTE_PAIRING_SECRET"} & set(
        guarded.environ
    )


# ------------------------------------------------------------------ rules


def rules(workspace: Path) -> tuple[list[str], list[str]]:
    content, notes = with_rules('{"instructions": ["mine.md"]}', str(workspace))
    first, *named = json.loads(content)["instructions"]
    assert first == "mine.md"
    return named, notes


def test_the_first_of_the_files_that_opencode_knows_is_named(tmp_path: Path) -> None:
    assert rules(tmp_path) == ([str(tmp_path / "AGENTS.md")], [])  # may be written later
    for name in ("CONTEXT.md", "CLAUDE.md", "AGENTS.md"):
        (tmp_path / name).write_text("rules")
        assert rules(tmp_path) == ([str(tmp_path / name)], [])


def test_a_link_within_the_workspace_is_followed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "rules.md").write_text("rules")
    (tmp_path / "AGENTS.md").symlink_to("docs/rules.md")
    assert rules(tmp_path) == ([str(tmp_path / "docs" / "rules.md")], [])


def test_what_leads_out_of_the_workspace_or_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("secret")
    file = workspace / "AGENTS.md"
    for make, reason in (
        (lambda: file.symlink_to("../secret"), "leads out of the workspace"),
        (lambda: file.symlink_to("/proc/self/environ"), "leads out of the workspace"),
        (lambda: file.symlink_to("nothing"), "No such file"),
        (lambda: file.symlink_to("AGENTS.md"), ""),
        (file.mkdir, "no plain file"),
        (lambda: os.mkfifo(file), "no plain file"),
        (lambda: file.write_bytes(b"x" * (LARGEST + 1)), "bytes, and at most"),
    ):
        make()
        named, (note,) = rules(workspace)
        assert named == []
        assert note.startswith("AGENTS.md is not read: ")
        assert reason in note
        file.rmdir() if file.is_dir() else file.unlink()


def test_rules_of_another_name_count_where_the_first_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").symlink_to("/etc/passwd")
    (tmp_path / "CLAUDE.md").write_text("rules")
    named, notes = rules(tmp_path)
    assert named == [str(tmp_path / "CLAUDE.md")]
    assert len(notes) == 1
