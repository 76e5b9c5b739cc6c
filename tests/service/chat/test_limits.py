"""What breaks a limit is rejected by name before anything is made of it; the next request is answered."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import struct
import time
import zlib
from typing import Any

import pytest
from PIL import Image

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.chat.body import ChatBody, CompletionBody, parse
from edgeflow.service.chat.images import read_image
from edgeflow.service.gateway import proxy
from edgeflow_client.errors import InvalidArgument, RequestError
from tests.service.chat.test_answers import ASKED, CHAT, TEXT, picture
from tests.service.chat.workers import Loaded, chatting

JSON = "application/json"
TURN = {"role": "user", "content": "hi"}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [TURN] * 65}, "messages"),
    ({"messages": [{**TURN, "role": "wizard"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{**TURN, "content": "\ud800"}]}, "messages"),
    ({"n": 5}, "n"),
    ({"n": 0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2049}, "max_tokens"),
    ({"max_completion_tokens": 1 << 40}, "max_completion_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": "x" * 65}, "stop"),
    ({"stop": ""}, "stop"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 1 << 21}, "top_k"),
    ({"top_logprobs": 6, "logprobs": True}, "top_logprobs"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"seed": -1}, "seed"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ({"guided_regex": "a+"}, "guided_regex"),
    ({"guided_grammar": "root"}, "guided_grammar"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ({"logit_bias": {"1": 100}}, "logit_bias"),
    ({"best_of": 2}, "best_of"),
    ({"lora_path": "/etc"}, "lora_path"),
    (user(image("http://127.0.0.1:9/x.png")), "messages.0.content.0.image_url.url"),
    (user(image("https://example.org/x.png")), "messages.0.content.0.image_url.url"),
    (user(image("file:///etc/passwd")), "messages.0.content.0.image_url.url"),
    (user(image("/etc/passwd")), "messages.0.content.0.image_url.url"),
    (user(image("data:image/gif;base64,R0lGOD")), "messages.0.content.0.image_url.url"),
    (user(image("data:image/svg+xml;base64,PHN2")), "messages.0.content.0.image_url.url"),
    (user(image("data:image/png;base64,@@@@")), "messages.0.content.0.image_url.url"),
    (user(image("data:image/png;base64,AAAA")), "messages.0.content.0.image_url.url"),
    (user({"type": "input_audio", "input_audio": {}}), "messages.0.content.0.type"),
    (user(image(picture()[0]) | {"uuid": "x"}), "messages.0.content.0.uuid"),
    ({"messages": [{**TURN, "content": "x" * 9000}]}, "messages"),
    ({"messages": [{**TURN, "content": "x" * 300}]}, "messages"),
]


async def test_values_beyond_a_limit_are_rejected_by_name(text_model: Loaded):
    async with chatting(text_model) as (http, served):
        for changes, field in REJECTED:
            content = json.dumps({**ASKED, **changes})
            answer = await http.post(CHAT, content=content, headers={"content-type": JSON})
            assert answer.status_code == 400, (changes, answer.text)
            error = answer.json()["error"]
            told = (error["type"], error["param"].startswith(field), error["field"] == error["param"])
            assert told == ("invalid_request_error", True, True), (field, error)
        assert (await http.post(CHAT, json=ASKED)).status_code == 200
        assert served.script.gate.steps < 20, "nothing of the refused requests was computed"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": ["a", ""]}, "prompt.1"),
        ({"prompt": ["a", [1]]}, "prompt.1"),
        ({"prompt": [1, "a"]}, "prompt.1"),
        ({"prompt": [1, True]}, "prompt.1"),
        ({"prompt": [1, -1]}, "prompt.1"),
        ({"prompt": [1 << 31]}, "prompt.0"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": [[1]] * 17}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
        ({"prompt": "x", "stream": 1}, "stream"),
        ({"prompt": "x", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "x", "stream_options": {"include_usage": 0}}, "stream_options.include_usage"),
    ],
)
def test_texts_have_limits_too(changes: dict[str, Any], field: str):
    with pytest.raises(InvalidArgument) as caught:
        parse(CompletionBody, JSON, json.dumps(changes).encode())
    assert caught.value.field.startswith(field)


async def test_names_that_are_not_there(text_model: Loaded):
    async with chatting(text_model) as (http, _):
        for changes, field in (
            ({"model": "gpt-9"}, "model"),
            ({"slot": "none"}, "slot"),
            ({"model": "small:x"}, "slot"),
        ):
            answer = await http.post(CHAT, json={**ASKED, **changes})
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, field)
        answer = await http.post("/tokenize", json={"model": "gpt-9", "prompt": "x"})
        assert answer.status_code == 404
        for body in ({}, {"prompt": "x", "messages": [TURN]}):
            assert (await http.post("/tokenize", json=body)).status_code == 400


async def test_slots_are_for_the_route_of_their_kind(text_model: Loaded):
    slots = [{"id": "note", "text": "a"}, {"id": "arm", "messages": [{"role": "system", "content": "b"}]}]
    async with chatting(text_model, chat__slots=slots) as (http, _):
        assert (await http.post(CHAT, json={**ASKED, "slot": "note"})).status_code == 400
        assert (await http.post(TEXT, json={"prompt": "x", "slot": "arm"})).status_code == 400


async def test_pictures_for_a_model_without_eyes_and_too_many(text_model: Loaded, image_model: Loaded):
    part = image(picture()[0])
    async with chatting(text_model) as (http, _):
        answer = await http.post(CHAT, json=user(part))
        assert answer.status_code == 400 and "image" in answer.json()["error"]["message"]
    async with chatting(image_model) as (http, _):
        answer = await http.post(CHAT, json=user(*[part] * 5))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages.0.content.4")
        answer = await http.post(CHAT, json=user({"type": "text", "text": "<|image_pad|>"}))
        assert answer.status_code == 200, "these are words, not an image"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"n": 1' + b"0" * 5000 + b"}",
        b'{"messages":' + b"[" * 33 + b"]" * 33 + b"}",
        b"[" * 100_000,
        b'{"a":[' + b"1," * 70_000 + b"1]}",
        b'{"a":[' + b'"",' * 70_000 + b'""]}',
        b'{"a":"' + b"\\\\" * 9,
        b"[]" * 200_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies_that_cannot_be_read(body: bytes):
    with pytest.raises(InvalidArgument) as caught:
        parse(ChatBody, JSON, body)
    assert caught.value.field.startswith(("body", "messages"))


@pytest.mark.parametrize(
    "text", ["a\\n", '"', '\\"', "\\", "a\\\\", "[" * 5000, "\\\\" * 300 + '"[', ",", "x" * 5000 + '\\"[[' * 40]
)
def test_strings_are_not_structure(text: str):
    """A text that ends in a backslash must not turn what follows inside out."""
    turns = [{**TURN, "content": text}, {**TURN, "content": "{[" * 4000}]
    body = parse(ChatBody, JSON, json.dumps({"messages": turns}).encode())
    assert [message.content for message in body.messages] == [text, "{[" * 4000]


@pytest.mark.parametrize(("depth", "good"), [(31, True), (32, False)])
def test_depth_is_counted_after_long_texts(depth: int, good: bool):
    value: Any = 1
    for _ in range(depth):
        value = [value]
    body = json.dumps({"content": "line\n" * 3000, "deep": value}).encode()
    with pytest.raises(InvalidArgument) as caught:
        parse(ChatBody, JSON, body)
    assert (caught.value.reason != "BODY_DEPTH") == good


async def test_a_hostile_body_does_not_hold_up_the_service(text_model: Loaded, monkeypatch: pytest.MonkeyPatch):
    """8 MiB of structure, read in a thread: the loop goes on turning."""
    monkeypatch.setattr(proxy, "REJECTED_BYTES_PER_S", 1 << 30)
    used_s: list[float] = []

    async def pulse() -> None:
        """How long the loop stands still, in seconds that this process computes: others do not count."""
        while True:
            started = time.process_time()
            await asyncio.sleep(0.005)
            used_s.append(time.process_time() - started)

    async with chatting(text_model) as (http, _):
        beating = asyncio.create_task(pulse())
        for fill in (b"[", b'"\\', b"[],", b'"",', b"\\\\"):
            content = (b'{"messages":[' + fill * (8_000_000 // len(fill)))[:8_000_000]
            answer = await http.post(CHAT, content=content, headers={"content-type": JSON})
            assert answer.status_code == 400
        beating.cancel()
        assert max(used_s) < 0.5
        answer = await http.post(CHAT, content=bytes(8_400_000), headers={"content-type": JSON})
        assert answer.status_code == 413
        packed = await http.post(CHAT, content=b"x", headers={"content-type": JSON, "content-encoding": "gzip"})
        assert packed.status_code == 415
        assert (await http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415


def png(width: int, height: int, data: bytes = b"") -> str:
    """A PNG whose header says so, whatever follows."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    pixels = b"IDAT" + zlib.compress(data)
    more = struct.pack(">I", len(pixels) - 4) + pixels + struct.pack(">I", zlib.crc32(pixels))
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk + more).decode()


def jpeg_url(**options: Any) -> str:
    file = io.BytesIO()
    Image.new("CMYK" if options.pop("cmyk", False) else "RGB", (64, 64)).save(file, "JPEG", **options)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (png(12_000, 12_000), "IMAGE_TOO_LARGE"),
        (png(1 << 30, 1 << 30), "IMAGE_TOO_LARGE"),
        (png(8_193, 2), "IMAGE_TOO_LARGE"),
        (png(0, 5), "IMAGE_BROKEN"),
        (png(30, 30, b"\0" * 10), "IMAGE_BROKEN"),
        (jpeg_url(cmyk=True), "IMAGE_WRONG_FORMAT"),
        (jpeg_url()[:-40], "IMAGE_"),
        (jpeg_url().replace("image/jpeg", "image/png"), "IMAGE_BROKEN"),
    ],
)
def test_pictures_are_judged_by_their_headers(url: str, reason: str):
    with pytest.raises(RequestError) as caught:
        read_image(url, "url", LimitsConfig())
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize("url", [jpeg_url(), jpeg_url(progressive=True), picture()[0]])
def test_valid_images_pass_and_so_do_those_with_trailing_data(url: str):
    limits = LimitsConfig()
    assert read_image(url, "url", limits).shape[2] == 3
    head, _, data = url.partition(",")
    behind = base64.b64encode(base64.b64decode(data) + b"trailer").decode()
    assert read_image(f"{head},{behind}", "url", limits).shape == read_image(url, "url", limits).shape


async def test_nothing_is_fetched(image_model: Loaded, monkeypatch: pytest.MonkeyPatch):
    """A listener that a fetch would reach; and no name is looked up."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.setblocking(False)
        port = canary.getsockname()[1]
        async with chatting(image_model) as (http, _):
            for scheme in ("http", "https", "ftp", "HTTP"):
                answer = await http.post(CHAT, json=user(image(f"{scheme}://127.0.0.1:{port}/x.png")))
                assert (answer.status_code, answer.json()["error"]["param"][-3:]) == (400, "url")
        with pytest.raises(BlockingIOError):
            canary.accept()
