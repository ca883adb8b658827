"""Ports of the loopback interface that agents need, found in their settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from oubliette.config.schema import AcpConfig, Config, CredentialConfig, OpencodeConfig
from oubliette.runtime.agents import loopback_ports


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("http://127.0.0.1:11434/v1", (11434,)),
        ("HTTPS_PROXY=http://me:secret@localhost:3128", (3128,)),
        ("http://[::1]:8000/mcp and ws://localhost/x", (80, 8000)),
        ("https://localhost/v1", (443,)),
        ("--database postgresql://localhost:5432/shop", (5432,)),
        ("HOST=0.0.0.0:7000", (7000,)),
        ("https://localhost.example.org:8443", ()),
        ("https://api.example.org:8443/localhost", ()),
        ("http://10.127.0.0.1:80", ()),
        ("http://localhost:99999", ()),
    ],
)
def test_addresses_of_the_loopback_interface_are_found(text: str, ports: tuple[int, ...]) -> None:
    assert loopback_ports.named([text]) == loopback_ports.LoopbackPorts(ports)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("before", "piece"),
    [
        ("_", "a"),
        ("", "a_"),
        ("x://", "!"),
        ("", "x://"),
        ("", "x://a@"),
        ("x://", "a:"),
        ("", "[::1"),
    ],
)
def test_no_text_takes_longer_to_search_than_its_length(before: str, piece: str) -> None:
    text = before + piece * 100_000  # minutes, if each character were searched to the end
    loopback_ports.named([text + " http://localhost:1", text])


def test_another_address_of_it_cannot_be_passed_on() -> None:
    found = loopback_ports.named(["http://127.0.1.1:9000", "http://localhost:1"])
    assert (found.ports, found.beyond) == ((1,), ("127.0.1.1:9000",))


def test_names_of_the_loopback_interface_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost model.lan # ours\n127.0.1.1 laptop\n10.1.1.1 far\n")
    monkeypatch.setattr(loopback_ports, "_HOSTS", hosts)
    found = loopback_ports.named(["http://Model.lan:1 http://laptop:2 http://far:3"])
    assert (found.ports, found.beyond) == ((1,), ("laptop:2",))


def test_the_configuration_and_what_it_refers_to_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY", "http://localhost:3128")
    (tmp_path / "config.toml").write_text('base_url = "http://localhost:11434/v1"\n')
    (tmp_path / "url").write_text("http://localhost:9200\n")
    config = Config(
        opencode=OpencodeConfig(base_url="http://127.0.0.1:8001/v1", env=("P=env:PROXY",)),
        acp=AcpConfig(files=(f".codex/config.toml=file:{tmp_path}/config.toml",)),
        acp_agents={"other": AcpConfig(command=("agent", "--at", "localhost:8002"))},
        package_agents={"parrot": {"at": "http://localhost:8003"}},
        credentials={
            "search": CredentialConfig(value=f"file:{tmp_path}/url"),
            "none": CredentialConfig(value="env:NOT_THERE"),
        },
    )
    assert loopback_ports.configured(config).ports == (3128, 8001, 8002, 8003, 9200, 11434)
