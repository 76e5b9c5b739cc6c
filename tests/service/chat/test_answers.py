"""Answers over HTTP are those of the model alone, whole and streamed, in every way a request may ask for them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import Sampled
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt
from tests.service.chat.workers import Loaded, chatting, models_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {"messages": [{"role": "user", "content": "what is red?"}], "max_tokens": 12}
SLOTS = [
    {"id": "arm", "messages": [{"role": "system", "content": "you watch an arm"}]},
    {"id": "note", "text": "the arm is at rest and "},
]


def alone(model: ChatModel, prompt: Prompt, **params: Any) -> list[Sampled[int]]:
    engine = ChatEngine(model, model.decoder.kv_slots(1, 256))
    generation = Generation(engine, prompt, SamplingParams(**{"max_tokens": 12, **params}))
    return [sampled for sampled in generate(engine, generation, 1000) if sampled is not None]


def text_of(model: ChatModel, sampled: list[Sampled[int]]) -> str:
    return model.tokenizer.decode([token for each in sampled for token in each.tokens])


def chat_prompt(model: ChatModel, *messages: dict[str, Any]) -> Prompt:
    return model.chat_prompt(model.render(messages))


async def streamed(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Every event of a stream that ends well."""
    answer = await http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def said(events: list[dict[str, Any]], index: int = 0) -> tuple[str, list[str]]:
    """Text and finish reasons of one choice of a stream."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    text = "".join(choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices)
    return text, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


async def test_an_answer_is_the_model_s_own(text_model: Loaded):
    expected = text_of(text_model.chat, alone(text_model.chat, chat_prompt(text_model.chat, *ASKED["messages"])))
    async with chatting(text_model) as (http, _):
        answer = await http.post(CHAT, json={"model": "small", **ASKED}, headers={"x-request-id": "abc.1"})
        assert answer.status_code == 200 and answer.headers["x-request-id"] == "abc.1"
        body = answer.json()
        assert (body["object"], body["id"], body["model"]) == ("chat.completion", "chatcmpl-abc.1", "small")
        (choice,) = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": expected}
        assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
        usage = body["usage"]
        assert usage["completion_tokens"] == 12 and usage["total_tokens"] == usage["prompt_tokens"] + 12
        told = usage["edgeflow"]
        assert told["prefill_ms"] > 0 and told["decode_ms"] > 0 and told["queue_ms"] >= 0
        events = await streamed(http, CHAT, ASKED)
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert said(events) == (expected, ["length"])


async def test_an_invalid_request_id_is_replaced(text_model: Loaded):
    async with chatting(text_model) as (http, _):
        answer = await http.post(CHAT, json={**ASKED, "max_tokens": 1}, headers={"x-request-id": "a b\t<c>"})
        assert len(answer.headers["x-request-id"]) == 32


async def test_a_text_goes_on(text_model: Loaded):
    expected = text_of(text_model.chat, alone(text_model.chat, text_model.chat.text_prompt("what is red?")))
    body = {"prompt": "what is red?", "max_tokens": 12}
    async with chatting(text_model) as (http, _):
        answer = (await http.post(TEXT, json=body)).json()
        assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", expected)
        assert said(await streamed(http, TEXT, body)) == (expected, ["length"])


async def test_usage_of_a_stream_is_sent_on_request(text_model: Loaded):
    async with chatting(text_model) as (http, _):
        plain = await streamed(http, CHAT, ASKED)
        assert all("usage" not in event for event in plain)
        events = await streamed(http, CHAT, {**ASKED, "stream_options": {"include_usage": True}})
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 12


async def test_a_stop_string_that_spans_tokens_ends_the_answer_and_is_not_sent(text_model: Loaded):
    body = {"prompt": "what is red?", "max_tokens": 40, "temperature": 1, "seed": 11}
    async with chatting(text_model) as (http, _):
        whole = (await http.post(TEXT, json=body)).json()["choices"][0]["text"]
        at = next(at for at in range(4, len(whole) - 6) if "\ufffd" not in whole[at : at + 2])
        stop = whole[at : at + 2]
        cut = whole[: whole.index(stop)]
        stopped = (await http.post(TEXT, json={**body, "stop": stop})).json()
        assert (stopped["choices"][0]["text"], stopped["choices"][0]["finish_reason"]) == (cut, "stop")
        assert stopped["usage"]["completion_tokens"] < 40
        assert said(await streamed(http, TEXT, {**body, "stop": ["never this", stop]})) == (cut, ["stop"])
        told = stopped["usage"]["completion_tokens"]
        last = (await http.post(TEXT, json={**body, "stop": stop, "max_tokens": told})).json()
        assert last["choices"][0]["finish_reason"] == "stop", "though no token more was allowed"
        assert (last["usage"]["completion_tokens"], last["choices"][0]["text"]) == (told, cut)


async def test_a_stop_token_ends_the_answer(text_model: Loaded):
    """The model's own logits, bent so that the end of the turn is all that can come."""
    async with chatting(text_model) as (http, served):
        plane = served.script.worker.plane
        sampled = alone(text_model.chat, text_model.chat.text_prompt("go"))
        model = ChatModel(
            **{name: getattr(text_model.chat, name) for name in ("name", "network", "tokenizer", "template", "device")},
            generation=_ending(text_model.chat, *sampled[3].tokens),
            vision=None,
        )
        plane.engine.model = model
        answer = (await http.post(TEXT, json={"prompt": "go", "max_tokens": 12})).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        first = next(at for at, each in enumerate(sampled) if each.tokens == sampled[3].tokens)
        assert answer["usage"]["completion_tokens"] == first + 1


def _ending(model: ChatModel, token: int):
    from dataclasses import replace

    return replace(model.generation, stop_ids=frozenset({token}))


async def test_seeds_and_choices(text_model: Loaded):
    body = {"prompt": "what is red?", "max_tokens": 12, "temperature": 1.5, "top_p": 0.95, "top_k": 200, "seed": 5}
    params = {"temperature": 1.5, "top_p": 0.95, "top_k": 200}
    prompt = text_model.chat.text_prompt("what is red?")
    expected = [text_of(text_model.chat, alone(text_model.chat, prompt, **params, seed=seed)) for seed in (5, 6, 7)]
    async with chatting(text_model) as (http, _):
        answer = (await http.post(TEXT, json={**body, "n": 3})).json()
        assert [choice["text"] for choice in answer["choices"]] == expected
        assert answer["usage"]["completion_tokens"] == 36
        events = await streamed(http, TEXT, {**body, "n": 3})
        assert [said(events, index)[0] for index in range(3)] == expected
        free = {**body, "seed": None, "n": 2}
        first, second = (await http.post(TEXT, json=free)).json()["choices"]
        assert first["text"] != second["text"]


async def test_penalties_reach_the_sampler(text_model: Loaded):
    params = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 1.0, "min_p": 0.01}
    prompt = text_model.chat.text_prompt("what is red?")
    bent, plain = (alone(text_model.chat, prompt, max_tokens=40, **each) for each in (params, {}))
    assert bent != plain
    async with chatting(text_model) as (http, _):
        answer = (await http.post(TEXT, json={"prompt": "what is red?", "max_tokens": 40, **params})).json()
        assert answer["choices"][0]["text"] == text_of(text_model.chat, bent)


async def test_log_probabilities(text_model: Loaded):
    prompt = chat_prompt(text_model.chat, *ASKED["messages"])
    expected = alone(text_model.chat, prompt, logprobs=3)
    async with chatting(text_model) as (http, _):
        body = {**ASKED, "logprobs": True, "top_logprobs": 3}
        told = (await http.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
        assert [entry["logprob"] for entry in told] == pytest.approx([each.logprobs[0].logprob for each in expected])
        for entry, each in zip(told, expected, strict=True):
            assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(
                [value for _, value in each.logprobs[0].top[:3]]
            )
        events = await streamed(http, CHAT, body)
        chunks = [
            choice["logprobs"]["content"] for event in events for choice in event["choices"] if choice["logprobs"]
        ]
        assert [entry for chunk in chunks for entry in chunk] == told
        text = (await http.post(TEXT, json={"prompt": "go", "max_tokens": 2, "logprobs": 2})).json()
        assert len(text["choices"][0]["logprobs"]["token_logprobs"]) == 2
        assert all(len(top) <= 2 for top in text["choices"][0]["logprobs"]["top_logprobs"])


@pytest.mark.parametrize("name", ["field", "model"])
async def test_a_declared_prefix_is_reused_and_the_answer_is_the_same(text_model: Loaded, name: str):
    system = SLOTS[0]["messages"][0]
    how = {"slot": "arm"} if name == "field" else {"model": "small:arm"}
    async with chatting(text_model) as (http, _):
        plain = (await http.post(CHAT, json={**ASKED, "messages": [system, *ASKED["messages"]]})).json()
    async with chatting(text_model, chat__slots=SLOTS) as (http, served):
        assert await models_of(http, 4) == ["demo", "small", "small:arm", "small:note"]
        found = (await http.post(CHAT, json={**ASKED, "messages": [system, *ASKED["messages"]]})).json()
        named = (await http.post(CHAT, json={**ASKED, **how})).json()
        for answer in (found, named):
            assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
            assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
            assert answer["usage"]["edgeflow"]["slot"] == "arm"
            assert answer["usage"]["edgeflow"]["prefix_tokens_reused"] > 20
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 20
        other = (await http.post(TEXT, json={"prompt": "the cup is red", "max_tokens": 12, "slot": "note"})).json()
        prompt = text_model.chat.text_prompt("the arm is at rest and the cup is red")
        assert other["choices"][0]["text"] == text_of(text_model.chat, alone(text_model.chat, prompt))
        assert other["usage"]["edgeflow"]["slot"] == "note"
        (line,) = served.events("chat_ready")
        assert line["slots"] == 3 and line["kv_bytes"] == 3 * line["slot_bytes"]


def picture(kind: str = "PNG", width: int = 40, height: int = 30, seed: int = 0) -> tuple[str, np.ndarray]:
    """A data: URL and the pixels that it holds."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    decoded = np.array(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}", decoded


async def test_pictures_are_seen(image_model: Loaded):
    (first, first_pixels), (second, second_pixels) = picture(), picture("JPEG", 64, 48, 1)
    content = [
        {"type": "image_url", "image_url": {"url": first}},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": second, "detail": "low"}},
    ]
    model = image_model.chat
    plain = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    rendered = model.render([{"role": "user", "content": plain}])
    prompt = model.chat_prompt(rendered, [first_pixels, second_pixels])
    async with chatting(image_model) as (http, _):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 12}
        answer = (await http.post(CHAT, json=body)).json()
        assert answer["choices"][0]["message"]["content"] == text_of(model, alone(model, prompt))
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        count = (await http.post("/tokenize", json={"messages": body["messages"]})).json()["count"]
        assert count == len(model.tokenizer.encode(rendered, special=False))


async def test_tokens_of_a_text_and_of_messages(text_model: Loaded):
    async with chatting(text_model) as (http, _):
        tokens = (await http.post("/tokenize", json={"prompt": "héllo"})).json()
        assert tokens["count"] == len("héllo".encode()) and tokens["max_model_len"] == 256
        tokens = (await http.post("/tokenize", json={"messages": ASKED["messages"]})).json()["tokens"]
        assert tokens == list(chat_prompt(text_model.chat, *ASKED["messages"]).ids)


async def test_metrics_count_requests_and_tokens(text_model: Loaded):
    async with chatting(text_model) as (http, served):
        await http.post(CHAT, json=ASKED)
        assert served.metric("edgeflow_chat_tokens_total", kind="answer") == 12
        assert served.metric("edgeflow_chat_tokens_total", kind="prompt") > 12
        assert served.metric("edgeflow_chat_time_to_first_token_seconds_count") == 1
        assert served.metric("edgeflow_chat_inter_token_latency_seconds_count") == 11
        assert served.metric("edgeflow_chat_requests_running") == 0
