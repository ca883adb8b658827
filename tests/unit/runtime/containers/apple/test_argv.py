"""Command lines for Apple's `container`: whatever a spec holds, they mean what they should."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import InvalidParameter
from oubliette.runtime.containers import ContainerLimits, ContainerSpec, Mount
from oubliette.runtime.containers.apple import argv as apple_argv
from oubliette.runtime.containers.base import Hardening
from tests.conformance.apple_standin import grammar

BASE = ContainerSpec(id="cont_1", labels={}, runtime_dir=Path("/run/oubliette-0/01234567"))

words = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


def parsed(spec: ContainerSpec, image: str = "localhost/image:1", **more):
    argv = apple_argv.create(
        spec, Hardening(), image=image, user=(501, 20), labels=spec.labels, folders=(), **more
    )
    return grammar.parse(argv)


@given(
    env=st.dictionaries(names, words, max_size=5),
    labels=st.dictionaries(names, words, max_size=5),
    command=st.lists(words, min_size=1, max_size=6),
    cpus=st.floats(min_value=0.01, max_value=64),
    memory=st.integers(min_value=1, max_value=1 << 40),
    network=st.sampled_from(["none", "bridge", "net-1"]),
)
def test_every_value_arrives_as_it_was_and_nowhere_else(  # noqa: PLR0913
    env: dict, labels: dict, command: list, cpus: float, memory: int, network: str
) -> None:
    spec = msgspec.structs.replace(
        BASE,
        env=env,
        labels=labels,
        command=tuple(command),
        network=network,
        limits=ContainerLimits(cpus=cpus, memory_bytes=memory),
    )
    name, options, positionals = parsed(spec)
    assert name == "create"
    given_env = dict(each.split("=", 1) for each in options["env"])
    assert {key: given_env[key] for key in env} == env
    assert dict(each.split("=", 1) for each in options.get("label", [])) == labels
    assert options["entrypoint"] == command[0]
    assert positionals == ["localhost/image:1", *command[1:]]
    assert options["cpus"] == max(1, math.ceil(cpus))
    size = int(options["memory"].removesuffix("M")) << 20
    assert memory <= size < memory + (1 << 20)
    assert options.get("network") == {"bridge": None}.get(network, [network])
    assert "no_dns" in options if network == "none" else "no_dns" not in options


@pytest.mark.parametrize(
    ("cpus", "said"), [(0.1, "1"), (1.0, "1"), (1.01, "2"), (2.0, "2"), (7.5, "8")]
)
def test_processors_are_whole_and_rounded_up(cpus: float, said: str) -> None:
    assert apple_argv.processors(cpus) == said


def test_a_value_that_begins_with_a_dash_is_joined_to_its_option() -> None:
    assert apple_argv.option("--env", "-v") == ["--env=-v"]
    assert apple_argv.option("--env", "v") == ["--env", "v"]
    with pytest.raises(ValueError, match="zero"):
        apple_argv.option("--env", "a\0b")


@pytest.mark.parametrize("container_id", ["-x", "a b", "é", "x" * 64, "a/b", "a\n"])
def test_an_id_that_makes_no_name_is_refused(container_id: str) -> None:
    if container_id == "-x":  # what stands before it makes it one
        assert apple_argv.name_of(container_id) == "oubliette--x"
        return
    with pytest.raises(InvalidParameter) as caught:
        apple_argv.name_of(container_id)
    assert caught.value.field == "id"


@pytest.mark.parametrize("image", ["-x", "", "a\0b"])
def test_an_image_that_would_be_read_as_an_option_is_refused(image: str) -> None:
    with pytest.raises(InvalidParameter):
        parsed(BASE, image=image)


def test_paths_are_said_in_the_form_that_can_hold_them(tmp_path: Path) -> None:
    odd = tmp_path / "a:b"
    odd.mkdir()
    (odd / "file").write_text("")
    plain = tmp_path / "x,y=z"
    assert apple_argv.volume(Mount(plain, "/t", read_only=True)) == ["--volume", f"{plain}:/t:ro"]
    assert apple_argv.volume(Mount(odd, "/t", read_only=True)) == [
        "--mount", f"type=bind,source={odd},target=/t,readonly",
    ]  # fmt: skip
    both = tmp_path / "a:b,c"
    both.mkdir()
    for source in (both, odd / "file"):
        with pytest.raises(InvalidParameter) as caught:
            apple_argv.volume(Mount(source, "/t"))
        assert caught.value.field == "mounts"
    with pytest.raises(InvalidParameter) as caught:
        apple_argv.published(Path("/a:b/relay.sock"))
    assert caught.value.field == "runtime_dir"


def test_what_lies_below_another_mount_comes_after_it(tmp_path: Path) -> None:
    mounts = (
        Mount(tmp_path / "b", "/workspace/workspaces/1"),
        Mount(tmp_path / "a", "/workspace"),
    )
    _, options, _ = parsed(msgspec.structs.replace(BASE, mounts=mounts))
    targets = [each.split(":")[1] for each in options["volume"]]
    assert targets == ["/workspace", "/workspace/workspaces/1"]


def test_the_relay_is_published_and_the_host_is_told_where_to_listen() -> None:
    _, options, positionals = parsed(BASE)
    assert options["publish_socket"] == [f"{BASE.runtime_dir}/relay.sock:/mcp/relay.sock"]
    assert options["entrypoint"] == "python3"
    assert positionals[1:5] == ["-I", "-S", "/opt/oubliette/kit/oubliette.pyz", "host"]
    assert positionals[positionals.index("--key") + 1] == "/var/lib/oubliette/key"
    assert options["cap_drop"] == ["ALL"]
    assert "/opt/oubliette/kit/bin" in dict(each.split("=", 1) for each in options["env"])["PATH"]
