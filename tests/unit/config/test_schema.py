"""The configuration: one file, every key also in the environment, mistakes told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.config import json_schema, loader
from oubliette.config import schema as config_schema
from oubliette.config.container_options import given as given_in
from oubliette.config.loader import find_home, load
from oubliette.config.schema import Config
from oubliette.config.sections import SECTIONS_OF_PACKAGES, SECTIONS_OF_TABLES
from oubliette.errors import ConfigError

NOTHING: dict[str, str] = {}


def file(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / config_schema.FILE_NAME).write_text(text, encoding="utf-8")
    return home


def refusal(home: Path, environ: dict[str, str] | None = None, **overrides: object) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load(home, environ or NOTHING, overrides)
    return refused.value


# ---------------------------------------------------------------------- where things come from


def test_without_a_file_everything_is_the_default(tmp_path: Path) -> None:
    loaded = load(tmp_path, NOTHING)
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}


def test_the_file_then_the_environment_then_the_command_line(tmp_path: Path) -> None:
    home = file(tmp_path, '[server]\nhost = "a"\nport = 1\non_stop = "keep"\n')
    environ = {"OUBLIETTE_SERVER__PORT": "2", "OUBLIETTE_SERVER__HOST": "b"}
    loaded = load(home, environ, {"server.host": "c"})
    assert (loaded.config.server.host, loaded.config.server.port) == ("c", 2)
    assert loaded.config.server.on_stop == "keep"
    assert loaded.sources["server.host"] == "command line"
    assert loaded.sources["server.port"] == "environment (OUBLIETTE_SERVER__PORT)"
    assert loaded.sources["server.on_stop"] == str(home / config_schema.FILE_NAME)
    assert loaded.sources["trees.max_depth"] == "default"


@pytest.mark.parametrize("key", sorted(loader.schema_keys()))
def test_every_key_can_be_set_in_the_environment(tmp_path: Path, key: str) -> None:
    section, _, name = key.partition(".")
    value: Any = loader.schema_keys()[key]
    if key == "containers.cap_add":
        text, wanted = "CHOWN,KILL", ("CHOWN", "KILL")
    elif key == "containers.build_args":
        text, wanted = "A=1,B=", ("A=1", "B=")
    elif key == "cluster.labels":
        text, wanted = "disk=fast,gpu=", ("disk=fast", "gpu=")
    elif key == "agents.memory":
        text, wanted = "opencode=700,mine=50", ("opencode=700", "mine=50")
    elif key == "repositories.protocols":
        text, wanted = "http, ssh", ("http", "ssh")
    elif key == "repositories.folders":
        text, wanted = "/a, ~/b", ("/a", "~/b")
    elif key == "repositories.credentials":
        text, wanted = "git.example=env:A", ("git.example=env:A",)
    elif isinstance(value, tuple):
        text, wanted = "a,b", ("a", "b")
    elif isinstance(value, bool):
        text, wanted = str(not value).lower(), not value
    elif isinstance(value, int | float):
        text, wanted = str(value + 1), value + 1
    elif key == "containers.uid":
        text, wanted = "5", 5
    elif key == "ports.base_url":
        text, wanted = "https://ports.example.org", "https://ports.example.org"
    elif key == "store.database":
        text, wanted = "postgresql://db/name", "postgresql://db/name"
    elif key == "cluster.snapshots":
        text, wanted = "/x", "/x"
    elif key == "snapshots.mode":
        text, wanted = "off", "off"
    elif key == "containers.ipc":
        text, wanted = "host", "host"
    elif key == "acp.hears_tool_changes":
        text, wanted = "false", False
    elif ".price_" in key:
        text, wanted = "1.5", 1.5
    elif key.endswith(".api_key"):
        text, wanted = "file:/x", "file:/x"
    elif key.endswith(".sockets"):
        text, wanted = "bridge", "bridge"
    elif value is None:
        text, wanted = "/x", "/x"
    elif key == "droid.provider":
        text, wanted = "openai", "openai"
    elif value in {"keep", "process", "bubblewrap"} or key == "process.network":
        text, wanted = {
            "keep": ("end", "end"),
            "process": ("power", "power"),
            "bubblewrap": ("best-effort", "best-effort"),
            "auto": ("none", "none"),
        }[value]
    else:
        text, wanted = "x", "x"
    loaded = load(tmp_path, {f"OUBLIETTE_{section}__{name}".upper(): text})
    assert getattr(getattr(loaded.config, section), name) == wanted


def test_a_list_in_the_environment_may_be_json(tmp_path: Path) -> None:
    environ = {"OUBLIETTE_SERVER__ALLOWED_HOSTS": '["a:*", "b"]'}
    assert load(tmp_path, environ).config.server.allowed_hosts == ("a:*", "b")
    environ = {"OUBLIETTE_SERVER__ALLOWED_HOSTS": " a:* , b ,"}
    assert load(tmp_path, environ).config.server.allowed_hosts == ("a:*", "b")


def test_other_variables_are_none_of_its_business(tmp_path: Path) -> None:
    load(tmp_path, {"OUBLIETTE_HOME": "/x", "OUBLIETTE_FAILPOINTS": "", "HOME": "/y", "A__B": "1"})


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[server]\nprot = 1", "there is no key server.prot", "did you mean server.port?"),
        ("[sever]\nport = 1", "there is no section sever", "did you mean server?"),
        ("xyzzy = 1", "there is no section xyzzy", "oubliette config schema lists the keys"),
        ("[trees]\non_stop = 'keep'", "there is no key trees.on_stop", "server.on_stop?"),
        ("server = 1", "server must be a table, [server]", None),
        ("[server]\nport = '8080'", "server.port: expected int, got str (from ", "config schema"),
        ("[server]\nport = 70000", "server.port: expected int <= 65535 (from ", "config schema"),
        ("[server]\nport = true", "server.port: expected int, got bool (from ", "config schema"),
        ("[server]\nallowed_hosts = [1]", "server.allowed_hosts: expected str, got int", None),
        ("[server]\non_stop = 'die'", "server.on_stop: invalid enum value 'die'", None),
        ("[sessions]\nidle_timeout_seconds = 0", "sessions.idle_timeout_seconds: exp", None),
        ("[sessions]\nidle_timeout_seconds = nan", "sessions.idle_timeout_seconds: ", None),
        ("[server\n", "oubliette.toml: ", None),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    error = refusal(file(tmp_path, text))
    assert message in error.message
    assert config_schema.FILE_NAME in error.message
    if hint is not None:
        assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OUBLIETTE_SERVER__PROT", "1", "OUBLIETTE_SERVER__PROT: there is no key server.prot"),
        (
            "OUBLIETTE_SERVER__PORT",
            "x",
            "server.port: expected int, got str (from environment (OUB",
        ),
        ("OUBLIETTE_SERVER__PORT", "-1", "server.port: expected int >= 0 (from environment (OUBL"),
        ("OUBLIETTE_SERVER__ALLOWED_HOSTS", "[1", "server.allowed_hosts: expected array, got str"),
        ("OUBLIETTE_TREES__MAX_COST_USD", "nan", "trees.max_cost_usd: "),
        ("OUBLIETTE_TREES__MAX_COST_USD", "inf", "trees.max_cost_usd: "),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    assert refusal(tmp_path, {name: value}).message.startswith(message)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("agents.defualt", "did you mean agents.default?"),
        ("agent.default", "did you mean agents.default?"),
        ("agents_default", "did you mean agents.default?"),
    ],
)
def test_a_mistake_of_a_program_names_its_argument(tmp_path: Path, key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, NOTHING, {key: "scripted"}, origin="config")
    assert refused.value.message == f"config: there is no key {key}"
    assert refused.value.hint == hint


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    place = tmp_path / config_schema.FILE_NAME
    place.touch()
    assert refusal(place).message == f"{place / config_schema.FILE_NAME}: Not a directory"
    assert "--home" in (refusal(place).hint or "")
    place.unlink()
    os.mkfifo(place)
    assert refusal(tmp_path).message == f"{place}: is a pipe"
    place.unlink()
    place.mkdir()
    assert refusal(tmp_path).message == f"{place}: Is a directory"
    other = tmp_path / "other"
    other.mkdir()
    (other / config_schema.FILE_NAME).write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refusal(other).message
    (other / config_schema.FILE_NAME).write_text("[agents]\ndefault = scripted\n")
    assert "at line 2, column 11" in refusal(other).message
    assert 'texts are quoted: key = "text"' in str(refusal(other).hint)
    (other / config_schema.FILE_NAME).write_text(f"[server]\nport = {'9' * 5000}\n")
    assert "5000 digits" in refusal(other).message
    (other / config_schema.FILE_NAME).write_text(f"a = {'[' * 3000}{']' * 3000}\n")
    assert "nested too deeply" in refusal(other).message


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_value_in_the_environment_breaks_it_in_another_way(key: str, value: str) -> None:
    for name in (
        f"OUBLIETTE_{key}__{key}",
        "OUBLIETTE_SERVER__ALLOWED_HOSTS",
        "OUBLIETTE_SERVER__PORT",
    ):
        try:
            load(Path("/nonexistent"), {name: value})
        except ConfigError:
            pass


# ---------------------------------------------------------------------- schema


def test_the_schema_has_every_key_with_a_word_about_it() -> None:
    schema = json_schema.schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    keys = {
        f"{section}.{name}"
        for section, part in schema["properties"].items()
        for name in part.get("properties", ())
    }
    assert keys == set(loader.schema_keys())
    sections = dict(schema["properties"])
    for name in SECTIONS_OF_TABLES:
        part = sections.pop(name)
        assert part["additionalProperties"] is False
        assert part["description"]
        (tables,) = part["patternProperties"].values()
        if name in SECTIONS_OF_PACKAGES:
            assert tables == {"type": "object"}  # a package knows its keys
        else:
            sections[f"{name}.*"] = tables
    for section, part in sections.items():
        assert part["additionalProperties"] is False
        for name, field in part["properties"].items():
            assert field.get("description"), f"{section}.{name}"
    json.dumps(schema)


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    tree = msgspec.to_builtins(Config())
    lines = []
    for section, keys in tree.items():
        lines.append(f"[{section}]")
        lines += [
            f"{name} = {json.dumps(value)}" for name, value in keys.items() if value is not None
        ]
    assert load(file(tmp_path, "\n".join(lines)), NOTHING).config == Config()


# ---------------------------------------------------------------------- tables of containers


def test_types_and_projects_have_tables_of_the_options_that_they_change(tmp_path: Path) -> None:
    home = file(
        tmp_path,
        """
        [containers]
        memory_mb = 512
        [container_types.dev]
        memory_mb = 4096
        cap_add = ["NET_BIND_SERVICE"]
        [container_types.gpu-2]
        [project_containers."my shop.de"]
        network = "none"
        """,
    )
    environ = {
        "OUBLIETTE_CONTAINER_TYPES__DEV__PIDS": "77",
        "OUBLIETTE_CONTAINER_TYPES__DEV__CAP_ADD": "CHOWN, KILL",
        "OUBLIETTE_PROJECT_CONTAINERS__SHOP__OCI_RUNTIME": "runsc",
        "OUBLIETTE_PROJECT_CONTAINERS__SHOP__UID": "1234",
    }
    loaded = load(home, environ)
    types, projects = loaded.config.container_types, loaded.config.project_containers
    assert given_in(types["dev"]) == {"memory_mb": 4096, "cap_add": ("CHOWN", "KILL"), "pids": 77}
    assert given_in(types["gpu-2"]) == {}  # a type like `base`
    assert given_in(projects["my shop.de"]) == {"network": "none"}
    assert given_in(projects["shop"]) == {"oci_runtime": "runsc", "uid": 1234}
    assert loaded.sources["container_types.dev.memory_mb"] == str(home / config_schema.FILE_NAME)
    assert "DEV__PIDS" in loaded.sources["container_types.dev.pids"]
    assert loader.flat(loaded.config)["container_types.dev.pids"] == 77
    assert set(loaded.sources) == set(loader.flat(loaded.config))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "[container_types.dev]\nmemroy_mb = 1",
            "there is no key container_types.dev.memroy_mb",
            "did you mean container_types.dev.memory_mb?",
        ),
        (
            "[container_types.dev]\nidle_stop_seconds = 1",
            "there is no key container_types.dev.idle_stop_seconds",
            None,
        ),
        (
            "[container_types.dev]\nmemory_mb = 1",
            "container_types.dev.memory_mb: expected int >= 64 (from ",
            "config schema",
        ),
        (
            "[project_containers.x]\ncap_add = ['ROOT']",
            "project_containers.x.cap_add: invalid enum value 'ROOT' (from ",
            None,
        ),
        (
            "[project_containers.x]\nnetwork = 'container:other'",
            "project_containers.x.network: has another form than this key takes: ",
            None,
        ),
        ("[container_types]\ndev = 1", "container_types.dev must be a table", None),
        ("[container_types.Dev]\npids = 9", "cannot have a table 'Dev'", "match"),
        ("[container_type.dev]\npids = 9", "no section container_type", "container_types?"),
        ("container_types = 1", "container_types must be a table", None),
    ],
)
def test_a_mistake_in_a_table_is_told_with_its_path(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    error = refusal(file(tmp_path, text))
    assert message in error.message
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OUBLIETTE_CONTAINER_TYPES__DEV__PIDZ", "there is no key container_types.dev.pidz"),
        ("OUBLIETTE_CONTAINER_TYPES__DEV__PIDS", "container_types.dev.pids: expected int, got str"),
        ("OUBLIETTE_CONTAINER_TYPES__DEV", "there is no key container_types.dev"),
    ],
)
def test_a_mistake_in_a_table_of_the_environment_is_told(
    tmp_path: Path, name: str, message: str
) -> None:
    assert message in refusal(tmp_path, {name: "x"}).message


# ---------------------------------------------------------------------- the home


def test_the_home_is_what_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert find_home(None, {}) == tmp_path / "user" / ".oubliette"
    (tmp_path / ".oubliette").mkdir()
    assert find_home(None, {}) == tmp_path / ".oubliette"
    assert find_home(None, {"OUBLIETTE_HOME": "/e"}) == Path("/e")
    assert find_home("~/x", {"OUBLIETTE_HOME": "/e"}) == tmp_path / "user" / "x"
    assert find_home("rel") == tmp_path / "rel"


# ---------------------------------------------------------------------- credentials


def test_credentials_say_by_reference_what_is_given_to_whom(tmp_path: Path) -> None:
    home = file(
        tmp_path,
        """
        [credentials.github]
        value = "env:GITHUB"
        projects = ["shop", "proj_1"]
        users = ["ada"]
        variable = "GITHUB_TOKEN"
        """,
    )
    loaded = load(home, {"OUBLIETTE_CREDENTIALS__NPM__VALUE": "file:/run/secrets/npm"})
    github, npm = (loaded.config.credentials[name] for name in ("github", "npm"))
    assert github.projects == ("shop", "proj_1")
    assert github.users == ("ada",)
    assert (npm.value, npm.projects) == ("file:/run/secrets/npm", ())  # given to nobody
    flat = loader.flat(loaded.config)
    assert flat["credentials.github.value"] == "env:GITHUB"
    assert set(loaded.sources) == set(flat)


@pytest.mark.parametrize(
    "text",
    [
        '[credentials.x]\nvalue = "hunter2-in-clear"',
        '[credentials.x]\nvalue = "credential:hunter2-in-clear"',
        '[opencode]\napi_key = "hunter2-in-clear"',
        '[droid]\napi_key = "hunter2-in-clear"',
        '[credentials.x]\nvalue = "env:A"\nprojetcs = ["hunter2-in-clear"]',
        '[credentials.X]\nvalue = "env:A"',
        '[credentials.x]\nprojects = ["*"]',
        '[credentials.x]\nvalue = "env:A"\nvariable = "not a name"',
    ],
)
def test_a_secret_in_clear_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    error = refusal(file(tmp_path, text))
    assert "hunter2" not in f"{error} {error.hint}"
    assert "credentials" in error.message or "api_key" in error.message


@pytest.mark.parametrize(
    ("text", "seconds"), [('"30m"', 1800.0), ('"1h30m"', 5400.0), ('"90"', 90.0), ("90", 90.0)]
)
def test_seconds_may_be_given_with_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    (tmp_path / "oubliette.toml").write_text(f"[sessions]\nidle_timeout_seconds = {text}\n")
    assert load(tmp_path, {}).config.sessions.idle_timeout_seconds == seconds
    environ = {"OUBLIETTE_SESSIONS__IDLE_TIMEOUT_SECONDS": text.strip('"')}
    assert load(tmp_path / "none", environ).config.sessions.idle_timeout_seconds == seconds


def test_what_is_no_duration_names_its_key_and_its_source(tmp_path: Path) -> None:
    (tmp_path / "oubliette.toml").write_text('[sessions]\nidle_timeout_seconds = "30x"\n')
    with pytest.raises(ConfigError) as failed:
        load(tmp_path, {})
    assert failed.value.message.startswith("sessions.idle_timeout_seconds: '30x' is no duration")
    assert str(tmp_path / "oubliette.toml") in failed.value.message
    with pytest.raises(ConfigError, match="TREES__MAX_WALL_SECONDS"):
        load(tmp_path / "none", {"OUBLIETTE_TREES__MAX_WALL_SECONDS": "soon"})
    with pytest.raises(ConfigError, match=r"header_timeout_seconds.*0\.0"):
        load(tmp_path / "none", {"OUBLIETTE_SERVER__HEADER_TIMEOUT_SECONDS": "0s"})


def test_the_schema_tells_that_seconds_may_have_a_unit() -> None:
    key = json_schema.schema()["properties"]["sessions"]["properties"]["idle_timeout_seconds"]
    assert [each["type"] for each in key["anyOf"]] == ["number", "string"]
    assert key["default"] == 1800.0
    assert key["description"]


def test_agents_have_tables_by_their_names(tmp_path: Path) -> None:
    text = '[acp_agents.claude]\ncommand = ["claude-agent-acp"]\nmodel = "sonnet"\n'
    environ = {"OUBLIETTE_ACP_AGENTS__KIMI__COMMAND": '["kimi", "acp"]'}
    loaded = load(file(tmp_path, text), environ)
    agents = loaded.config.acp_agents
    assert (agents["claude"].command, agents["claude"].model) == (("claude-agent-acp",), "sonnet")
    assert agents["kimi"].command == ("kimi", "acp")
    assert loaded.sources["acp_agents.claude.model"] == str(tmp_path / config_schema.FILE_NAME)
    told = json_schema.schema()["properties"]["acp_agents"]["patternProperties"]
    assert all("command" in table["properties"] for table in told.values())


def test_a_mistaken_table_of_an_agent_is_told_with_the_remedy(tmp_path: Path) -> None:
    refused = refusal(file(tmp_path, '[agents.claude]\ncommand = ["claude"]\n'))
    assert "agents.claude" in refused.message
    assert "[acp_agents.claude]" in (refused.hint or "")
    refused = refusal(file(tmp_path, '[acp_agents.claude]\ncomand = ["claude"]\n'))
    assert "acp_agents.claude.command" in (refused.hint or "")
    refused = refusal(file(tmp_path, '[acp_agents.claude]\ncommand = "claude"\n'))
    assert refused.message.startswith("acp_agents.claude.command: ")


def test_packages_have_tables_with_keys_of_their_own(tmp_path: Path) -> None:
    text = (
        '[package_agents.parrot]\nmodel = "grey"\nwords = ["a", "b"]\npatience = 3\n'
        "[package_runtimes.cage]\nbars = 20\n"
    )
    environ = {
        "OUBLIETTE_PACKAGE_AGENTS__PARROT__MODEL": "green",
        "OUBLIETTE_PACKAGE_AGENTS__OWL__HOURS": "[1, 2]",
    }
    loaded = load(file(tmp_path, text), environ)
    assert loaded.config.package_agents == {
        "parrot": {"model": "green", "words": ["a", "b"], "patience": 3},
        "owl": {"hours": [1, 2]},
    }
    assert loaded.config.package_runtimes == {"cage": {"bars": 20}}
    assert loaded.sources["package_agents.parrot.patience"].endswith(config_schema.FILE_NAME)
    assert loader.flat(loaded.config)["package_runtimes.cage.bars"] == 20


@pytest.mark.parametrize("text", ["more = {a = 1}", "when = 2026-01-01", "all = [[{a = 1}]]"])
def test_a_setting_of_a_package_is_plain(tmp_path: Path, text: str) -> None:
    refused = refusal(file(tmp_path, f"[package_agents.parrot]\n{text}\n"))
    assert refused.message.startswith(f"package_agents.parrot.{text.partition(' ')[0]}: ")
    assert refused.hint
    refused = refusal(file(tmp_path, "[package_agents]\nmodel = 1\n"))
    assert "must be a table" in refused.message


@pytest.mark.parametrize("value", ["postgresql", "relative/folder", "Node", "3"])
def test_a_place_for_snapshots_that_is_none_is_refused_with_the_valid_ones(
    tmp_path: Path, value: str
) -> None:
    refused = refusal(tmp_path, **{"cluster.snapshots": value})
    assert refused.message.startswith("cluster.snapshots: ")
    assert refused.hint is not None
    for each in ('"postgres"', '"node"', "path of a folder"):
        assert each in refused.hint


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("[opencode]\napi_key = 'sk-12345'", None),
        ("[droid]\napi_key = 'sk-12345'", None),
        ("[credentials.x]\nvalue = 'sk-12345'", None),
        ("[repositories]\ncredentials = ['github.com=sk-12345']", None),
        ("", "OUBLIETTE_OPENCODE__API_KEY"),
    ],
)
def test_a_secret_in_the_place_of_its_reference_is_refused_in_words(tmp_path, text, variable):
    (tmp_path / "oubliette.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {} if variable is None else {variable: "sk-12345"})
    said = str(caught.value)
    assert "must name the place of the secret, not be the secret: " in said
    assert "env:" in said
    assert "regex" not in said
    assert "12345" not in said
