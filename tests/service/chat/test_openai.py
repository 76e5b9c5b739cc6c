"""The official client understands answers, streams and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import openai
import pytest

from edgeflow.service.security.auth import new_token
from tests.service.chat.test_answers import picture
from tests.service.chat.test_queue import held, under_way
from tests.service.chat.workers import Loaded, chatting, models_of
from tests.service.harness import Served, eventually

TURNS = [{"role": "user", "content": "what is red?"}]


@contextlib.asynccontextmanager
async def official(served: Served, token: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key=token, max_retries=0) as client:
        yield client


async def test_answers_and_streams(text_model: Loaded):
    async with chatting(text_model) as (http, served), official(served) as client:
        await models_of(http, 2)
        whole = await client.chat.completions.create(model="small", messages=TURNS, max_tokens=8, logprobs=True)
        assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 8
        assert len(whole.choices[0].logprobs.content) == 8
        assert whole.usage.model_extra["edgeflow"]["prefill_ms"] > 0
        stream = await client.chat.completions.create(
            model="small", messages=TURNS, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content and chunks[-1].usage.completion_tokens == 8
        text = await client.completions.create(model="small", prompt="red is", max_tokens=4, extra_body={"top_k": 3})
        assert text.choices[0].finish_reason == "length"
        assert [model.id async for model in client.models.list()] == ["demo", "small"]


async def test_pictures(image_model: Loaded):
    content = [{"type": "image_url", "image_url": {"url": picture()[0]}}, {"type": "text", "text": "what is it?"}]
    async with chatting(image_model) as (_, served), official(served) as client:
        answer = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": content}], max_tokens=2
        )
        assert answer.usage.completion_tokens == 2


async def test_request_ids(text_model: Loaded):
    async with chatting(text_model) as (_, served), official(served) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="small", messages=TURNS, max_tokens=1, extra_headers={"X-Request-Id": "seen-1"}
        )
        assert raw.request_id == "seen-1" and raw.parse().id == "chatcmpl-seen-1"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="x", messages=TURNS, extra_headers={"X-Request-Id": "seen-2"})
        assert caught.value.request_id == "seen-2"


async def test_wrong_requests(text_model: Loaded):
    async with chatting(text_model, limits__http_body_bytes=4000) as (_, served), official(served) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as bad:
            await create(model="small", messages=TURNS, temperature=9)
        assert (bad.value.param, bad.value.type, bad.value.code) == (
            "temperature",
            "invalid_request_error",
            "INVALID_ARGUMENT",
        )
        with pytest.raises(openai.NotFoundError):
            await create(model="gpt-9", messages=TURNS)
        with pytest.raises(openai.APIStatusError) as large:
            await create(model="small", messages=[{"role": "user", "content": "x" * 5000}])
        assert large.value.status_code == 413
        with pytest.raises(openai.BadRequestError):
            await create(model="small", messages=TURNS, temperature=9, stream=True)


async def test_tokens(text_model: Loaded, tmp_path):
    tokens = str(tmp_path / "tokens.json")
    secrets = {role: new_token(tokens, role, [role]) for role in ("chat", "observe")}
    async with chatting(text_model, tokens_file=tokens) as (_, served):
        for secret, error in (("", openai.AuthenticationError), (secrets["observe"], openai.PermissionDeniedError)):
            async with official(served, secret or "wrong") as client:
                with pytest.raises(error):
                    await client.chat.completions.create(model="small", messages=TURNS)
        async with official(served, secrets["chat"]) as client:
            await client.chat.completions.create(model="small", messages=TURNS, max_tokens=1)


async def test_a_full_queue_and_a_dead_worker(text_model: Loaded):
    async with held(text_model, chat__queue=0) as (http, served), official(served) as client:
        async with under_way(http, served):
            with pytest.raises(openai.RateLimitError) as full:
                await client.chat.completions.create(model="small", messages=TURNS)
            assert full.value.response.headers["retry-after"] == "1"
        await eventually(lambda: served.metric("edgeflow_chat_requests_running") == 0)
        served.script.gate.grant(8)
        stream = await client.chat.completions.create(model="small", messages=TURNS, max_tokens=100, stream=True)
        await anext(stream)
        served.script.worker.kill()
        with pytest.raises(openai.APIError, match="no chat model is ready"):
            async for _ in stream:
                pass
        served.script.gate.release()


async def test_a_client_that_tries_again_gets_its_answer(text_model: Loaded):
    async with (
        held(text_model, chat__queue=0) as (http, served),
        under_way(http, served, max_tokens=2),
        openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key="none", max_retries=4) as client,
    ):
        asking = asyncio.create_task(client.chat.completions.create(model="small", messages=TURNS, max_tokens=1))
        await eventually(lambda: served.metric("edgeflow_chat_refused_total", reason="QUEUE_FULL") > 0)
        served.script.gate.release()
        assert (await asking).usage.completion_tokens == 1
