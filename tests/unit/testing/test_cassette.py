"""Cassettes: traffic with a model is recorded once and replayed without the model."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import ConfigError, InvalidParameter
from oubliette.testing.cassette import Cassette, UnrecordedRequest
from oubliette.testing.cassette.redaction import REDACTED, Redactor, steady
from oubliette.testing.model_server import ModelServer

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789abcdef"


async def ask(url: str, prompt: str, *, stream: bool = False, key: str = KEY) -> httpx.Response:
    body = {
        "model": "scripted",
        "stream": stream,
        "messages": [
            {"role": "system", "content": "instructions that may change"},
            {"role": "user", "content": prompt},
        ],
        "tools": [{"type": "function", "function": {"name": "echo"}}],
    }
    async with httpx.AsyncClient(verify=False) as client:
        return await client.post(
            f"{url}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        )


async def test_answers_are_recorded_and_replayed_as_they_were(tmp_path) -> None:
    file = tmp_path / "deep" / "one.jsonl"
    async with ModelServer() as model:
        async with Cassette(file, mode="once", upstream=model.url) as cassette:
            assert cassette.recording
            whole = await ask(cassette.url, "say hello")
            streamed = await ask(cassette.url, "say world", stream=True)
            refused = await ask(cassette.url, "error 529 busy")
        assert len(model.requests) == 3
        assert model.requests[-1].key == KEY
    async with Cassette(file, mode="once") as cassette:
        assert not cassette.recording
        for prompt, stream, before in (
            ("say hello", False, whole),
            ("say world", True, streamed),
            ("error 529 busy", False, refused),
        ):
            now = await ask(cassette.url, prompt, stream=stream)
            assert (now.status_code, now.text) == (before.status_code, before.text)
            assert now.headers["content-type"] == before.headers["content-type"]
        cassette.check()
        assert cassette.tape.left == 0


async def test_nothing_secret_is_in_the_file(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    async with (
        ModelServer() as model,
        Cassette(
            file, mode="all", upstream=model.url, key="upstream-key-1", secrets=["hunter2!"]
        ) as cassette,
    ):
        answer = await ask(cassette.url, f"say the key is {KEY}, the password hunter2!")
        assert KEY in answer.text.replace('"', "")
        assert model.requests[-1].key == "upstream-key-1"
    text = file.read_text()
    for secret in (KEY, "upstream-key-1", "hunter2!", "authorization"):
        assert secret not in text
    async with Cassette(file) as cassette:
        again = await ask(cassette.url, f"say the key is {KEY}, the password hunter2!")
        assert REDACTED in again.text or again.status_code == 400


async def test_a_request_that_was_not_recorded_is_refused_and_fails_the_check(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    async with ModelServer() as model, Cassette(file, mode="all", upstream=model.url) as cassette:
        await ask(cassette.url, "say hello")
    async with Cassette(file) as cassette:
        assert (await ask(cassette.url, "say hello")).status_code == 200
        again = await ask(cassette.url, "say hello")
        assert again.status_code == 400
        assert again.headers["x-should-retry"] == "false"
        assert "was recorded 1 times, and came once more" in again.json()["error"]["message"]
        other = await ask(cassette.url, "say something else")
        assert "'say something else') was not recorded" in other.json()["error"]["message"]
        with pytest.raises(UnrecordedRequest, match="--oubliette-record=once"):
            cassette.check()


async def test_without_a_file_the_refusal_says_so(tmp_path) -> None:
    async with Cassette(tmp_path / "none.jsonl") as cassette:
        answer = await ask(cassette.url, "say hello")
        assert "there is no " in answer.json()["error"]["message"]
    assert not (tmp_path / "none.jsonl").exists()


async def test_ids_and_times_of_a_run_do_not_count(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    prompt = "say {} at {} in 0b5cbbfe-6f2c-4d5e-8a4e-{}"
    async with ModelServer() as model, Cassette(file, mode="all", upstream=model.url) as cassette:
        first = prompt.format("ses_01m83kgss0xha9es8mzj7vbcc1", "2026-01-01", "0" * 12)
        await ask(cassette.url, first)
    async with Cassette(file) as cassette:
        other = prompt.format("ses_01m83kgss0xha9es8mzj7vbcc2", "2027-12-31T10:00:00Z", "1" * 12)
        assert (await ask(cassette.url, other)).status_code == 200


async def test_all_records_over_what_is_there(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    for prompt in ("say one", "say two"):
        async with (
            ModelServer() as model,
            Cassette(file, mode="all", upstream=model.url) as cassette,
        ):
            await ask(cassette.url, prompt)
    assert "say one" not in file.read_text()
    assert "say two" in file.read_text()


async def test_an_upstream_that_is_away_is_an_error_and_no_recording(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    async with Cassette(file, mode="all", upstream="http://127.0.0.1:9/v1") as cassette:
        assert (await ask(cassette.url, "say hello")).status_code == 502
    assert not file.exists()


async def test_recording_needs_an_upstream(tmp_path) -> None:
    with pytest.raises(ConfigError, match="OUBLIETTE_UPSTREAM_URL"):
        Cassette(tmp_path / "one.jsonl", mode="all")


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format": "oubliette-cassette", "version": 9}\n', "GIF89a"]
)
async def test_another_file_is_no_cassette(tmp_path, content: str) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidParameter, match=r"one.jsonl, line 1.*--oubliette-record=all"):
        Cassette(file)


async def test_a_broken_line_is_named(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"format": "oubliette-cassette", "version": 1}\n{"asks": 1}\n')
    with pytest.raises(InvalidParameter, match="line 2"):
        Cassette(file)


@given(st.text(min_size=6), st.text(), st.text())
def test_a_known_secret_is_never_left(secret: str, before: str, after: str) -> None:
    if secret in REDACTED:
        return
    redacted = Redactor([secret]).redact(f"{before} {secret} {after}")
    assert f" {secret} " not in redacted


@given(st.integers(1, len(KEY) - 1))
def test_a_secret_that_spans_two_pieces_is_found(cut: int) -> None:
    pieces = Redactor([KEY]).pieces([f"the key is {KEY[:cut]}", f"{KEY[cut:]}, it is"])
    assert "".join(pieces) == f"the key is {REDACTED}, it is"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"api_key": "{KEY}"}}',
        "Authorization: Bearer abcdefgh12345678",
        json.dumps(json.dumps({"password": "correct horse"})),
    ],
)
def test_texts_that_look_like_keys_are_redacted(text: str) -> None:
    redacted = Redactor().redact(text)
    assert REDACTED in redacted
    for secret in (KEY, "abcdefgh12345678", "correct horse"):
        assert secret not in redacted


def test_ordinary_text_stays_as_it_is() -> None:
    text: Any = "sk is no key, nor is 12-34, nor a task-with-a-long-name-indeed"
    assert Redactor().redact(text) == text
    assert steady(text) == text
