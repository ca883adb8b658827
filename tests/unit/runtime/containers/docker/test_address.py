"""Where an engine is: the docker CLI's order, its contexts and certificates, the usual sockets."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.docker import address as docker_address
from oubliette.runtime.containers.docker.address import EngineAddress, find
from oubliette.runtime.containers.engine_errors import EngineMissing

if TYPE_CHECKING:
    from pathlib import Path

VARIABLES = (
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",
    "CONTAINER_HOST",
)  # fmt: skip


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty ~/.docker and no variable."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return folder


def context(config: Path, name: str, host: str, *, skip: bool = False, tls: bool = False) -> None:
    digest = hashlib.sha256(name.encode()).hexdigest()
    folder = config / "contexts" / "meta" / digest
    folder.mkdir(parents=True)
    endpoint = {"Host": host, "SkipTLSVerify": skip}
    meta = {"Name": name, "Metadata": {"Description": "x"}, "Endpoints": {"docker": endpoint}}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    if tls:
        certificates(config / "contexts" / "tls" / digest / "docker")


def certificates(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (folder / name).touch()


def choose(config: Path, name: str) -> None:
    text = json.dumps({"auths": {}, "currentContext": name})
    (config / "config.json").write_text(text, encoding="utf-8")


def test_the_order_is_that_of_the_docker_cli(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured, DOCKER_HOST, DOCKER_CONTEXT, the current context, the usual socket."""
    context(config, "current", "unix:///current.sock")
    context(config, "named", "unix:///named.sock")
    assert find("docker").url == "unix:///var/run/docker.sock"
    choose(config, "current")
    assert find("docker").url == "unix:///current.sock"
    monkeypatch.setenv("DOCKER_CONTEXT", "named")
    assert find("docker").url == "unix:///named.sock"
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert find("docker").url == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "unix:///host.sock")
    assert find("docker").url == "unix:///host.sock"
    monkeypatch.setenv("DOCKER_HOST", "")
    monkeypatch.setenv("DOCKER_CONTEXT", "")
    assert find("docker").url == "unix:///current.sock"
    assert find("docker", "unix:///configured.sock").url == "unix:///configured.sock"


def test_a_context_that_is_not_there_is_an_error_and_not_the_usual_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(EngineMissing, match="'gone'") as caught:
        find("docker")
    assert "docker context" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "meta", ["", "{", "[]", '{"Endpoints": {}}', '{"Endpoints": {"docker": 1}}', '{"Name": "x"}']
)
def test_a_context_that_cannot_be_read_is_an_error(config: Path, meta: str) -> None:
    context(config, "broken", "unix:///x")
    next(config.glob("contexts/meta/*/meta.json")).write_text(meta, encoding="utf-8")
    choose(config, "broken")
    with pytest.raises(EngineMissing, match="broken"):
        find("docker")


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"currentContext": 3}', "{}"])
def test_a_config_of_the_cli_that_says_nothing_is_passed_over(config: Path, text: str) -> None:
    (config / "config.json").write_text(text, encoding="utf-8")
    assert find("docker").url == "unix:///var/run/docker.sock"


def test_a_contexts_certificates_go_with_it(config: Path) -> None:
    context(config, "remote", "tcp://engine.example:2376", tls=True)
    choose(config, "remote")
    address = find("docker")
    assert address.host_port == ("engine.example", 2376)
    assert address.tls is not None
    assert address.tls.verify
    assert address.tls.cert is not None
    assert address.tls.cert.parent.parent.name == hashlib.sha256(b"remote").hexdigest()


def test_a_context_may_skip_verification(config: Path) -> None:
    context(config, "lax", "tcp://engine.example:2376", tls=True, skip=True)
    choose(config, "lax")
    address = find("docker")
    assert address.tls is not None
    assert not address.tls.verify


def test_certificates_come_from_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates(tmp_path / "certs")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1")
    assert find("docker").tls is None
    assert find("docker").host_port == ("127.0.0.1", 2375)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "certs"))
    address = find("docker")
    assert address.tls is not None
    assert address.tls.ca == tmp_path / "certs" / "ca.pem"
    assert address.host_port == ("127.0.0.1", 2376)
    monkeypatch.delenv("DOCKER_CERT_PATH")
    assert find("docker").tls == docker_address.Tls()  # the usual folder has none
    certificates(config / "x")
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (config / "x" / name).rename(config / name)
    address = find("docker")
    assert address.tls is not None
    assert address.tls.key == config / "key.pem"


def test_half_a_pair_of_certificates_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cert.pem").touch()
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match=r"key\.pem"):
        find("docker")


def test_certificates_that_are_none_are_explained(tmp_path: Path) -> None:
    certificates(tmp_path / "certs")
    tls = docker_address.Tls(ca=tmp_path / "certs" / "ca.pem")
    with pytest.raises(EngineMissing, match="certificates"):
        tls.context()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("unix:///run/x.sock", "unix:///run/x.sock"),
        ("/run/x.sock", "unix:///run/x.sock"),
        ("tcp://10.0.0.1:4000", "tcp://10.0.0.1:4000"),
        ("10.0.0.1:4000", "tcp://10.0.0.1:4000"),
        ("http://10.0.0.1:4000", "tcp://10.0.0.1:4000"),
        ("https://10.0.0.1", "tcp://10.0.0.1:2376"),
        ("tcp://[::1]:7", "tcp://[::1]:7"),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, url: str) -> None:
    assert find("docker", text).url == url


@pytest.mark.parametrize("text", ["npipe:////./pipe/docker", "unix://", "tcp://x:port", "ftp://x"])
def test_an_address_of_another_kind_is_refused_with_where_it_stands(text: str) -> None:
    with pytest.raises(EngineMissing, match=r"docker\.host"):
        find("docker", text)


def test_ssh_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@far")
    with pytest.raises(EngineMissing, match="DOCKER_HOST.*another machine") as caught:
        find("docker")
    assert "ssh -L" in (caught.value.hint or "")
    assert "docker.sockets" in (caught.value.hint or "")


def test_sockets_of_rootless_engines_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    run = tmp_path / "run"
    (run / "podman").mkdir(parents=True)
    (run / "podman" / "podman.sock").touch()
    assert find("podman").url == f"unix://{run}/podman/podman.sock"
    usual = docker_address._usual([tmp_path / "none.sock", run / "podman" / "podman.sock"])
    assert usual.url == f"unix://{run}/podman/podman.sock"
    sockets = docker_address._docker_sockets()
    assert sockets[1] == run / "docker.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(docker_address._docker_sockets()[1]) == "/run/user/1000/docker.sock"


def test_podman_has_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///docker.sock")
    monkeypatch.setenv("CONTAINER_HOST", "unix:///podman.sock")
    assert find("podman").url == "unix:///podman.sock"


def test_this_machines_own_addresses_are_told_from_others() -> None:
    assert EngineAddress(url="unix:///x").loopback
    assert EngineAddress(url="tcp://localhost:1").loopback
    assert EngineAddress(url="tcp://[::1]:1").loopback
    assert not EngineAddress(url="tcp://10.0.0.1:1").loopback
