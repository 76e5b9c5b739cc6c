"""The official client understands answers, streams and errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import openai
import pytest

from edgeflow.service.security.auth import new_token
from tests.service.chat.test_answers import picture
from tests.service.chat.test_queue import held, running
from tests.service.chat.workers import Loaded, chatting, models_of
from tests.service.harness import RunningService, eventually

TURNS = [{"role": "user", "content": "what is red?"}]


@contextlib.asynccontextmanager
async def official(served: RunningService, token: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
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
        assert (await client.models.retrieve("small")).model_extra["images"] is True
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
        async with running(http, served):
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
        running(http, served, max_tokens=2),
        openai.AsyncOpenAI(base_url=f"{served.http}/v1", api_key="none", max_retries=4) as client,
    ):
        asking = asyncio.create_task(client.chat.completions.create(model="small", messages=TURNS, max_tokens=1))
        await eventually(lambda: served.metric("edgeflow_chat_refused_total", reason="QUEUE_FULL") > 0)
        served.script.gate.release()
        assert (await asking).usage.completion_tokens == 1


async def test_a_model_by_its_name(text_model: Loaded):
    slots = [{"id": "arm", "messages": [{"role": "system", "content": "you watch an arm"}]}]
    async with (
        chatting(text_model, chat__alias="org/small", chat__slots=slots) as (http, served),
        official(served) as client,
    ):
        names = await models_of(http, 3)
        assert names == ["demo", "org/small", "org/small:arm"]
        for name in names:
            found = await client.models.retrieve(name)
            assert (found.id, found.object, abs(found.created - time.time()) < 600) == (name, "model", True)
        assert (await http.get("/v1/models/org/small")).json() == (await http.get("/v1/models")).json()["data"][1]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("org")
        assert (caught.value.param, caught.value.type) == ("model", "invalid_request_error")
        assert "unknown model 'org'; known: demo, org/small, org/small:arm" in caught.value.message
        for path in ("/v1/models/", "/v1/models/%00", "/v1/models/..%2F..", "/v1/models/" + "x" * 1000):
            answer = await http.get(path)
            assert answer.status_code == 404 and len(answer.text) < 500, path


async def test_several_prompts_are_answered_like_each_by_itself(text_model: Loaded):
    tokens = text_model.chat.tokenizer.encode("red is", special=True)
    asked = {"model": "small", "max_tokens": 6, "temperature": 1.0, "seed": 5, "n": 2}
    async with chatting(text_model) as (_, served), official(served) as client:
        create = client.completions.create
        alone = [await create(prompt=each, **asked) for each in ("blue is", "red is")]
        texts = [choice.text for each in alone for choice in each.choices]
        assert len(set(texts)) == 4
        for prompt in (["blue is", "red is"], [text_model.chat.tokenizer.encode("blue is", special=True), tokens]):
            both = await create(prompt=prompt, **asked)
            assert [(choice.index, choice.text) for choice in both.choices] == list(enumerate(texts))
            counts = [sum(getattr(each.usage, name) for each in alone) for name in ("prompt_tokens", "total_tokens")]
            assert [both.usage.prompt_tokens, both.usage.total_tokens] == counts
        assert [each.text for each in (await create(prompt=tokens, **asked)).choices] == texts[2:]
        told = ["", "", "", ""]
        async for chunk in await create(prompt=["blue is", "red is"], stream=True, **asked):
            told[chunk.choices[0].index] += chunk.choices[0].text
        assert told == texts


async def test_a_prompt_that_does_not_fit_is_named(text_model: Loaded):
    slots = [{"id": "note", "text": "the arm is at rest and "}]
    async with chatting(text_model, chat__slots=slots) as (_, served), official(served) as client:
        create, size = client.completions.create, text_model.chat.config.vocab_size
        for prompt, field in (
            (["a", "b" * 300], "prompt.1"),
            ([[1], [2] * 300], "prompt.1"),
            ([2] * 300, "prompt"),
            ([[1], [1, size]], "prompt.1"),
            (["x" * 600_000, "y" * 600_000], "prompt"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await create(model="small", prompt=prompt)
            assert caught.value.param == field, caught.value
        assert served.script.gate.steps == 0, "nothing of them was computed"
        tokens = text_model.chat.tokenizer.encode("red", special=False)
        whole, asked = await create(model="small", prompt=slots[0]["text"] + "red", max_tokens=4), {"max_tokens": 4}
        found = await create(model="small:note", prompt=tokens, **asked)
        assert (found.choices[0].text, found.usage.prompt_tokens) == (whole.choices[0].text, whole.usage.prompt_tokens)


async def test_answers_of_the_client_can_be_sent_back(text_model: Loaded):
    async with chatting(text_model) as (_, served), official(served) as client:
        create = client.chat.completions.create
        message = (await create(model="small", messages=TURNS, max_tokens=2)).choices[0].message
        for back in (message, message.model_dump()):
            again = await create(
                model="small", messages=[*TURNS, back, *TURNS], max_tokens=2, n=None, stop=None, seed=None
            )
            assert again.usage.completion_tokens == 2
